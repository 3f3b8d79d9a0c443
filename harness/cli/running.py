"""Runs a study to its end, shows what was measured, and returns the exit code."""

from __future__ import annotations

import contextlib
import functools
import json
import shlex
import sys
import time
from typing import TYPE_CHECKING, Final, TextIO

import click

from harness.cli import exit_codes
from harness.cli.arguments import console
from harness.errors import Interrupted
from harness.launch import launchers
from harness.machine import owned_folders
from harness.planning import estimate
from harness.planning import plan as plan_lib
from harness.planning.estimate import format_duration
from harness.run import sweep as run
from harness.run.rounds import relay_sec
from results.errors import ResultsError, StudyLostError
from results.figures import relay
from results.judging.gate import is_decided
from results.records.models import Control, Order, TrialStatus
from results.study.cases import UNMATCHED, load_study
from results.study.matching import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from harness.run.session import Progress
    from harness.run.trial_runner import RunSettings
    from results.records.models import PlannedTrial, StatusRecord, TrialResult
    from results.store.study_store import Store
    from results.study.cases import Study
    from results.study.matching import Match

    Conclude = Callable[[Store, Study, Sequence[PlannedTrial]], int]


# All of it goes to stderr; stdout is for data.

PLAIN_PERIOD_SEC: Final = 30.0
"""In a log, a trial that runs alone says at most this often what it does."""


def describe_trial(trial: PlannedTrial) -> str:
    """Returns one readable line that names a trial."""
    spec = trial.spec
    modes = "+".join(mode.value for mode in trial.modes)
    budget = "" if spec.budget is None else f", quality run of {spec.budget}"
    control = "" if spec.control is Control.NONE else f", control {spec.control.label}"
    revision = f", revision {spec.revision}" if spec.revision else ""
    repeat = "run" if spec.order is Order.RELAY else "repetition"
    return (
        f"{spec.backend} x{spec.num_replicas} {modes}, batch"
        f" {spec.num_replicas}x{spec.per_replica_batch_size}, {repeat}"
        f" {spec.repetition_index}{control}{budget}{revision}"
    )


def describe_end(status: StatusRecord, result: TrialResult | None) -> str:
    """Returns one line that says how a trial ended."""
    duration = format_duration(status.duration_sec)
    if status.status is TrialStatus.OK and result is not None:
        rate = f"{result.examples_per_sec:.1f} {result.example_unit}/s"
        num_void = sum(not turn.is_valid for turn in result.turns)
        void = f" ({num_void} discarded)" * bool(num_void)
        turns = f" in {len(result.turns)} blocks{void}" * bool(result.turns)
        return f"ok, {rate}{turns}, took {duration}"
    failure = status.failure
    why = "" if failure is None else f" - {failure.phase.value}: {failure.reason}"
    return f"{status.status.label}, took {duration}{why}"


def left_text(left_sec: float, *, is_most: bool = False) -> str:
    """Says how much time is left, or by how much an estimate was too short."""
    if left_sec >= 0:
        return f"{'at most ' * is_most}{format_duration(left_sec)} left"
    return f"{format_duration(-left_sec)} over the estimate"


class PlainProgress:
    """Prints one line per event, for logs and pipes."""

    def __init__(
        self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._last_sec = clock()
        self._num_trials = 0
        self._number = 0
        self._is_in_rounds = False

    def begin(self, num_trials: int, num_finished: int) -> None:
        """Prints the number of trials."""
        self._num_trials = num_trials
        self._number = num_finished
        finished = f", {num_finished} already finished" if num_finished else ""
        self.note(f"{num_trials} trials{finished}")

    def trial_started(self, trial: PlannedTrial, eta_sec: float | None) -> None:
        """Prints the trial and the time remaining."""
        self._number += 1
        self._note_left(f"{self._place} {describe_trial(trial)}", eta_sec)

    def stage(self, text: str, eta_sec: float | None, *, is_most: bool = False) -> None:
        """Prints what a relay does now; of the rounds, only the first one."""
        is_round = ": round " in text
        if is_round and self._is_in_rounds:
            return
        self._is_in_rounds = is_round
        self._note_left(text, eta_sec, is_most=is_most)

    def phase(self, text: str, eta_sec: float | None) -> None:
        """Prints what a trial does now, unless something was printed just before."""
        if self._clock() - self._last_sec >= PLAIN_PERIOD_SEC:
            self._note_left(f"{self._place}   {text}", eta_sec)

    def trial_ended(
        self, trial: PlannedTrial, status: StatusRecord, result: TrialResult | None
    ) -> None:
        """Prints how it ended."""
        name = ""
        if trial.spec.order is Order.RELAY:
            self._number += 1
            name = f"{describe_trial(trial)}: "
        self.note(f"{self._place}   {name}{describe_end(status, result)}")

    @property
    def _place(self) -> str:
        return f"[{self._number}/{self._num_trials}]"

    def _note_left(
        self, text: str, eta_sec: float | None, *, is_most: bool = False
    ) -> None:
        left = "" if eta_sec is None else f" ({left_text(eta_sec, is_most=is_most)})"
        self.note(f"{text}{left}")

    def note(self, text: str) -> None:
        """Prints the line."""
        self._last_sec = self._clock()
        self._stream.write(text + "\n")
        self._stream.flush()

    def end(self) -> None:
        """Does nothing."""


class TimeLeft:
    """A time left that counts down by itself between two estimates."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._end_sec: float | None = None
        self._is_most = False

    def set(self, eta_sec: float | None, *, is_most: bool = False) -> None:
        """Sets a new estimate; None if there is none."""
        self._end_sec = None if eta_sec is None else self._clock() + eta_sec
        self._is_most = is_most

    def __str__(self) -> str:
        """What is left now, or by how much the estimate was too short."""
        if self._end_sec is None:
            return ""
        return left_text(self._end_sec - self._clock(), is_most=self._is_most)


class RichProgress:
    """Shows a bar with the time remaining, below one line per finished trial."""

    def __init__(self) -> None:
        from rich import console, progress

        self._console = console.Console(stderr=True, highlight=False)
        self._left = TimeLeft()
        self._trial = ""
        self._bar = progress.Progress(
            progress.SpinnerColumn(),
            progress.MofNCompleteColumn(),
            progress.BarColumn(bar_width=24),
            # Formatted at every redraw, so that the time left moves.
            progress.TextColumn("{task.fields[left]}"),
            progress.TimeElapsedColumn(),
            progress.TextColumn("{task.description}", markup=False),
            console=self._console,
            transient=True,
            # The default, four redraws per second, takes time from the replicas' cores.
            refresh_per_second=1,
        )
        self._task = self._bar.add_task("", total=None, left=self._left)

    def begin(self, num_trials: int, num_finished: int) -> None:
        """Shows the bar."""
        self._bar.update(self._task, total=num_trials, completed=num_finished)
        self._bar.start()

    def trial_started(self, trial: PlannedTrial, eta_sec: float | None) -> None:
        """Shows the trial beside the bar."""
        self._trial = describe_trial(trial)
        self.stage(self._trial, eta_sec)

    def phase(self, text: str, eta_sec: float | None) -> None:
        """Shows what a trial does now beside its name."""
        self.stage(f"{self._trial}: {text}", eta_sec)

    def stage(self, text: str, eta_sec: float | None, *, is_most: bool = False) -> None:
        """Shows what a relay does now beside the bar: case, rate so far, time left."""
        self._left.set(eta_sec, is_most=is_most)
        self._bar.update(self._task, description=text, refresh=True)

    def trial_ended(
        self, trial: PlannedTrial, status: StatusRecord, result: TrialResult | None
    ) -> None:
        """Prints how it ended above the bar."""
        style = "green" if status.status is TrialStatus.OK else "red"
        text = f"{describe_trial(trial)}: {describe_end(status, result)}"
        self._console.print(text, style=style, markup=False)
        self._bar.advance(self._task)

    def note(self, text: str) -> None:
        """Prints the line above the bar."""
        self._console.print(text, markup=False)

    def end(self) -> None:
        """Removes the bar."""
        self._bar.stop()


def make_progress() -> Progress:
    """Returns the display that fits stderr."""
    return RichProgress() if sys.stderr.isatty() else PlainProgress()


def note(text: str) -> None:
    """Says something on stderr, one line."""
    click.echo(text, err=True)


def run_until_done(
    store: Store,
    trials: Sequence[PlannedTrial],
    settings: RunSettings,
    conclude: Conclude,
) -> int:
    """Runs what is missing, with more generations until a target is reached.

    The report of a sweep is there from its first generation on, and renewed after each.
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
                plan = plan_lib.with_next_generation(study.plan)
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
        return exit_codes.INTERRUPTED
    for match in study.matches:
        if match.outcome is not Outcome.MATCHES:
            note(describe_match(match))
    return conclude(store, study, trials)


def _renew_report(store: Store) -> str:
    """Writes the report of what was measured so far; returns why it cannot, or ""."""
    try:
        with run.stop_later():
            from reports.page import build

            build.write_report(store, store.report_path)
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
    """Writes the report, prints the summary, and returns the exit code."""
    _conclude(store, is_json=is_json)
    statuses = statuses_of(study, [trial.trial_id for trial in trials])
    num_failed = len(statuses) - statuses.count(TrialStatus.OK)
    if num_failed:
        note(
            f"{num_failed} of {len(statuses)} trials are not ok: see"
            f" 'status {store.root}'; --retry failed runs them again"
        )
    if (counts := relay.count_turns(study)).busy:
        note(f"{counts.busy}: {counts.reasons[0][0]}")
    num_disturbed = sum(entry.is_disturbed for entry in study.planned)
    if num_disturbed:
        note(
            f"{num_disturbed} trials were measured beside load only, which is no"
            " evidence; --retry failed measures their runs again"
        )
    if num_failed == len(statuses):
        return exit_codes.NOTHING_MEASURED
    is_part = num_failed or any(match.has_failed for match in study.matches)
    return exit_codes.SOME_TRIALS_FAILED if is_part else exit_codes.OK


def _is_done(study: Study) -> bool:
    """Whether a relay has reached its target or verdict, or has used its time."""
    measuring = study.plan.measuring
    looks = () if measuring.gate is None else measuring.gate.looks
    if measuring.minutes is None or (measuring.target is None and not looks):
        return True
    if looks and is_decided(study):
        return True
    if not looks and relay.is_precise_enough(study):
        return True
    if not any(entry.is_measured for entry in study.planned):
        return True
    used_sec = relay_sec(entry.trial for entry in study.planned if entry.trial)
    generation_sec = used_sec / study.plan.repeats
    is_time_over = used_sec + generation_sec > measuring.minutes * 60
    if is_time_over:
        target = f"the target of {measuring.target or 0:.2%} is not reached"
        note(
            f"{'no clear verdict' if looks else target} after {study.plan.repeats} runs"
            f" and {used_sec / 60:.1f} min: give more --time-budget to continue"
        )
    return is_time_over


def statuses_of(study: Study, trial_ids: Iterable[str]) -> list[TrialStatus | None]:
    """Returns how trials ended; replicas that do not match one are not sane.

    One that was measured beside load is ok: its case leaves it out, or says so.
    """
    found: dict[str, TrialStatus] = {}
    for entry in study.entries:
        if entry.state == UNMATCHED:
            found[entry.trial_id] = TrialStatus.INSANE
        elif entry.is_disturbed:
            found[entry.trial_id] = TrialStatus.OK
        elif entry.trial is not None and entry.trial.status is not None:
            found[entry.trial_id] = entry.trial.status.status
    return [found.get(trial_id) for trial_id in trial_ids]


def _conclude(store: Store, *, is_json: bool) -> None:
    from reports.page import build

    build.write_report(store, store.report_path)
    print_summary(store, is_json=is_json)
    note(f"report: {store.report_path}")


def print_summary(store: Store, *, is_json: bool) -> None:
    """Prints the figures of a study on stdout, as JSON or as a table."""
    if is_json:
        from results.figures.summary import summary

        click.echo(json.dumps(summary(store), indent=2))
    else:
        from reports.exports import exports

        exports.print_summary(store, console())
