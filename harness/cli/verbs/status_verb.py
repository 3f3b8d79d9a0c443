"""The progress and failures of a study, even of one whose plan cannot be read."""

from __future__ import annotations

import collections
import json
from typing import TYPE_CHECKING, Any

import click
import psutil

from harness.cli import exit_codes, progress, running, varied
from harness.cli.arguments import one_line
from harness.cli.shared_options import RUNS_DIR, IsJson, RunsDir, StudyArgument
from harness.options.option import Options
from harness.planning import study as study_module
from harness.run.turn_file import TURNS_NAME
from results.errors import CorruptRecordError, MissingRecordError
from results.records.models import PlannedTrial
from results.store import lock, untrusted
from results.store.study_store import Store
from results.study.cases import load_study
from results.study.matching import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from harness.cli.verb import Call
    from results.records.models import StatusRecord
    from results.store.stored_trial import Problem, Trial


class StatusRequest(Options):
    """Whose progress is shown."""

    study: StudyArgument
    runs_dir: RunsDir = RUNS_DIR
    is_json: IsJson = False


def run(request: StatusRequest, call: Call) -> int:
    """Prints the progress of a study, or of each study of a varied one.

    Raises:
      ResultsError: There is no such study, or a newer version wrote it.
    """
    return varied.for_each(_show)(request, call)


def _show(request: StatusRequest, _: Call) -> int:
    """Prints the progress of a study and its failures.

    Raises:
      ResultsError: There is no such study, or a newer version wrote it.
    """
    store = Store.open(study_module.find_study(request.study, request.runs_dir))
    reading = store.read()
    found = {trial.trial_id: trial for trial in reading.trials}
    try:
        plan = store.read_plan()
    except CorruptRecordError:
        # Reported below with the other corrupt records; the trials found are shown.
        name, trials = store.root.name, _planned_from(found.values())
    else:
        name, trials = plan.study, plan.trials
    matches = _problems_of_matches(store)
    is_running = _is_held(store)
    counts: collections.Counter[str] = collections.Counter()
    failures: list[dict[str, Any]] = []
    for planned in trials:
        trial = found.get(planned.trial_id)
        record = trial.status if trial is not None else None
        counts[_state(record, trial is not None and is_running)] += 1
        if record is not None and record.failure is not None:
            failures.append(
                {
                    "trial_id": planned.trial_id,
                    "trial": progress.describe_trial(planned),
                    "status": record.status.value,
                    "phase": record.failure.phase.value,
                    "reason": record.failure.reason,
                }
            )
    if request.is_json:
        data = {
            "study": name,
            "num_trials": len(trials),
            "counts": dict(sorted(counts.items())),
            "failures": failures,
            "matches": matches,
            "problems": [
                {"path": str(p.path), "reason": p.reason} for p in reading.problems
            ],
        }
        click.echo(json.dumps(data, indent=2))
    else:
        listed = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()))
        now = _now(store, trials, found) if is_running else ""
        click.echo(one_line(f"{name}: {len(trials)} trials: {listed}{now}"))
        for failure in failures:
            click.echo(
                f"  {failure['trial_id'][:8]}  {failure['trial']}:"
                f" {failure['status']} in {failure['phase']}: {failure['reason']}"
            )
        for line in matches:
            click.echo(one_line(line))
    return name_problems(reading.problems)


def _is_held(store: Store) -> bool:
    """Whether the process that locked the study last is alive; a file names it."""
    holder = lock.read_holder(store.root)
    try:
        return holder is not None and psutil.pid_exists(holder)
    except OverflowError:
        return False


def _state(record: StatusRecord | None, is_running: bool) -> str:
    """Returns the state of a trial: as it ended, or that it runs now."""
    if record is not None:
        return record.status.value
    return "running" if is_running else "missing"


def _now(
    store: Store, trials: Sequence[PlannedTrial], found: Mapping[str, Trial]
) -> str:
    """Says where a running relay is: its generation and its round."""
    alive = [
        planned
        for planned in trials
        if planned.trial_id in found and found[planned.trial_id].status is None
    ]
    rounds = [
        json.loads(lines[-1])["round_index"] + 1
        for planned in alive
        for text in [
            untrusted.read_text(store.trial_dir(planned.trial_id) / TURNS_NAME)
        ]
        for lines in [(text or "").rpartition("\n")[0].splitlines()]
        if lines
    ]
    if not rounds:
        return ""
    number = max(planned.spec.repetition_index for planned in alive) + 1
    return f"; generation {number}, round {max(rounds)}"


def _problems_of_matches(store: Store) -> list[str]:
    """Returns a line for each match that fails or has no answer yet."""
    try:
        matches = load_study(store).matches
    except (
        CorruptRecordError,
        MissingRecordError,
    ):  # the plan is corrupt, which is reported below
        return []
    return [
        running.describe_match(match)
        for match in matches
        if match.outcome is Outcome.DIFFERS or match.has_failed
    ]


def _planned_from(trials: Iterable[Trial]) -> tuple[PlannedTrial, ...]:
    """Returns the trials that were found as planned ones; their modes are unknown."""
    return tuple(
        PlannedTrial.model_construct(
            trial_id=trial.trial_id, case_id="", modes=(), spec=trial.spec
        )
        for trial in trials
    )


def name_problems(problems: Sequence[Problem]) -> int:
    """Prints one line per damaged record, and returns the exit code."""
    for problem in problems:
        click.echo(
            f"error: corrupt record {str(problem.path)!r}: {problem.reason}", err=True
        )
    return exit_codes.USAGE if problems else exit_codes.OK
