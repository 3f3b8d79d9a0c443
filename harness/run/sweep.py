"""The sweep loop: runs what is missing of a plan, a trial or a repetition at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any, Final

from harness import catalog
from harness.command.reader import OWN_ERRORS
from harness.errors import Interrupted, StudyError
from harness.machine import environment
from harness.planning import defaults
from harness.run import trial_runner
from harness.run.progress import PhaseWatch, Progress
from harness.run.rounds import Repetition, interleaved_sec, steps_of_blocks
from harness.run.trial_runner import RunSettings, run_trial
from harness.sources import code_digest
from harness.trial import rank_file
from harness.trial.process_tree import STOP_SIGNALS, on_stop_signals
from harness.trial.rank_file import one_line
from results.judging import gate, gate_metrics
from results.records import identity, measuring
from results.records.models import Control, Order, TrialStatus
from results.study.cases import load_study

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from harness.planning.estimate import Durations
    from harness.run.trial_tree import Session
    from results.records.models import PlannedTrial, StatusRecord
    from results.store.study_store import Store


# Counts of both sides of a gate are known once its programs have been built. What
# differs in them is exact, so a reader need not wait for the repetitions.


def differences(sessions: Iterable[Session]) -> Iterator[str]:
    """Yields what differs in a step of a case, one line each; nothing of a sweep."""
    counted: dict[tuple[str, int, int], dict[bool, dict[str, float]]] = {}
    for one in sessions:
        spec = one.spec
        if one.is_alive and spec.control is Control.NONE:
            # By the first process of a trial.
            log = rank_file.read_rank(one.prepared.trial_dir, 0)
            case = spec.backend, spec.num_replicas, spec.per_replica_batch_size
            counted.setdefault(case, {})[bool(spec.revision)] = {
                metric["name"]: metric["value"]
                for metric in log.all("window_metric")
                if metric["name"] in measuring.UNITS
            }
    for (backend, num_replicas, _), sides in counted.items():
        if len(sides) == 1:
            continue
        for name, after in sides[False].items():
            before = sides[True].get(name, after)
            if before != after:
                yield (
                    f"{backend} x{num_replicas}: {measuring.step_count_words(name)}"
                    f" {gate_metrics.share_text(before, after)}"
                    f" ({gate_metrics.exact_text(before, after)})"
                )


@contextlib.contextmanager
def stop_signals() -> Iterator[None]:
    """Blocks SIGINT, SIGTERM and SIGHUP into ``Interrupted`` while the block runs."""

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
    store: Store, trials: Sequence[PlannedTrial], is_failed_retried: bool
) -> list[PlannedTrial]:
    """Returns the trials that are to run, in order; failures if they are retried."""
    finished = {
        trial.trial_id
        for trial in store.trials()
        if trial.status is not None
        and (trial.status.status is TrialStatus.OK or not is_failed_retried)
    }
    missing = [trial for trial in trials if trial.trial_id not in finished]
    # They are repeated as a whole, since their trials are compared by turns.
    repetitions = {_repetition_of(trial) for trial in missing} - {None}
    return [
        trial
        for trial in trials
        if trial.trial_id not in finished or _repetition_of(trial) in repetitions
    ]


def _repetition_of(trial: PlannedTrial) -> int | None:
    """Returns the index of an interleaved repetition; None for what runs alone."""
    spec = trial.spec
    return spec.repetition_index if spec.order is Order.INTERLEAVED else None


_EXPORTED: Final = {
    *("workload", "preset", "options", "data", "per_replica_batch_size"),
    "num_replicas",
}
_MOST: Final = 12
"""Exports that are kept; one of ResNet-50 has 100 MB."""


def run_trials(
    store: Store,
    trials: Sequence[PlannedTrial],
    settings: RunSettings,
    progress: Progress,
    durations: Durations,
    renew_report: Callable[[], str] | None = None,
) -> None:
    missing = missing_trials(store, trials, settings.is_failed_retried)
    progress.begin(len(trials), len(trials) - len(missing))
    try:
        sweep = _Sweep(store, settings, progress, durations)
        sweep.run(missing, renew_report or (lambda: ""))
    finally:
        progress.end()


@dataclasses.dataclass(slots=True)
class _Sweep:
    store: Store
    settings: RunSettings
    progress: Progress
    durations: Durations

    def run(
        self, missing: Sequence[PlannedTrial], renew_report: Callable[[], str]
    ) -> None:
        self._match_missing()
        exports = self._export_missing(missing)
        self.settings = dataclasses.replace(self.settings, exports=exports)
        while missing:
            if reason := self._why_not(len(missing)):
                self.progress.note(reason)
                break
            # All of a repetition, or one that runs alone.
            first = missing[0].spec
            index, group = next(itertools.groupby(missing, key=_repetition_of))
            together = missing[:1] if index is None else list(group)
            run = self._run_alone if index is None else self._run_repetition
            missing = missing[len(together) :]
            statuses = run(together, missing)
            for trial, status in zip(together, statuses, strict=True):
                result = self.store.read_trial(trial.trial_id).result
                rate = None  # of others all blocks may be discarded
                if result is not None and status.status is TrialStatus.OK:
                    rate = result.examples_per_sec
                self.durations.add(trial.spec, status.duration_sec, rate)
                self.progress.trial_ended(trial, status, result)
            if not missing:
                break
            if reason := self._why_over(together, statuses, len(missing)):
                self.progress.note(reason)
                break
            # Where no trial of the repetition that has just run follows.
            repetition = first.repetition_index, first.budget
            following = missing[0].spec.repetition_index, missing[0].spec.budget
            if following != repetition and (reason := renew_report()):
                self.progress.note(reason)

    def _match_missing(self) -> None:
        """Runs what is missing of the trials that match; as many at once as cores."""
        plan, settings = self.store.read_plan().equivalence, self.settings
        if plan is None:
            return
        store = self.store.equivalence
        missing = missing_trials(store, plan.trials, settings.is_failed_retried)
        if not missing:
            return
        num_together = settings.topology.num_available_cores
        if missing[0].spec.device == "gpu":  # they would share memory
            num_together = 1
        for first in range(0, len(missing), num_together):
            batch = missing[first : first + num_together]
            specs = [trial.spec for trial in batch]
            names = ", ".join(f"{spec.backend} x{spec.num_replicas}" for spec in specs)
            self.progress.stage(
                f"matching replicas with one, untimed: {names}"
                f" ({first + len(batch)} of {len(missing)})",
                None,
            )
            with contextlib.ExitStack() as stack:
                started = []
                for trial in batch:
                    prepared = trial_runner.prepare(store, trial, settings)
                    tree = stack.enter_context(prepared.tree())
                    started.append((prepared, tree))
                deadline = time.monotonic() + settings.timeout_sec
                for prepared, tree in started:
                    left_sec = max(deadline - time.monotonic(), 0.0)
                    ended = tree.finish(left_sec, limit_sec=settings.timeout_sec)
                    prepared.record(ended, disturbance={})

    def _export_missing(self, trials: Iterable[PlannedTrial]) -> dict[str, Path]:
        """Returns the folder of each trial of a peer, by id.

        What a step of ours began with, and its losses, are kept beside prepared data.
        """
        folder_of: dict[str, Path] = {}
        for trial in trials:
            spec, peer = trial.spec, catalog.PEERS.get(trial.spec.backend)
            if peer is None:
                continue
            request = spec.model_dump(mode="json", include=_EXPORTED)
            code = code_digest.trial_digest(spec.workload, catalog.EXPORTED_BACKEND)
            folder = catalog.exports_dir() / identity.digest({**request, "code": code})
            if not folder.is_dir():
                self.progress.stage(
                    f"exporting weights and first batches of {spec.workload}"
                    f" x{spec.num_replicas} for other frameworks, untimed",
                    None,
                )
                _export(peer.exporter, folder, request, self.settings.timeout_sec)
            os.utime(folder)
            folder_of[trial.trial_id] = folder
        if folder_of:
            folders = [
                path for path in catalog.exports_dir().iterdir() if path.is_dir()
            ]
            folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
            for folder in folders[_MOST:]:  # those that were not used for longest
                if folder not in folder_of.values():
                    shutil.rmtree(folder, ignore_errors=True)
        return folder_of

    def _why_not(self, num_missing: int) -> str:
        """Returns why nothing else is started, whatever ran before; empty if it is."""
        design = self.store.read_plan().measuring.gate
        # A gate that ends at the first clear verdict.
        if design and design.looks and gate.has_risen(load_study(self.store)):
            return (
                "stopped: a count rose, which makes it a regression, so the other"
                f" {num_missing} trials are not started; --repeats measures all"
            )
        if changed := self.settings.changed_code():
            return (
                f"stopped: the code changed while it was measured ({changed}), and"
                " results of different code must not be mixed; go back to that of the"
                " study and run the same command with --retry failed, or choose another"
                " --study"
            )
        return ""

    def _why_over(
        self,
        together: Sequence[PlannedTrial],
        statuses: Sequence[StatusRecord],
        num_missing: int,
    ) -> str:
        """Returns why nothing else is started after some trials; empty if it is."""
        number, failure = together[0].spec.repetition_index + 1, statuses[0].failure
        is_discarded = {status.status for status in statuses} == {TrialStatus.DISCARDED}
        # A sweep goes on beside load, whose blocks are shown for what they are.
        if (
            is_discarded
            and failure is not None
            and _repetition_of(together[0]) is not None
            and not any(entry.is_measured for entry in load_study(self.store).planned)
        ):
            return (
                f"stopped: no block of run {number} counts ({failure.reason}); end what"
                " else runs on these cores ('doctor' names it), then run the same"
                " command with --retry failed"
            )
        both = {trial.spec.revision for trial in together}
        failed = both if len(both) > 1 else set()
        failed -= {
            trial.spec.revision
            for trial, status in zip(together, statuses, strict=True)
            if status.status is TrialStatus.DISCARDED
        }
        for revision in sorted(failed and failed - self._ok_revisions()):
            side = f"revision {revision}" if revision else "this tree"
            return (
                f"stopped: all trials of {side} in run {number} failed, so nothing can"
                " be compared; see why above, and run the same command with --retry"
                " failed when it is fixed"
            )
        spec, failure = together[-1].spec, statuses[-1].failure
        # A command failed by itself, and no trial of the study is ok.
        if (
            spec.program is not None
            and spec.backend not in catalog.PEERS
            and failure is not None
            and failure.exception_type in OWN_ERRORS
            and not self._ok_revisions()
        ):
            return (
                f"the other {num_missing} trials are not started, since they would fail"
                " like this one: change the command or --metric"
            )
        return ""

    def _ok_revisions(self) -> set[str]:
        """Returns the revisions with a trial that is ok, of all that have ended."""
        return {
            trial.spec.revision
            for trial in self.store.trials()
            if trial.status is not None and trial.status.status is TrialStatus.OK
        }

    def _run_alone(
        self, trials: Sequence[PlannedTrial], later: Sequence[PlannedTrial]
    ) -> list[StatusRecord]:
        (trial,) = trials
        own_sec = self.durations.remaining_sec([trial.spec])
        later_sec = self.durations.remaining_sec(other.spec for other in later)
        self.progress.trial_started(trial, own_sec + later_sec)
        started = time.monotonic()

        def show(text: str) -> None:
            # Below 0, the estimate was too short; it goes on.
            left_sec = own_sec - (time.monotonic() - started) + later_sec
            self.progress.phase(text, left_sec)

        settings = self.settings
        with PhaseWatch(self.store.trial_dir(trial.trial_id), show, settings.look_sec):
            return [run_trial(self.store, trial, settings)]

    def _run_repetition(
        self, trials: Sequence[PlannedTrial], later: Sequence[PlannedTrial]
    ) -> list[StatusRecord]:
        plan = self.store.read_plan()
        measuring = self.settings.measuring
        before, index = self.store.trials(), trials[0].spec.repetition_index

        def on_warm(sessions: Sequence[Session]) -> None:
            if measuring.gate is not None and index == 0:
                for line in differences(sessions):
                    self.progress.note(f"counted in a step: {line}")

        gate_looks = () if measuring.gate is None else measuring.gate.looks
        is_most = bool(gate_looks) or measuring.target is not None
        limit_sec = math.inf
        if is_most and measuring.minutes is not None:
            limit_sec = measuring.minutes * 60 - interleaved_sec(before)
        num_later = len({_repetition_of(trial) for trial in later} - {None})
        if gate_looks:
            num_later = max(num_later, gate_looks[-1] - index - 1)
        is_until_limit = is_most and not gate_looks
        whole_sec = (
            self.durations.repetition_sec
            or measuring.repetition_sec
            or self.durations.remaining_sec(trial.spec for trial in trials)
        )
        alone = [trial.spec for trial in later if _repetition_of(trial) is None]
        started = time.monotonic()

        def stage(text: str, left_sec: float | None) -> None:
            nonlocal whole_sec
            passed_sec = time.monotonic() - started
            if left_sec is not None and self.durations.repetition_sec is None:
                whole_sec = passed_sec + left_sec
            most_sec = max(limit_sec - passed_sec, 0.0)
            eta_sec = max(whole_sec - passed_sec, 0.0)
            if not is_until_limit:
                eta_sec = min(eta_sec + num_later * whole_sec, most_sec)
            elif limit_sec < math.inf:
                eta_sec = most_sec
            self.progress.stage(
                f"run {index + 1} of {plan.repeats}: {text}",
                eta_sec + self.durations.remaining_sec(alone),
                is_most=is_most,
            )

        repetition = Repetition(
            trials=trials,
            index=index,
            duration_sec=measuring.repetition_sec,
            max_rounds=measuring.max_rounds or defaults.MAX_ROUNDS,
            seed=plan.seed,
            stage=stage,
            num_stretches=0 if measuring.gate is None else measuring.gate.num_stretches,
            steps_of_block=steps_of_blocks(before),
            on_warm=on_warm,
        )
        statuses = repetition.run(self.store, self.settings)
        self.durations.repetition_sec = time.monotonic() - started
        return statuses


def _export(
    module: str, folder: Path, request: dict[str, Any], timeout_sec: float
) -> None:
    settings = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    words = str(folder), json.dumps(request)
    try:
        environment.run_module(module, *words, timeout_sec=timeout_sec, **settings)
    except subprocess.TimeoutExpired:
        raise StudyError(
            f"exporting what other frameworks begin with took more than"
            f" {timeout_sec:g} s; give more --timeout, or leave them out of --backends"
        ) from None
    except environment.OwnProgramError as error:
        why = one_line(str(error))
        raise StudyError(
            f"exporting what other frameworks begin with failed: {why};"
            f" 'python -m {module} FOLDER REQUEST' shows all of it"
        ) from error
