"""What the suite runs on: every backend, in its variants, at several replica counts."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from conformance_cases.registry import Topology

import replicator
from replicator.catalog import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance_cases.registry import Case

NUM_VIRTUAL_DEVICES = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A backend with options, at a number of replicas.

    Attributes:
      backend: Its name in the catalogue.
      variant: What the options are about; empty for the defaults.
      num_replicas: Of the whole job.
      num_workers: Processes that hold replicas.
      make: Makes the replicator in this process.
    """

    backend: str
    num_replicas: int
    variant: str = ""
    num_workers: int = 1
    make: Callable[[int], Any] | None = None

    @property
    def name(self) -> str:
        """For the ids of tests."""
        parts = [self.backend, self.variant, str(self.num_replicas)]
        return "-".join(part for part in parts if part)

    @property
    def topology(self) -> Topology:
        """What references are made for."""
        return Topology(self.num_replicas, self.num_workers)

    def why_not(self, case: Case) -> str | None:
        """The reason why the backend skips a case, or None."""
        lacks = BACKENDS[self.backend].lacks
        for capability in sorted(case.needs):
            if capability in lacks:
                return f"{self.backend} lacks {capability}: {lacks[capability]}"
        return None

    def is_meant(self, case: Case) -> bool:
        """Whether the case says something at this number of replicas."""
        return case.min_replicas <= self.num_replicas <= case.max_replicas


def _cpus(num_replicas: int) -> list[str]:
    return [f"CPU:{index}" for index in range(num_replicas)]


def _in_process(
    backend: str, counts: tuple[int, ...], variant: str = "", **options: Any
) -> list[Target]:
    def make(num_replicas: int) -> Any:
        given = {
            key: value(num_replicas) if callable(value) else value
            for key, value in options.items()
        }
        return replicator.create(backend, num_replicas=num_replicas, **given)

    return [
        Target(backend=backend, num_replicas=count, variant=variant, make=make)
        for count in counts
    ]


IN_PROCESS = [
    *_in_process("single", (1,)),
    *_in_process("in_graph", (1, 2, 4)),
    *_in_process("in_graph", (2,), "devices", devices=_cpus),
    *_in_process(
        "in_graph", (2, 4), "mirrored", devices=_cpus, variable_placement="mirrored"
    ),
    *_in_process("tf_mirrored", (1, 2, 4), devices=_cpus),
]
TARGETS = {target.name: target for target in IN_PROCESS}

# Backend -> why no target of it can run on a machine like this one.
NOT_RUN: dict[str, str] = {}
