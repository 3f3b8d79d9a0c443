"""Measuring controls: replicators whose replicas do not communicate.

They exist to be timed beside the replicator of the same backend: the difference is the
communication that the step waits for. Their replicas diverge, so what belongs to
training is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicator.errors import MeasuringControlError

if TYPE_CHECKING:
    from replicator.placement.topology import JobFacts

EXPLANATION = (
    "without_communication: a measuring control, whose replicas diverge. Nothing is "
    "communicated: every collective of the plan is replaced by the replica's own value"
)


def refuse(replicator: JobFacts, what: str) -> None:
    """Rejects what needs replicas that communicate."""
    if replicator.without_communication:
        raise MeasuringControlError(
            f"{what} does not work with without_communication=True: the replicas of "
            "this measuring control do not communicate, so they diverge; create the "
            "replicator without this option to train"
        )
