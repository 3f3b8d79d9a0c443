"""What a step costs between devices, counted on the graph that TensorFlow executes."""

from __future__ import annotations

from executed_graph import executed
from short_resnet import short

import replicator
from workloads.resnet50.workload import WORKLOAD

CPUS = [f"CPU:{index}" for index in range(4)]


def test_control_transfers_do_not_grow_with_the_network() -> None:
    """At most four per replica: each is a wait and a callback on a GPU's stream.

    With copies, as on GPUs. Devices that share memory have a few more, which are free.
    """
    repl = replicator.create(
        "in_graph",
        num_replicas=4,
        devices=CPUS,
        variable_placement="mirrored",
        external_writes="never",
    )
    with short():
        program = WORKLOAD.build(
            repl,
            preset="smoke",
            data="synthetic",
            per_replica_batch_size=2,
            seed=1,
            options={},
        )
    found = executed(program.run)

    assert found.num_nodes > 1000  # it is the step that was counted
    assert found.num_data > 4
    assert found.num_controls <= 4 * len(CPUS)
