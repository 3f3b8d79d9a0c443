"""What belongs to one replicator, and the check that no other one uses it.

Optimizers, inputs and ``PerReplica`` values carry the ``Maker`` of the replicator that
made them: they have its number of replicas, its devices and its way to average.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Any

from replicator.errors import OtherReplicatorError

if TYPE_CHECKING:
    from types import TracebackType


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Maker:
    """Stands for one replicator, without keeping it alive."""

    name: str  # Class of the replicator.
    num_replicas: int  # Replicas of the whole job.
    # Whether a wrapped optimizer updates as those of the other replicators with this
    # flag do, so that they can run its steps.
    wraps_alike: bool = False

    def __str__(self) -> str:
        """What messages call the replicator."""
        return f"{self.name}, num_replicas={self.num_replicas}"


class _Running(threading.local):
    makers: tuple[Maker, ...] = ()


_RUNNING = _Running()


class running:  # noqa: N801 (a function to its callers, without a generator's cost)
    """Inside it, steps of this replicator run, in this thread."""

    def __init__(self, maker: Maker) -> None:
        self._maker = maker

    def __enter__(self) -> None:
        _RUNNING.makers = (*_RUNNING.makers, self._maker)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _RUNNING.makers = _RUNNING.makers[:-1]


def current() -> Maker | None:
    """The replicator whose step runs or is traced in this thread, or None."""
    return _RUNNING.makers[-1] if _RUNNING.makers else None


def check(
    thing: Any,
    user: Maker | None,
    what: str,
    remedy: str,
    *,
    is_portable: bool = False,
) -> None:
    """Rejects what another replicator made."""
    made_by = thing.made_by
    if made_by is None or user is None or made_by is user:
        return
    if not (is_portable and made_by.wraps_alike and user.wraps_alike):
        raise OtherReplicatorError(
            f"{what} was made by another replicator ({made_by}), and cannot be used by "
            f"this one ({user}); {remedy}"
        )
