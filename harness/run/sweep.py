"""The sweep loop: runs what is missing of a plan, a trial or a generation at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from harness import catalog
from harness.command.reader import OWN_ERRORS
from harness.errors import Interrupted, StudyError
from harness.machine import environment
from harness.planning import defaults
from harness.run import resident, trial_runner, trial_tree
from harness.run.relay import run_generation
from harness.run.rounds import Generation, RelayTimeLeft, relay_sec, steps_of_turns
from harness.run.trial_runner import run_trial
from harness.sources import code_digest
from harness.trial import rank_file
from harness.trial.process_tree import STOP_SIGNALS, on_stop_signals
from harness.trial.rank_file import one_line
from results.judging import gate, judged_case
from results.records import identity, measuring
from results.records.models import Control, Order, TrialStatus
from results.study.cases import load_study

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from harness.planning.estimate import Durations
    from harness.run.resident import Progress, Resident
    from harness.run.trial_runner import RunSettings
    from results.records.models import Plan, PlannedTrial, StatusRecord, TrialSpec
    from results.store.study_store import Store


# Counts of both sides of a gate are known once its programs have been built. What
# differs in them is exact, so a reader need not wait for the generations.


def differences(residents: Iterable[Resident]) -> Iterator[str]:
    """Yields what differs in a step of a case, one line each; nothing of a sweep."""
    alive = [
        one
        for one in residents
        if one.is_alive and one.prepared.trial.spec.control is Control.NONE
    ]
    stored = {
        _key_of_case(one.prepared.trial.spec): one
        for one in alive
        if one.prepared.trial.spec.revision
    }
    for one in alive:
        spec = one.prepared.trial.spec
        other = None if spec.revision else stored.get(_key_of_case(spec))
        if other is None:
            continue
        before = _counted(other)
        for name, after in _counted(one).items():
            sides = before.get(name, after), after
            if sides[0] != after:
                exact = judged_case.exact_text(*sides)
                yield (
                    f"{spec.backend} x{spec.num_replicas}:"
                    f" {measuring.step_count_words(name)}"
                    f" {judged_case.share_text(*sides)} ({exact})"
                )


def _key_of_case(spec: TrialSpec) -> tuple[str, int, int]:
    """What a case is, whatever its revision."""
    return spec.backend, spec.num_replicas, spec.per_replica_batch_size


def _counted(resident: Resident) -> dict[str, float]:
    """Returns what the first process of a trial has counted of a step."""
    log = rank_file.read_rank(resident.prepared.trial_dir, 0)
    return {
        metric["name"]: metric["value"]
        for metric in log.all("window_metric")
        if metric["name"] in measuring.UNITS
    }


# Our step runs a few times, untimed, in a process with TensorFlow. What it began with,
# and its losses, are kept in the folder of prepared data, for later studies as well.

_MOST: Final = 12
"""Exports that are kept; one of ResNet-50 has 100 MB."""


def export_missing(
    trials: Iterable[PlannedTrial],
    stage: Callable[[str, float | None], None],
    *,
    timeout_sec: float,
) -> dict[str, Path]:
    """Exports what is missing; returns the folder of each trial of a peer, by id."""
    found: dict[str, Path] = {}
    for trial in trials:
        peer = catalog.peer(trial.spec.backend)
        if peer is None:
            continue
        request = _request(trial.spec)
        code = code_digest.of_trial(trial.spec.workload, catalog.EXPORTED_BACKEND)
        folder = catalog.exports_dir() / identity.digest({**request, "code": code})
        if not folder.is_dir():
            stage(
                f"exporting weights and first batches of {trial.spec.workload}"
                f" x{trial.spec.num_replicas} for other frameworks, untimed",
                None,
            )
            _export(peer.exporter, folder, request, timeout_sec)
        os.utime(folder)
        found[trial.trial_id] = folder
    if found:
        _remove_oldest({*found.values()})
    return found


def _request(spec: TrialSpec) -> dict[str, Any]:
    return {
        "workload": spec.workload,
        "preset": spec.preset,
        "options": dict(spec.options),
        "data": spec.data,
        "per_replica_batch_size": spec.per_replica_batch_size,
        "num_replicas": spec.num_replicas,
    }


def _export(
    module: str, folder: Path, request: dict[str, Any], timeout_sec: float
) -> None:
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, str(folder), json.dumps(request)],
            env=environment.own_variables(
                os.environ, CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="2"
            ),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_sec,
        )
    except subprocess.TimeoutExpired:
        raise StudyError(
            f"exporting what other frameworks begin with took more than"
            f" {timeout_sec:g} s; give more --timeout, or leave them out of --backends"
        ) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise StudyError(
            f"exporting what other frameworks begin with failed: {one_line(last)};"
            f" 'python -m {module} FOLDER REQUEST' shows all of it"
        )


def _remove_oldest(used: set[Path]) -> None:
    """Removes the exports that were not used for longest, beyond the most."""
    folders = sorted(
        (path for path in catalog.exports_dir().iterdir() if path.is_dir()),
        key=lambda path: path.stat().st_mtime,
        reverse=True,
    )
    for folder in folders[_MOST:]:
        if folder not in used:
            shutil.rmtree(folder, ignore_errors=True)


def match_missing(
    store: Store,
    plan: Plan,
    settings: RunSettings,
    stage: Callable[[str, float | None], None],
) -> None:
    """Runs what is missing of the trials that match; as many at once as cores.

    On GPUs one after the other, since they would share memory.
    """
    if plan.matching is None:
        return
    missing = _missing(
        store, plan.matching.trials, is_failed_retried=settings.is_failed_retried
    )
    if not missing:
        return
    num_together = settings.topology.num_available_cores
    if missing[0].spec.device == "gpu":
        num_together = 1
    for first in range(0, len(missing), num_together):
        batch = missing[first : first + num_together]
        names = ", ".join(
            f"{trial.spec.backend} x{trial.spec.num_replicas}" for trial in batch
        )
        stage(
            f"matching replicas with one, untimed: {names}"
            f" ({first + len(batch)} of {len(missing)})",
            None,
        )
        _run_together(store.matching, batch, settings)


def _missing(
    store: Store, trials: Sequence[PlannedTrial], *, is_failed_retried: bool
) -> list[PlannedTrial]:
    finished = {
        trial.trial_id
        for trial in store.matching.trials()
        if trial.status is not None
        and (trial.status.status is TrialStatus.OK or not is_failed_retried)
    }
    return [trial for trial in trials if trial.trial_id not in finished]


def _run_together(
    store: Store, trials: Sequence[PlannedTrial], settings: RunSettings
) -> None:
    """Starts trials at once, waits for each, and records it."""
    with contextlib.ExitStack() as stack:
        started = []
        for trial in trials:
            prepared = trial_runner.prepare(store, trial, settings)
            tree = trial_runner.tree_of(prepared, settings.launcher)
            started.append((prepared, stack.enter_context(tree)))
        deadline = time.monotonic() + settings.timeout_sec
        for prepared, tree in started:
            trial_exit = trial_tree.finish(
                tree,
                timeout_sec=max(deadline - time.monotonic(), 0.0),
                limit_sec=settings.timeout_sec,
            )
            trial_runner.record(store, prepared, trial_exit, settings, disturbance={})


@contextlib.contextmanager
def stop_signals() -> Iterator[None]:
    """Turns SIGINT, SIGTERM and SIGHUP into ``Interrupted`` while the block runs."""

    def stop(number: int, _frame: object) -> None:
        # One is enough: a second one must not interrupt the cleanup.
        for other in STOP_SIGNALS:
            signal.signal(other, signal.SIG_IGN)
        raise Interrupted(signal.Signals(number).name)

    with on_stop_signals(stop):
        yield


@contextlib.contextmanager
def stop_later() -> Iterator[None]:
    """Delivers a signal to stop at the end of the block: an import may be half done."""
    late: list[int] = []
    with on_stop_signals(lambda number, _frame: late.append(number)):
        yield
    for number in late[:1]:
        signal.raise_signal(number)


def missing_trials(
    store: Store, trials: Sequence[PlannedTrial], *, is_failed_retried: bool
) -> list[PlannedTrial]:
    """Returns the trials that are to run, in order; failures if they are retried.

    A generation of a relay is repeated as a whole: its trials are compared by turns.
    """
    finished = {
        trial.trial_id
        for trial in store.trials()
        if trial.status is not None
        and (trial.status.status is TrialStatus.OK or not is_failed_retried)
    }
    missing = [trial for trial in trials if trial.trial_id not in finished]
    generations = {
        trial.spec.repetition_index for trial in missing if _is_in_relay(trial)
    }
    return [
        trial
        for trial in trials
        if trial.trial_id not in finished
        or (_is_in_relay(trial) and trial.spec.repetition_index in generations)
    ]


def _is_in_relay(trial: PlannedTrial) -> bool:
    return trial.spec.order is Order.RELAY


def run_trials(
    store: Store,
    trials: Sequence[PlannedTrial],
    settings: RunSettings,
    progress: Progress,
    durations: Durations,
    renew_report: Callable[[], str] | None = None,
) -> None:
    """Runs the missing ``trials``; each is recorded as soon as it ends."""
    missing = missing_trials(
        store, trials, is_failed_retried=settings.is_failed_retried
    )
    progress.begin(len(trials), len(trials) - len(missing))

    def end(trial: PlannedTrial, status: StatusRecord) -> None:
        result = store.read_trial(trial.trial_id).result
        rate = None
        if result is not None and status.status is TrialStatus.OK:
            rate = result.examples_per_sec  # others have none: all turns may be void
        durations.add(trial.spec, status.duration_sec, rate)
        progress.trial_ended(trial, status, result)

    try:
        match_missing(store, store.read_plan(), settings, progress.stage)
        exports = export_missing(
            missing, progress.stage, timeout_sec=settings.timeout_sec
        )
        settings = dataclasses.replace(settings, exports=exports)
        while missing:
            if reason := _why_not(store, settings, missing):
                progress.note(reason)
                break
            together = _next_together(missing)
            later = missing[len(together) :]
            if _is_in_relay(together[0]):
                statuses = _run_generation(
                    store, together, later, settings, progress, durations
                )
            else:
                statuses = [
                    _run_alone(store, together[0], later, settings, progress, durations)
                ]
            for trial, status in zip(together, statuses, strict=True):
                end(trial, status)
            missing = later
            if missing and (reason := _why_over(store, together, statuses, missing)):
                progress.note(reason)
                break
            is_over = _is_repetition_over(together, missing)
            if renew_report is not None and is_over and (reason := renew_report()):
                progress.note(reason)
    finally:
        progress.end()


def _is_repetition_over(
    together: Sequence[PlannedTrial], missing: Sequence[PlannedTrial]
) -> bool:
    """Whether other trials follow, none of the repetition that has just run."""
    last = together[-1].spec
    return bool(missing) and (
        (missing[0].spec.repetition_index, missing[0].spec.budget)
        != (last.repetition_index, last.budget)
    )


def _why_not(
    store: Store, settings: RunSettings, missing: Sequence[PlannedTrial]
) -> str:
    """Returns why nothing else is started, whatever ran before; empty if it is."""
    if _is_known_to_regress(store):
        return (
            "stopped: a count rose, which makes it a regression, so the other"
            f" {len(missing)} trials are not started; --repeats measures all"
        )
    if changed := settings.changed_code():
        return (
            f"stopped: the code changed while it was measured ({changed}), and results"
            " of different code must not be mixed; go back to that of the study and run"
            " the same command with --retry failed, or choose another --study"
        )
    return ""


def _why_over(
    store: Store,
    together: Sequence[PlannedTrial],
    statuses: Sequence[StatusRecord],
    missing: Sequence[PlannedTrial],
) -> str:
    """Returns why nothing else is started after some trials; empty if it is."""
    if _is_all_void(store, together, statuses):
        assert statuses[0].failure is not None
        return (
            f"stopped: no block of run {together[0].spec.repetition_index + 1}"
            f" counts ({statuses[0].failure.reason}); end what else runs on these"
            " cores ('doctor' names it), then run the same command with"
            " --retry failed"
        )
    if side := _failed_side(store, together, statuses):
        return (
            f"stopped: all trials of {side} in run"
            f" {together[0].spec.repetition_index + 1} failed, so nothing can be"
            " compared; see why above, and run the same command with --retry failed"
            " when it is fixed"
        )
    if _is_hopeless(store, together[-1], statuses[-1]):
        return (
            f"the other {len(missing)} trials are not started, since they would fail"
            " like this one: change the command or --metric"
        )
    return ""


def _is_known_to_regress(store: Store) -> bool:
    """Whether a count rose in a gate that ends at the first clear verdict."""
    design = store.read_plan().measuring.gate
    return bool(design and design.looks) and gate.has_risen(load_study(store))


def _is_all_void(
    store: Store, together: Sequence[PlannedTrial], statuses: Sequence[StatusRecord]
) -> bool:
    """Whether no turn of a generation counts, and no trial before it was ok.

    A sweep goes on beside load, whose turns are shown for what they are.
    """
    if not _is_in_relay(together[0]):
        return False
    if any(of.status is not TrialStatus.VOID for of in statuses):
        return False
    return not any(entry.is_measured for entry in load_study(store).planned)


def _failed_side(
    store: Store, together: Sequence[PlannedTrial], statuses: Sequence[StatusRecord]
) -> str:
    """Names the tree of a gate none of whose trials was ever ok, or returns ""."""
    both = {trial.spec.revision for trial in together}
    if len(both) == 1:
        return ""
    may_be_ok = _revisions_with_an_ok_trial(store) | {
        trial.spec.revision
        for trial, status in zip(together, statuses, strict=True)
        if status.status is TrialStatus.VOID
    }
    for revision in sorted(both - may_be_ok):
        return f"revision {revision}" if revision else "this tree"
    return ""


def _revisions_with_an_ok_trial(store: Store) -> set[str]:
    """Returns those of all trials that have ended so far."""
    return {
        trial.spec.revision
        for trial in store.trials()
        if trial.status is not None and trial.status.status is TrialStatus.OK
    }


def _is_hopeless(store: Store, trial: PlannedTrial, status: StatusRecord) -> bool:
    """Whether a command failed by itself, and no trial of the study is ok."""
    if trial.spec.program is None or status.failure is None:
        return False
    if catalog.peer(trial.spec.backend) is not None:
        return False
    if status.failure.exception_type not in OWN_ERRORS:
        return False
    return not _revisions_with_an_ok_trial(store)


def _run_alone(
    store: Store,
    trial: PlannedTrial,
    later: Sequence[PlannedTrial],
    settings: RunSettings,
    progress: Progress,
    durations: Durations,
) -> StatusRecord:
    own_sec = durations.remaining_sec([trial.spec])
    later_sec = durations.remaining_sec(other.spec for other in later)
    progress.trial_started(trial, own_sec + later_sec)
    started = time.monotonic()

    def show(text: str) -> None:
        # Below 0, the estimate was too short; it is shown, and does not stand still.
        progress.phase(text, own_sec - (time.monotonic() - started) + later_sec)

    with resident.PhaseWatch(store.trial_dir(trial.trial_id), show):
        return run_trial(store, trial, settings)


def _next_together(missing: Sequence[PlannedTrial]) -> list[PlannedTrial]:
    """Returns the first trials: all of a generation, or one that runs alone."""
    first = missing[0]
    if not _is_in_relay(first):
        return [first]

    def is_of_same_generation(trial: PlannedTrial) -> bool:
        return (
            _is_in_relay(trial)
            and trial.spec.repetition_index == first.spec.repetition_index
        )

    return list(itertools.takewhile(is_of_same_generation, missing))


def _run_generation(
    store: Store,
    trials: Sequence[PlannedTrial],
    later: Sequence[PlannedTrial],
    settings: RunSettings,
    progress: Progress,
    durations: Durations,
) -> list[StatusRecord]:
    plan = store.read_plan()
    measuring = settings.measuring
    before = store.trials()

    def on_warm(residents: Sequence[Resident]) -> None:
        if measuring.gate is not None and generation.index == 0:
            for line in differences(residents):
                progress.note(f"counted in a step: {line}")

    generation = Generation(
        trials=trials,
        index=trials[0].spec.repetition_index,
        duration_sec=measuring.generation_sec,
        max_rounds=measuring.max_rounds or defaults.MAX_ROUNDS,
        seed=plan.seed,
        num_stretches=0 if measuring.gate is None else measuring.gate.num_stretches,
        steps_of_turn=steps_of_turns(before),
        on_warm=on_warm,
    )
    time_left = RelayTimeLeft(
        measuring,
        generation.index,
        num_later=len(
            {trial.spec.repetition_index for trial in later if _is_in_relay(trial)}
        ),
        used_sec=relay_sec(before),
        whole_sec=durations.generation_sec
        or measuring.generation_sec
        or durations.remaining_sec(trial.spec for trial in trials),
        is_measured=durations.generation_sec is not None,
    )
    alone = [trial.spec for trial in later if not _is_in_relay(trial)]
    label = f"run {generation.index + 1} of {plan.repeats}"
    started = time.monotonic()

    def stage(text: str, left_sec: float | None) -> None:
        eta_sec = time_left.update(time.monotonic() - started, left_sec)
        progress.stage(
            f"{label}: {text}",
            eta_sec + durations.remaining_sec(alone),
            is_most=time_left.is_most,
        )

    statuses = run_generation(store, generation, settings, stage)
    durations.generation_sec = time.monotonic() - started
    return statuses
