"""What a step costs between devices, counted on the graph that TensorFlow executes."""

from __future__ import annotations

from executed_graph import executed
from short_resnet import NUM_CONVOLUTIONS, short

import replicator
from workloads.resnet50.workload import WORKLOAD

# A vector per type of statistics, losses and batches: 6 with 2 and with 4 replicas.
MOST_OTHERS = 6
CPUS = [f"CPU:{index}" for index in range(4)]


def test_control_transfers_do_not_grow_with_the_network() -> None:
    """At most four per replica: each is a wait and a callback on a GPU's stream.

    With copies, as on GPUs. Devices that share memory have a few more, which are free.
    Values are sent as the plan says: to the owner of a sum and back, from each other
    replica, and as many vectors of statistics and outputs. That is what workers of one
    graph (``multi_worker_in_graph``) send each other.
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
    (step,) = (step for _, step in repl._programs.items())
    num_sums = sum(len(planned.buckets) for planned in step.plans)
    assert num_sums > NUM_CONVOLUTIONS
    assert found.num_data > 2 * num_sums * (len(CPUS) - 1)
    assert found.num_data <= (2 * num_sums + MOST_OTHERS) * (len(CPUS) - 1)
    assert found.num_controls <= 4 * len(CPUS)
