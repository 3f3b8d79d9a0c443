"""The workers whose collectives belong together, and the numbers that name these."""

from __future__ import annotations

import dataclasses

# Group of the first CPU device of every worker.
CPU_GROUP_KEY = 1


class Keys:
    """Draws numbers that name collectives.

    Attributes:
      value: The next one; equal on all workers whenever they have run the same.
    """

    def __init__(self) -> None:
        self.value = 1

    def __next__(self) -> int:
        return self.draw(1)

    def draw(self, count: int) -> int:
        """The first of some numbers in a row."""
        self.value += count
        return self.value - count


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """The workers that a program's collectives join.

    Collectives have no time limit of their own; who runs them has (``Deadline``).

    Attributes:
      num_workers: Worker processes.
      worker_id: Which of them this is.
      order: Worker ids in the order in which a gather has their parts.
      keys: Numbers that name collectives; all workers draw them in the same order.
    """

    num_workers: int
    worker_id: int
    order: tuple[int, ...]
    keys: Keys = dataclasses.field(default_factory=Keys)
