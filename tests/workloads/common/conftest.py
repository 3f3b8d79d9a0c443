"""Replicators on virtual devices for layers whose computation spans replicas."""

from __future__ import annotations

from typing import Any

import pytest

import replicator

CPUS = ["CPU:0", "CPU:1"]
MAKERS = {
    "in_graph": lambda: replicator.create("in_graph", num_replicas=2),
    "in_graph_mirrored": lambda: replicator.create(
        "in_graph", num_replicas=2, devices=CPUS, variable_placement="mirrored"
    ),
    "tf_mirrored": lambda: replicator.create(
        "tf_mirrored", num_replicas=2, devices=CPUS
    ),
}


@pytest.fixture(params=sorted(MAKERS))
def two_replicas(request: Any) -> Any:
    """Two replicas, in each placement of variables, and on the stock strategy."""
    return MAKERS[request.param]()


@pytest.fixture
def one_replica() -> Any:
    """One device, the truth."""
    return replicator.create("single", num_replicas=1)
