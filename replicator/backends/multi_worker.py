"""Synchronous replication over several machines: the two patterns of the paper.

Figure 1 of Buchlovsky et al. 2019: one program with all replicas, or one per worker.
"""

from __future__ import annotations

from typing import Any, ClassVar

from replicator.backends.in_graph import InGraphReplicator
from replicator.catalog import BACKENDS

# The backend of each pattern; their classes import this module.
_BACKENDS = {"between_graph": "multi_worker", "in_graph": "multi_worker_in_graph"}


class MultiWorkerReplicator(InGraphReplicator):
    """Replicas on the devices of several worker processes.

    ``pattern="between_graph"``, the default, makes a
    ``MultiWorkerBetweenGraphReplicator``: every worker runs the user's program.
    ``pattern="in_graph"`` makes a ``MultiWorkerInGraphReplicator``: one client runs it,
    and the other workers run ``python -m replicator.server``. Both are instances of
    this class; their constructors document the arguments.

    Attributes:
      pattern: ``between_graph`` or ``in_graph``.
      num_workers: Worker processes.
    """

    pattern: ClassVar[str] = ""
    num_workers: int

    def __new__(cls, *, pattern: str | None = None, **options: Any) -> Any:
        """Picks the class of a pattern of replication."""
        del options  # the constructor's
        if cls.pattern:
            if pattern not in (None, cls.pattern):
                raise ValueError(
                    f"pattern {pattern!r} is not that of {cls.__name__}, which is "
                    f"{cls.pattern!r}; use MultiWorkerReplicator(pattern={pattern!r})"
                )
            return super().__new__(cls)
        name = "between_graph" if pattern is None else pattern
        if name not in _BACKENDS:
            raise ValueError(
                f"pattern {pattern!r} is not one of {', '.join(map(repr, _BACKENDS))}"
            )
        return super().__new__(BACKENDS[_BACKENDS[name]].load())
