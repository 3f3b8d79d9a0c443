"""Replicators on virtual devices for layers whose computation spans replicas."""

from __future__ import annotations

from typing import Any

import pytest

import replicator
from replicator.placement import devices

# Virtual devices must exist before TensorFlow runs its first op, so at collection; as
# many as the replicator's own tests want in the same process.
devices.split_cpu(4)

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
