"""Kinds of processes where an engine only numbers its tasks: all workers, or a list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicator.cluster.configuration import KINDS
from replicator.errors import ClusterConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VARIABLE = "REPLICATOR_ROLES"
"""How many tasks of each kind, in the order of their ranks: ``worker:4,ps:1``."""


def of_tasks(environ: Mapping[str, str], num_tasks: int) -> tuple[tuple[str, int], ...]:
    """Returns kind and index of each task, by rank.

    Args:
      environ: Environment variables; without ``VARIABLE``, every task is a worker.
      num_tasks: Tasks of the job.

    Raises:
      ClusterConfigError: The variable is malformed, or counts other tasks.
    """
    text = environ.get(VARIABLE, "") or f"worker:{num_tasks}"
    found: list[tuple[str, int]] = []
    for part in text.split(","):
        kind, _, count = part.strip().partition(":")
        is_number = count.isascii() and count.isdigit()
        if kind not in KINDS or not is_number or kind in {k for k, _ in found}:
            raise ClusterConfigError(
                f"{VARIABLE}={text!r} is not a list of counts by kind: {part!r} is"
                f" wrong; kinds are {', '.join(KINDS)}, each once; write for example"
                " 'worker:4,ps:1'"
            )
        found += [(kind, index) for index in range(int(count))]
    if len(found) != num_tasks:
        raise ClusterConfigError(
            f"{VARIABLE}={text!r} counts {len(found)} processes, but the job has"
            f" {num_tasks} tasks; start as many tasks as there are processes"
        )
    return tuple(found)


def text_of(members: Sequence[tuple[str, int]]) -> str:
    """Returns the value of ``VARIABLE`` for processes in the order of their ranks."""
    kinds = [kind for kind, _ in members]
    return ",".join(f"{kind}:{kinds.count(kind)}" for kind in dict.fromkeys(kinds))


def addresses(
    members: tuple[tuple[str, int], ...], by_rank: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """Returns addresses by kind from addresses by rank."""
    kinds = dict.fromkeys(kind for kind, _ in members)
    return {
        kind: tuple(
            address
            for (own, _), address in zip(members, by_rank, strict=True)
            if own == kind
        )
        for kind in kinds
    }
