"""Cases that run in the client of the test cluster, in this order."""

from __future__ import annotations

import functools

import cases

import replicator

CASES = {}


def case(function):
    """Registers a case under its name."""
    CASES[function.__name__] = function
    return function


@functools.cache
def make(num_replicas):
    """A replicator over both workers; they are connected once."""
    return replicator.create(
        "multi_worker_in_graph", num_replicas=num_replicas, connect_timeout_sec=60
    )


def _trajectories(num_replicas):
    return {
        f"{model} {optimizer}": cases.trajectory(make(num_replicas), model, optimizer)
        for model in cases.MODELS
        for optimizer in cases.OPTIMIZERS
    }


@case
def one_replica_per_worker():
    """2 workers x 1 replica."""
    return _trajectories(2)


@case
def two_replicas_per_worker():
    """2 workers x 2 replicas."""
    return _trajectories(4)


@case
def input_modes():
    """Every mode feeds the same examples; several steps in one dispatch too."""
    modes = {
        mode: cases.trajectory(make(4), "dense", "momentum", mode)
        for mode in ("PER_REPLICA", "SINGLE")
    }
    loop = cases.trajectory(make(4), "dense", "momentum", num_steps_per_run=4)
    return {**modes, "loop": loop}
