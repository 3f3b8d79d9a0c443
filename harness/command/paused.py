"""A program that is stopped between its turns: a line that it prints ends a step.

It knows nothing of a study. This process keeps to the protocol of the client for it:
while it waits for a command of the harness, every process of the program is stopped
(SIGSTOP), and continues (SIGCONT) when a step begins. The harness has the clock, so the
program may have any; what it prints after it was told to stop, and before it stands,
belongs to no turn.
"""

from __future__ import annotations

import os
import select
from typing import TYPE_CHECKING, Any, Final

from harness.client.scaling_client import (
    ADDRESS_VARIABLE,
    Channel,
    StudyRun,
    read_trial,
)
from harness.command import metric
from harness.command.errors import CommandError, ReadingError
from harness.command.first_cause import described
from harness.command.kept_output import KeptOutput
from harness.command.program_use import ProgramMemory, ProgramUse
from harness.command.reader import LineReader, Reading, check_missed
from harness.command.running import Run, descendants
from harness.command.stopping import Stopping
from harness.trial.ending import signal_name
from results.records.program import STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from harness.client.scaling_client import RankFile, TimedStep
    from results.records.models import TrialSpec

_CHUNK_BYTES: Final = 2**16
_CLIENT_SAYS: Final = "scaling_client: "
"""How the client begins a line on stderr: it has no trial of its own here."""
_NEW_EPOCH: Final = (0, 1)
"""Numbers at which a program may count anew."""


class PausingChannel(Channel):
    """The connection to the harness, at whose end a program stands while it waits."""

    program: Stopping
    skip: Callable[[], None]

    def ask(self, state: str, **facts: Any) -> dict[str, Any]:
        """Says what was reached; the program stands until the next command and after.

        Raises:
          LostHarnessError: There will be none.
        """
        self.program.stop()
        self.skip()
        return super().ask(state, **facts)


class PausedTrial:
    """One trial of such a program.

    Args:
      spec: What was asked for.
      words: The command.
      variables: Its environment.
      file: Receives what is observed.
    """

    def __init__(
        self,
        spec: TrialSpec,
        words: Sequence[str],
        variables: Mapping[str, str],
        file: RankFile,
    ) -> None:
        assert spec.program is not None
        self._words, self._file = words, file
        # A client in the program would be a second process of the same rank.
        self._variables = {**variables}
        self._variables.pop(ADDRESS_VARIABLE, None)
        self._metric_text = spec.program.metric
        of = metric.parse(self._metric_text)
        assert of.pattern is not None
        self._lines = [
            LineReader(of.pattern, "--metric", of.quantity, of.notation) for _ in "12"
        ]
        self._kept = (KeptOutput(1), KeptOutput(2))
        self._running = Run(is_sampled=False)
        self._program = Stopping(descendants)
        self._last: int | None = None
        self._num_steps = self._num_bunched = self._num_pauses = 0
        self._run: StudyRun | None = None
        self._step: TimedStep | None = None

    def run(self, folder: Path) -> int:
        """Runs the program until the harness has seen enough; returns 0.

        Raises:
          CommandError: It ended before, or did not print what was asked for.
          ReadingError: What it printed says nothing clear.
          LostHarnessError: The harness has exited.
        """
        words = self._words
        self._run = self._connect()
        self._step = self._run.next_step()
        try:
            self._running.run(words, folder, self._variables, self._receive, 0)
        finally:
            for kept in self._kept:
                kept.end()
        if not self._running.is_ended:
            raise CommandError(self._why_too_early())
        check_missed(self._lines)
        if 2 * self._num_bunched > self._num_steps:
            raise ReadingError(
                f"{self._num_bunched} of {self._num_steps} lines came in one piece with"
                " the one before, so nobody knows when a step ended: flush the output"
                " after each line"
            )
        return 0

    def _connect(self) -> StudyRun:
        channel = PausingChannel.from_environment(0)
        if isinstance(channel, PausingChannel):
            channel.program, channel.skip = self._program, self._skip
        return StudyRun(
            read_trial(self._file.directory),
            self._file,
            channel,
            0,
            1,
            use=ProgramUse(self._program.stop),
            memory=ProgramMemory(self._program.stop if channel else descendants),
        )

    def tail(self) -> str:
        """Returns the end of what the program printed."""
        return "\n".join(filter(None, (kept.tail for kept in self._kept)))

    def _receive(self, stream: int, chunk: bytes, ns: int) -> bool:
        """Takes what was printed; whether the harness has seen enough."""
        try:
            return self._take(stream, chunk, ns)
        finally:
            self._program.go_on()  # also where it is to be ended

    def _take(self, stream: int, chunk: bytes, ns: int) -> bool:
        num_pauses = self._num_pauses
        found = self._read(stream, chunk, ns)
        self._num_bunched += max(0, len(found) - 1)
        for _ in found:
            if self._num_pauses > num_pauses:
                break  # printed before it stood
            assert self._run is not None
            assert self._step is not None
            self._step.done()
            if not self._num_steps:
                self._program.find()
            self._num_steps += 1
            self._step = self._run.next_step()
            if self._step is None:
                return True
        return False

    def _read(self, stream: int, chunk: bytes, ns: int) -> list[Reading]:
        """Returns the lines of a chunk that end a step, each counted."""
        if chunk:
            self._kept[stream].add(chunk)
        found = list(self._lines[stream].feed(chunk, ns))
        for reading in found:
            number, before = int(reading.value), self._last
            if number != reading.value:
                raise ReadingError(
                    f"{reading.where} has {reading.value:g}, which is not the number of"
                    f" a step; put the group of --metric {STEP}= around it"
                )
            if before is not None and number not in (before + 1, *_NEW_EPOCH):
                raise ReadingError(
                    f"the number of {self._metric_text!r} went from {before} to"
                    f" {number}: a line ends one step, and has its number; let the"
                    " program print each step"
                )
            self._last = number
        return found

    def _skip(self) -> None:
        """Reads what was printed before the program stood: it is of no turn."""
        self._num_pauses += 1
        for stream, descriptor in enumerate(self._running.streams):
            while select.select([descriptor], [], [], 0)[0]:
                chunk = os.read(descriptor, _CHUNK_BYTES)
                if not chunk:  # its end; whoever reads on sees it again
                    break
                self._read(stream, chunk, 0)

    def _why_too_early(self) -> str:
        code = self._running.exit_code or 0
        how = f"exited with code {code}"
        if code < 0:
            how = f"ended with signal {signal_name(-code)}"
        elif not code:
            how = "ended well"
        last = described(self._kept[1].last_bytes, self._kept[0].last_bytes)
        if f": '{_CLIENT_SAYS}" in last:
            return (
                f"the command {how}: it connects by scaling_client, so its steps are"
                " not read from lines; give --metric client, with --pausable if its"
                " threads compute between its turns"
            )
        if not self._num_steps:
            return (
                f"the command {how}, and no line that it printed matches --metric"
                f" {self._metric_text!r}; {last}"
            )
        return (
            f"the command {how} after {self._num_steps} steps, before the harness had"
            " seen enough; give it more steps than a study takes, it is ended then;"
            f" {last}"
        )
