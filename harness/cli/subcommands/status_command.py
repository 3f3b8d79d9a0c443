"""The progress and failures of a study, even of one whose plan cannot be read."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import json
import time
from typing import TYPE_CHECKING, Any, Final

import click
import psutil

from harness.cli import commands, running
from harness.cli.exit_codes import ExitCode
from harness.cli.subcommand import one_line
from harness.errors import PlanError
from harness.options.option import Options, option
from harness.planning.request import RUNS_DIR, IsJson, RunsDir, StudyArgument
from harness.run import rounds
from harness.run.progress import describe_trial
from results.errors import CorruptRecordError, MissingRecordError
from results.figures import scaling
from results.records.models import Order, PlannedTrial
from results.records.texts import printable, tokens
from results.store import study_store, writing
from results.study.cases import Study, load_study
from results.study.equivalence import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from results.store.study_store import Reading, Store, Trial


WATCH_SEC: Final = 2.0


class StatusRequest(Options):
    study: StudyArgument
    runs_dir: RunsDir = RUNS_DIR
    is_json: IsJson = False
    is_watched: bool = option(
        False,
        "Print the progress again whenever it changes, until nothing runs.",
        name="watch",
        is_key=False,
    )


def run(request: StatusRequest) -> int:
    if request.is_watched and request.is_json:
        raise PlanError(
            "--watch prints lines for a reader, and --json one object; leave one out"
        )
    return commands.for_each(request, functools.partial(_show, request))


def _show(request: StatusRequest, store: Store) -> int:
    shown = None
    while True:
        holder, is_running = writing.read_holder(store.root), False
        with contextlib.suppress(OverflowError):  # a file names it
            is_running = holder is not None and psutil.pid_exists(holder)
        reading, study = store.read(), None
        with contextlib.suppress(CorruptRecordError, MissingRecordError):
            study = load_study(store)  # a corrupt plan is reported below
            reading = dataclasses.replace(reading, problems=study.problems)
        lines, data = _describe(store, reading, study, is_running=is_running)
        if request.is_watched and is_running and study is not None:
            lines += _rates(study)
        if lines != shown:
            text = json.dumps(data, indent=2) if request.is_json else "\n".join(lines)
            click.echo(text)
            shown = lines
        if not (request.is_watched and is_running):
            return name_problems(reading.problems)
        time.sleep(WATCH_SEC)


def _describe(
    store: Store, reading: Reading, study: Study | None, *, is_running: bool
) -> tuple[list[str], dict[str, Any]]:
    """Returns what a study is now, as lines and as data."""
    trial_of = {trial.trial_id: trial for trial in reading.trials}
    try:
        plan = store.read_plan()
        name, trials = plan.study, plan.trials
    except CorruptRecordError:
        # Reported below with the other corrupt records; the trials found are shown.
        name = store.root.name
        trials = tuple(
            PlannedTrial.model_construct(
                trial_id=trial.trial_id, case_id="", modes=(), spec=trial.spec
            )
            for trial in trial_of.values()
        )
    matches = [
        running.describe_match(match)
        for match in (() if study is None else study.matches)
        if match.outcome is Outcome.DIFFERS or match.has_failed
    ]
    num_earlier = len(study_store.attempts(store.root))
    counts: collections.Counter[str] = collections.Counter()
    failures: list[dict[str, Any]] = []
    shown: list[str] = []
    for planned in trials:
        trial = trial_of.get(planned.trial_id)
        record = trial.status if trial is not None else None
        if record is None:
            state = "waiting" if trial is None else "running"
            counts[state if is_running else "missing"] += 1
            continue
        counts[record.status.label] += 1
        if (failure := record.failure) is None:
            continue
        facts = {
            "trial_id": planned.trial_id,
            "trial": describe_trial(planned),
            "status": record.status.value,
            "phase": failure.phase.value,
            "reason": failure.reason,
        }
        failures.append(facts)
        how = f"{record.status.label} in {facts['phase']}: {failure.reason}"
        shown.append(f"  {planned.trial_id[:8]}  {facts['trial']}: {how}")
        shown += [f"    {printable(tokens(line))}" for line in failure.place]
    counted = dict(sorted(counts.items()))
    data = {
        "study": name,
        "num_trials": len(trials),
        "counts": counted,
        "failures": failures,
        "matches": matches,
        "num_earlier_attempts": num_earlier,
        "problems": [
            {"path": str(p.path), "reason": p.reason} for p in reading.problems
        ],
    }
    listed = ", ".join(f"{n} {state}" for state, n in counted.items())
    now = _now(store, trials, trial_of) if is_running else ""
    lines = [one_line(f"{name}: {len(trials)} trials: {listed}{now}"), *shown]
    lines += map(one_line, matches)
    if num_earlier:
        attempts = "attempt" if num_earlier == 1 else "attempts"
        lines.append(
            f"  {num_earlier} earlier {attempts} at trials that were measured again:"
            f" {store.root / study_store.EARLIER_NAME}"
        )
    return lines, data


def _now(
    store: Store, trials: Sequence[PlannedTrial], trial_of: Mapping[str, Trial]
) -> str:
    """Says where a running sweep is: in matching, or a repetition and a round."""
    begun = (planned for planned in trials if planned.trial_id in trial_of)
    alive = [each for each in begun if trial_of[each.trial_id].status is None]
    runs = [
        planned.spec.repetition_index
        for planned in alive
        if planned.spec.order is Order.INTERLEAVED
    ]
    if not runs:
        checks = store.equivalence.trials()
        is_check = not alive and any(trial.status is None for trial in checks)
        return "; matching replicas with one" * is_check
    most = max(planned.spec.repetition_index for planned in trials)
    prefix = f"; run {max(runs) + 1} of {most + 1}, "
    folders = (store.trial_dir(planned.trial_id) for planned in alive)
    blocks = list(filter(None, map(rounds.last_block, folders)))
    if not blocks:
        return f"{prefix}starting"
    round_index, is_sustained = max(blocks)
    return prefix + (
        "sustained stretches" if is_sustained else f"round {round_index + 1}"
    )


def _rates(study: Study) -> Iterator[str]:
    """Yields the rate of each case over the runs that have ended, with its interval."""
    from reports.words import formats

    for case in study.cases:
        estimate = scaling.case_cell(case, "throughput").estimate
        if estimate is not None:
            rate = formats.estimate(estimate, formats.significant)
            runs = formats.count(estimate.n, "run")
            yield f"  {case.label}: {rate} {study.example_unit}/s, {runs}"


def name_problems(problems: Sequence[CorruptRecordError]) -> int:
    """Prints one line per damaged record, and returns the exit code."""
    for problem in problems:
        click.echo(f"error: {problem}", err=True)
    return ExitCode.USAGE if problems else ExitCode.OK
