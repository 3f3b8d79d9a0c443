"""A program that records a timeline of a few steps, after its measured window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workloads.delegating import Delegating

if TYPE_CHECKING:
    from workloads.replicated import ReplicatedProgram
    from workloads.spec import SanityCheck


class RecordedProgram(Delegating):
    """A program whose last steps are recorded.

    Everything else is that of the program it was made of.

    Attributes:
      original: That program.
    """

    def __init__(self, original: ReplicatedProgram, path: str, num_steps: int) -> None:
        """Remembers what is to be recorded.

        Args:
          original: The program.
          path: Of the file that the first process writes.
          num_steps: Steps to record; as many run in between, and two before.
        """
        super().__init__(original)
        self._path = path
        self._num_left = num_steps

    def sanity(self) -> tuple[SanityCheck, ...]:
        """Records, and then checks what the program checks."""
        num_steps, self._num_left = self._num_left, 0
        if num_steps:
            self.original.record(self._path, num_steps)
        found: tuple[SanityCheck, ...] = self.original.sanity()
        return found
