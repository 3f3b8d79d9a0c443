"""What a sweep shows on stderr while trials run; stdout is for data."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Final

from harness.planning.estimate import format_duration
from harness.trial.rank_file import rank_path
from results.errors import UnavailableRecordError
from results.records.models import Control, Order, Phase, TrialStatus
from results.store import untrusted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from results.records.models import PlannedTrial, StatusRecord, TrialResult


PLAIN_PERIOD_SEC: Final = 30.0
"""In a log, a trial that runs alone says at most this often what it does."""


def describe_trial(trial: PlannedTrial) -> str:
    spec = trial.spec
    modes = "+".join(mode.value for mode in trial.modes)
    budget = "" if spec.budget is None else f", quality run of {spec.budget}"
    control = "" if spec.control is Control.NONE else f", control {spec.control.label}"
    revision = f", revision {spec.revision}" if spec.revision else ""
    repeat = "run" if spec.order is Order.INTERLEAVED else "repetition"
    return (
        f"{spec.backend} x{spec.num_replicas} {modes}, batch"
        f" {spec.num_replicas}x{spec.per_replica_batch_size}, {repeat}"
        f" {spec.repetition_index}{control}{budget}{revision}"
    )


def describe_end(status: StatusRecord, result: TrialResult | None) -> str:
    duration = format_duration(status.duration_sec)
    if status.status is TrialStatus.OK and result is not None:
        rate = f"{result.examples_per_sec:.1f} {result.example_unit}/s"
        num_discarded = sum(not block.is_valid for block in result.blocks)
        discarded = f" ({num_discarded} discarded)" * bool(num_discarded)
        blocks = f" in {len(result.blocks)} blocks{discarded}" * bool(result.blocks)
        return f"ok, {rate}{blocks}, took {duration}"
    failure = status.failure
    why = "" if failure is None else f" - {failure.phase.value}: {failure.reason}"
    return f"{status.status.label}, took {duration}{why}"


def left_text(left_sec: float, *, is_most: bool = False) -> str:
    """Says how much time is left, or by how much an estimate was too short."""
    if left_sec >= 0:
        return f"{'at most ' * is_most}{format_duration(left_sec)} left"
    return f"{format_duration(-left_sec)} over the estimate"


class Progress:
    """Prints one line per event, for logs and pipes."""

    # ``eta_sec`` is the time to the end of the sweep, negative where it takes longer
    # than was estimated; with ``is_most`` the longest.

    def __init__(self) -> None:
        self._last_sec = time.monotonic()
        self._num_trials = 0
        self._number = 0
        self._is_in_rounds = False

    def begin(self, num_trials: int, num_finished: int) -> None:
        self._num_trials = num_trials
        self._number = num_finished
        finished = f", {num_finished} already finished" if num_finished else ""
        self.note(f"{num_trials} trials{finished}")

    def trial_started(self, trial: PlannedTrial, eta_sec: float | None) -> None:
        """A trial starts that runs alone."""
        self._number += 1
        self._note_left(f"{self._place} {describe_trial(trial)}", eta_sec)

    def phase(self, text: str, eta_sec: float | None) -> None:
        """It does something else now; printed unless something was just before."""
        if time.monotonic() - self._last_sec >= PLAIN_PERIOD_SEC:
            self._note_left(f"{self._place}   {text}", eta_sec)

    def stage(self, text: str, eta_sec: float | None, *, is_most: bool = False) -> None:
        """Something else is measured now; of rounds, only the first is printed."""
        is_round = ": round " in text
        if not (is_round and self._is_in_rounds):
            self._note_left(text, eta_sec, is_most=is_most)
        self._is_in_rounds = is_round

    def trial_ended(
        self, trial: PlannedTrial, status: StatusRecord, result: TrialResult | None
    ) -> None:
        name = ""
        if trial.spec.order is Order.INTERLEAVED:
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
        """Prints one line that the user should know."""
        self._last_sec = time.monotonic()
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def end(self) -> None:
        """The sweep is over or interrupted; restores the terminal."""


class LiveProgress(Progress):
    """Shows a bar with the time remaining, below one line per finished trial."""

    def __init__(self) -> None:
        from rich import console, progress

        super().__init__()
        self._console = console.Console(stderr=True, highlight=False)
        self._end_sec: float | None = None
        self._is_most = False
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
        self._task = self._bar.add_task("", total=None, left=self)

    def __str__(self) -> str:
        """The time that is left now, or by how much the estimate was too short."""
        if self._end_sec is None:
            return ""
        return left_text(self._end_sec - time.monotonic(), is_most=self._is_most)

    def begin(self, num_trials: int, num_finished: int) -> None:
        self._bar.update(self._task, total=num_trials, completed=num_finished)
        self._bar.start()

    def trial_started(self, trial: PlannedTrial, eta_sec: float | None) -> None:
        self._trial = describe_trial(trial)
        self.stage(self._trial, eta_sec)

    def phase(self, text: str, eta_sec: float | None) -> None:
        self.stage(f"{self._trial}: {text}", eta_sec)

    def stage(self, text: str, eta_sec: float | None, *, is_most: bool = False) -> None:
        self._end_sec = None if eta_sec is None else time.monotonic() + eta_sec
        self._is_most = is_most
        self._bar.update(self._task, description=text, refresh=True)

    def trial_ended(
        self, trial: PlannedTrial, status: StatusRecord, result: TrialResult | None
    ) -> None:
        style = "green" if status.status is TrialStatus.OK else "red"
        text = f"{describe_trial(trial)}: {describe_end(status, result)}"
        self._console.print(text, style=style, markup=False)
        self._bar.advance(self._task)

    def note(self, text: str) -> None:
        self._console.print(text, markup=False)

    def end(self) -> None:
        self._bar.stop()


def make_progress() -> Progress:
    """Returns the display that fits stderr."""
    return LiveProgress() if sys.stderr.isatty() else Progress()


WORDS: Final = {
    Phase.LAUNCH: "starting",
    Phase.BUILD: "building",
    Phase.FIRST_STEP: "tracing the first step",
    Phase.WARMUP: "warming up",
    Phase.MEASURE: "measuring",
    Phase.TRAIN: "training",
    Phase.SANITY: "checking",
    Phase.REPORT: "reporting",
}


class PhaseWatch:
    """Calls ``show`` with what the trial does, in a ``with`` block."""

    def __init__(
        self, trial_dir: Path, show: Callable[[str], None], period_sec: float
    ) -> None:
        self._path = rank_path(trial_dir, 0)
        self._offset = 0
        self._phase = Phase.LAUNCH
        self._num_evaluations = 0
        self._show = show
        self._is_over = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, args=[period_sec], daemon=True
        )

    def look(self) -> str:
        """Returns what the trial does, in words."""
        try:
            added = untrusted.read_bytes(self._path, start=self._offset) or b""
        except (untrusted.DamagedFileError, UnavailableRecordError):
            added = b""
        complete = added[: added.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.splitlines():
            # Most lines are steps; they are not worth parsing.
            if line.startswith(b'{"kind": "phase"'):
                with contextlib.suppress(ValueError, LookupError, TypeError):
                    self._phase = Phase(untrusted.parsed(line)["phase"])
            self._num_evaluations += line.startswith(b'{"kind": "point"')
        text = WORDS[self._phase]
        if self._phase is Phase.TRAIN and self._num_evaluations:
            text += f", {self._num_evaluations} evaluated"
        return text

    def __enter__(self) -> PhaseWatch:  # noqa: PYI034 (Self needs Python 3.11)
        self._thread.start()
        return self

    def __exit__(self, *_details: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self, period_sec: float) -> None:
        while not self._is_over.wait(period_sec):
            self._show(self.look())
