"""Worker groups: workers that take part in the same collectives, and their keys."""

from __future__ import annotations

import dataclasses

# Group of the first CPU device of every worker.
CPU_GROUP_KEY = 1


class Keys:
    """Draws the instance keys of collectives.

    Attributes:
      value: The next key; identical on all workers that have run the same program.
    """

    def __init__(self) -> None:
        self.value = 1

    def __next__(self) -> int:
        return self.draw(1)

    def draw(self, count: int) -> int:
        """Draws ``count`` consecutive keys; returns the first."""
        self.value += count
        return self.value - count


@dataclasses.dataclass(frozen=True, kw_only=True)
class Group:
    """The workers that take part in a program's collectives.

    Collectives have no timeout of their own; their caller sets one (``Deadline``).

    Attributes:
      num_workers: Worker processes.
      worker_id: Index of this process.
      order: Worker ids in the order in which a gather returns their parts.
      keys: Instance keys; all workers draw them in the same order.
    """

    num_workers: int
    worker_id: int
    order: tuple[int, ...]
    keys: Keys = dataclasses.field(default_factory=Keys)
