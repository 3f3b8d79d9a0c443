"""Progress of a running sweep: a live bar on a terminal, plain lines elsewhere.

All of it goes to stderr; stdout is for data.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final, TextIO

from harness.planning.estimate import format_duration
from results.records.models import Control, Order, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.run.resident import Progress
    from results.records.models import PlannedTrial, StatusRecord, TrialResult


PLAIN_PERIOD_SEC: Final = 30.0
"""In a log, a trial that runs alone says at most this often what it does."""


def describe_trial(trial: PlannedTrial) -> str:
    """Returns one readable line that names a trial."""
    spec = trial.spec
    modes = "+".join(mode.value for mode in trial.modes)
    budget = "" if spec.budget is None else f", quality run of {spec.budget}"
    control = "" if spec.control is Control.NONE else f", control {spec.control.value}"
    revision = f", revision {spec.revision}" if spec.revision else ""
    repeat = "generation" if spec.order is Order.RELAY else "repetition"
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
        turns = ""
        if result.turns:
            num_void = sum(not turn.is_valid for turn in result.turns)
            void = f" ({num_void} void)" if num_void else ""
            turns = f" in {len(result.turns)} turns{void}"
        return f"ok, {rate}{turns}, took {duration}"
    text = f"{status.status.value}, took {duration}"
    if status.failure is not None:
        text += f" - {status.failure.phase.value}: {status.failure.reason}"
    return text


def left_text(left_sec: float, *, is_most: bool = False) -> str:
    """Says how much time is left, or by how much an estimate was too short."""
    if left_sec >= 0:
        return f"{'at most ' * is_most}{format_duration(left_sec)} left"
    return f"{format_duration(-left_sec)} over the estimate"


class PlainProgress:
    """Prints one line per event, for logs and pipes."""

    def __init__(
        self,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
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
        left = "" if eta_sec is None else f" ({left_text(eta_sec)})"
        self.note(f"[{self._number}/{self._num_trials}] {describe_trial(trial)}{left}")

    def stage(self, text: str, eta_sec: float | None, *, is_most: bool = False) -> None:
        """Prints what a relay does now; of the rounds, only the first one."""
        is_round = ": round " in text
        if is_round and self._is_in_rounds:
            return
        self._is_in_rounds = is_round
        left = "" if eta_sec is None else f" ({left_text(eta_sec, is_most=is_most)})"
        self.note(f"{text}{left}")

    def phase(self, text: str, eta_sec: float | None) -> None:
        """Prints what a trial does now, unless something was printed just before."""
        if self._clock() - self._last_sec >= PLAIN_PERIOD_SEC:
            left = "" if eta_sec is None else f" ({left_text(eta_sec)})"
            self.note(f"[{self._number}/{self._num_trials}]   {text}{left}")

    def trial_ended(
        self, trial: PlannedTrial, status: StatusRecord, result: TrialResult | None
    ) -> None:
        """Prints how it ended."""
        name = ""
        if trial.spec.order is Order.RELAY:
            self._number += 1
            name = f"{describe_trial(trial)}: "
        self.note(
            f"[{self._number}/{self._num_trials}]   "
            f"{name}{describe_end(status, result)}"
        )

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
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )
        from rich.progress import Progress as Bar

        self._console = Console(stderr=True, highlight=False)
        self._left = TimeLeft()
        self._trial = ""
        self._bar = Bar(
            SpinnerColumn(),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            # Formatted at every redraw, so that the time left moves.
            TextColumn("{task.fields[left]}"),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
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
        self._show(self._trial, eta_sec)

    def stage(self, text: str, eta_sec: float | None, *, is_most: bool = False) -> None:
        """Shows what a relay does now beside the bar."""
        self._show(text, eta_sec, is_most=is_most)

    def phase(self, text: str, eta_sec: float | None) -> None:
        """Shows what a trial does now beside its name."""
        self._show(f"{self._trial}: {text}", eta_sec)

    def _show(self, text: str, eta_sec: float | None, *, is_most: bool = False) -> None:
        self._left.set(eta_sec, is_most=is_most)
        self._bar.update(self._task, description=text, refresh=True)

    def trial_ended(
        self, trial: PlannedTrial, status: StatusRecord, result: TrialResult | None
    ) -> None:
        """Prints how it ended above the bar."""
        style = "green" if status.status is TrialStatus.OK else "red"
        self._console.print(
            f"{describe_trial(trial)}: {describe_end(status, result)}",
            style=style,
            markup=False,
        )
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
