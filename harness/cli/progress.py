"""Progress of a running sweep: a live bar on a terminal, plain lines elsewhere.

All of it goes to stderr; stdout is for data.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from harness.planning.estimate import format_duration
from results.records import Control, Order, TrialStatus

if TYPE_CHECKING:
    from harness.run.listener import Progress
    from results.records import PlannedTrial, StatusRecord, TrialResult


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


class PlainProgress:
    """Prints one line per event, for logs and pipes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
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
        left = "" if eta_sec is None else f" ({format_duration(eta_sec)} left)"
        self.note(f"[{self._number}/{self._num_trials}] {describe_trial(trial)}{left}")

    def stage(self, text: str, eta_sec: float | None) -> None:
        """Prints what a relay does now; of the rounds, only the first one."""
        is_round = ": round " in text
        if is_round and self._is_in_rounds:
            return
        self._is_in_rounds = is_round
        left = "" if eta_sec is None else f" ({format_duration(eta_sec)} left)"
        self.note(f"{text}{left}")

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
        self._stream.write(text + "\n")
        self._stream.flush()

    def end(self) -> None:
        """Does nothing."""


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
        self._bar = Bar(
            SpinnerColumn(),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[eta]}"),
            TimeElapsedColumn(),
            TextColumn("{task.description}", markup=False),
            console=self._console,
            transient=True,
            # The default, four redraws per second, takes time from the replicas' cores.
            refresh_per_second=1,
        )
        self._task = self._bar.add_task("", total=None, eta="")

    def begin(self, num_trials: int, num_finished: int) -> None:
        """Shows the bar."""
        self._bar.update(self._task, total=num_trials, completed=num_finished)
        self._bar.start()

    def trial_started(self, trial: PlannedTrial, eta_sec: float | None) -> None:
        """Shows the trial beside the bar."""
        eta = "" if eta_sec is None else f"{format_duration(eta_sec)} left"
        self._bar.update(
            self._task, description=describe_trial(trial), eta=eta, refresh=True
        )

    def stage(self, text: str, eta_sec: float | None) -> None:
        """Shows what a relay does now beside the bar."""
        eta = "" if eta_sec is None else f"{format_duration(eta_sec)} left"
        self._bar.update(self._task, description=text, eta=eta, refresh=True)

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
