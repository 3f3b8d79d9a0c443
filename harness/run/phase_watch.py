"""Says what a running trial does, from the file that its first process writes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from harness.trial.rank_file import rank_path
from results.errors import UnavailableRecordError
from results.records.models import Phase
from results.store import untrusted

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PERIOD_SEC: Final = 2.0
"""Rarely enough to take no time from the replicas: a look takes some 50 us."""

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


class PhaseReader:
    """Reads only what was added to a rank file since the last look."""

    def __init__(self, trial_dir: Path) -> None:
        self._path = rank_path(trial_dir, 0)
        self._offset = 0
        self.phase = Phase.LAUNCH
        self.num_evaluations = 0

    def look(self) -> str:
        """Returns what the trial does, in words.

        A line that is malformed is the business of whoever concludes the trial.
        """
        try:
            added = untrusted.read_bytes(self._path, start=self._offset) or b""
        except (untrusted.DamagedFileError, UnavailableRecordError):
            added = b""
        complete = added[: added.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.splitlines():
            # Most lines are steps; they are not worth parsing.
            if line.startswith(b'{"kind": "phase"'):
                self._enter(line)
            elif line.startswith(b'{"kind": "point"'):
                self.num_evaluations += 1
        text = WORDS[self.phase]
        if self.phase is Phase.TRAIN and self.num_evaluations:
            text += f", {self.num_evaluations} evaluated"
        return text

    def _enter(self, line: bytes) -> None:
        try:
            self.phase = Phase(untrusted.parsed(line)["phase"])
        except (ValueError, LookupError, TypeError):
            return


class PhaseWatch:
    """Calls ``show`` with what the trial does, every few seconds, in a ``with`` block.

    The thread belongs to the harness and only reads a file.
    """

    def __init__(
        self,
        trial_dir: Path,
        show: Callable[[str], None],
        period_sec: float = PERIOD_SEC,
    ) -> None:
        self._reader = PhaseReader(trial_dir)
        self._show = show
        self._period_sec = period_sec
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PhaseWatch:  # noqa: PYI034 (Self needs Python 3.11)
        self._thread.start()
        return self

    def __exit__(self, *_details: object) -> None:
        self._is_over.set()
        self._thread.join()

    @property
    def is_watching(self) -> bool:
        """Whether the thread still looks."""
        return self._thread.is_alive()

    def _watch(self) -> None:
        while not self._is_over.wait(self._period_sec):
            self._show(self._reader.look())
