"""What a conformance case is, and where all of them are kept.

A case is a plain function of a replicator that returns a nest of values. It runs on
every backend: in the test's own process, or in every process of a cluster, where each
sees only the replicas of its worker. What it returned is joined and then compared with
NumPy, or with the same function on a single device.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import replicator
from replicator.catalog import CAPABILITIES

if TYPE_CHECKING:
    from collections.abc import Callable

DEFAULT_RTOL = 1e-5
DEFAULT_ATOL = 1e-6


@dataclasses.dataclass(frozen=True)
class Topology:
    """What a reference needs to know of the job it is compared with."""

    num_replicas: int
    num_workers: int = 1

    @property
    def num_local_replicas(self):
        """Replicas of one worker."""
        return self.num_replicas // self.num_workers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """A function of a replicator, and what must come of it."""

    name: str  # That of the function.
    # Takes a replicator; returns a nest of arrays and ``PerReplica``.
    run: Callable[[Any], Any]
    needs: frozenset[str]  # Capabilities without which a backend skips the case.
    # Gives the expected nest of a topology; a case of no nest asserts by itself.
    reference: Callable[[Topology], Any] | None = None
    # Asserts what the joined nest must fulfil.
    check: Callable[[Topology, Any], None] | None = None
    like_single_device: bool = False  # Whether the expected nest is that of one device.
    num_logical_devices: int = 1  # Devices that a replica is split over.
    min_replicas: int = 1  # Fewest replicas with which it says something.
    max_replicas: int = 1_000_000  # Most replicas with which it says something.
    rtol: float = DEFAULT_RTOL  # Relative tolerance of floats.
    atol: float = DEFAULT_ATOL  # Absolute tolerance of floats.

    @property
    def summary(self):
        return str(self.run.__doc__).partition("\n")[0]


CASES = {}


def case(*needs, **options):
    """Makes the decorated function a case; see ``Case`` for the options."""
    unknown = set(needs) - set(CAPABILITIES)
    if unknown or not needs:
        raise ValueError(f"a case names known capabilities, not {sorted(unknown)}")
    if not {"reference", "check", "like_single_device"} & set(options):
        options["reference"] = lambda _: None

    def register(function):
        name = function.__name__
        if name in CASES or not function.__doc__:
            raise ValueError(f"case {name!r} exists already, or has no docstring")
        CASES[name] = Case(name=name, run=function, needs=frozenset(needs), **options)
        return function

    return register


def share(repl, values):
    """The values of this process' replicas, out of one value per replica of the job."""
    first = repl.first_replica_id
    num_local = repl.num_local_replicas
    return replicator.PerReplica(values[first : first + num_local])


def on_every(topology, value):
    return replicator.PerReplica([value] * topology.num_replicas)
