"""Runs a study to its end, shows what was measured, and returns the exit code."""

from __future__ import annotations

import contextlib
import functools
import json
import shlex
import sys
from typing import TYPE_CHECKING

import click

import reports
import results
from harness.cli.exit_codes import ExitCode
from harness.cli.subcommand import console
from harness.errors import Interrupted
from harness.launch import launchers
from harness.machine import owned_folders
from harness.planning import estimate
from harness.planning import plan as plan_lib
from harness.run import sweep as run
from harness.run.progress import make_progress
from harness.run.rounds import interleaved_sec
from results.errors import ResultsError, StudyLostError
from results.figures import conditions
from results.judging.gate import is_decided
from results.study.cases import Study, load_study
from results.study.equivalence import Match, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.run.trial_runner import RunSettings
    from results.records.models import PlannedTrial
    from results.store.study_store import Store

    Conclude = Callable[[Store, Study, Sequence[PlannedTrial]], int]


def note(text: str) -> None:
    click.echo(text, err=True)


def run_until_done(
    store: Store,
    trials: Sequence[PlannedTrial],
    settings: RunSettings,
    conclude: Conclude,
) -> int:
    """Runs what is missing, with more repetitions until a target is reached.

    The report of a sweep is there from its first repetition on, and renewed after each.
    """
    durations = estimate.read_durations(store.root.parent)
    owned_folders.remove_abandoned()
    renew = None
    if settings.measuring.gate is None:
        renew = functools.partial(_renew_report, store)
        note(f"report: {store.report_path} (renewed after each repetition)")
    try:
        with run.stop_signals():
            while True:
                run.run_trials(
                    store, trials, settings, make_progress(), durations, renew
                )
                study = load_study(store)
                if _is_done(study) or settings.changed_code():
                    break
                plan = plan_lib.with_next_repetition(study.plan)
                store.write_plan(plan)
                trials = plan.trials
                if renew is not None and (reason := renew()):
                    note(reason)
    except Interrupted as error:
        note(f"interrupted ({error.signal_name}); finished trials are kept")
        note(f"resume with: {_resume_command(store, settings)}")
        if renew is not None:  # so that the page shows all trials that are kept
            with contextlib.suppress(KeyboardInterrupt):
                renew()
        return ExitCode.INTERRUPTED
    for match in study.matches:
        if match.outcome is not Outcome.MATCHES:
            note(describe_match(match))
    return conclude(store, study, trials)


def _renew_report(store: Store) -> str:
    """Writes the report of what was measured so far; returns why it cannot, or ""."""
    try:
        with run.stop_later():
            reports.write_report(store, store.report_path)
    except StudyLostError:
        raise
    except ResultsError as error:
        return f"the report is not renewed: {error}"
    return ""


def describe_match(match: Match) -> str:
    """Returns one line on replicas that do not match one, or were not checked."""
    if match.outcome is Outcome.NOT_CHECKED:
        return f"{match.label} is not checked against one replica: {match.reason}"
    return f"{match.label} {match.reason}; none of its numbers is used"


def _resume_command(store: Store, settings: RunSettings) -> str:
    if settings.trees:  # only the same command knows the other revision
        return shlex.join(["python", "-m", "harness", *sys.argv[1:]])
    name = settings.launcher.name
    words = [] if name == launchers.DEFAULT else ["--launcher", name]
    return shlex.join(
        ["python", "-m", "harness", "sweep", "--study", str(store.root), *words]
    )


def conclude_sweep(
    store: Store, study: Study, trials: Sequence[PlannedTrial], *, is_json: bool
) -> int:
    _conclude(store, is_json=is_json)
    # Replicas that do not match one are not sane; a trial that was measured beside load
    # is ok: its case leaves it out, or says so.
    ok = {entry.trial_id for entry in study.entries if entry.is_measured}
    num_failed = sum(trial.trial_id not in ok for trial in trials)
    if num_failed:
        note(
            f"{num_failed} of {len(trials)} trials are not ok: see"
            f" 'status {store.root}'; --retry failed runs them again"
        )
    if (counts := conditions.count_blocks(study)).busy:
        note(f"{counts.busy}: {counts.reasons[0][0]}")
    num_disturbed = sum(entry.is_disturbed for entry in study.planned)
    if num_disturbed:
        note(
            f"{num_disturbed} trials were measured beside load only, which is no"
            " evidence; --retry failed measures their runs again"
        )
    if num_failed == len(trials):
        return ExitCode.NOTHING_MEASURED
    is_part = num_failed or any(match.has_failed for match in study.matches)
    return ExitCode.SOME_TRIALS_FAILED if is_part else ExitCode.OK


def _is_done(study: Study) -> bool:
    """Whether a study has reached its target or verdict, or has used its time."""
    measuring = study.plan.measuring
    looks = () if measuring.gate is None else measuring.gate.looks
    if measuring.minutes is None or (measuring.target is None and not looks):
        return True
    is_clear = is_decided(study) if looks else conditions.is_precise_enough(study)
    if is_clear or not any(entry.is_measured for entry in study.planned):
        return True
    used_sec = interleaved_sec(entry.trial for entry in study.planned if entry.trial)
    repetition_sec = used_sec / study.plan.repeats
    is_time_over = used_sec + repetition_sec > measuring.minutes * 60
    if is_time_over:
        target = f"the target of {measuring.target or 0:.2%} is not reached"
        note(
            f"{'no clear verdict' if looks else target} after {study.plan.repeats} runs"
            f" and {used_sec / 60:.1f} min: give more --time-budget to continue"
        )
    return is_time_over


def _conclude(store: Store, *, is_json: bool) -> None:
    reports.write_report(store, store.report_path)
    print_summary(store, is_json=is_json)
    note(f"report: {store.report_path}")


def print_summary(store: Store, *, is_json: bool) -> None:
    if is_json:
        click.echo(json.dumps(results.summary(store), indent=2))
    else:
        reports.print_summary(store, console())
