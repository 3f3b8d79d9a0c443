"""What a step costs between devices, counted on the graph that TensorFlow executes."""

from __future__ import annotations

import contextlib

import executed_graph
import pytest
from short_resnet import NUM_CONVOLUTIONS, short
from virtual_gpus import take_cpus_for_gpus

import replicator
from workloads.resnet50.workload import WORKLOAD

# A vector per type of statistics, losses and batches: 6 with 2 and with 4 replicas.
MOST_OTHERS = 6
MOST_LAUNCHES = 12
# Of all kernels of a device, by whether it is the whole network.
MOST_KERNELS = {True: 800, False: 160}
# Of the short network on four devices; it has 2,114.
MOST_NODES = 2_200


def create(num_replicas=4):
    """Replicas with copies of variables, as on GPUs."""
    return replicator.create(
        "in_graph",
        num_replicas=num_replicas,
        devices=[f"CPU:{index}" for index in range(num_replicas)],
        variable_placement="mirrored",
        external_writes="never",
    )


def graphs_of(repl, network):
    """The program, and the graph of each device.

    The replicator forgets the step once nobody has the program.
    """
    with network:
        program = WORKLOAD.build(
            repl,
            preset="smoke",
            data="synthetic",
            per_replica_batch_size=2,
            seed=1,
            options={},
        )
    return program, executed_graph.partitions(program.run)


def test_control_transfers_do_not_grow_with_the_network():
    """At most four per replica: each is a wait and a callback on a GPU's stream.

    Values are sent as the plan says: to the owner of a sum and back, from each other
    replica, and as many vectors of statistics and outputs.
    """
    repl = create()
    program, graphs = graphs_of(repl, short())
    found = executed_graph.count(graphs)

    assert found.num_nodes > 1000  # it is the step that was counted
    (step,) = (step for _, step in repl._programs.items())
    del program
    num_sums = sum(len(planned.buckets) for planned in step.plans)
    assert num_sums > NUM_CONVOLUTIONS
    assert found.num_data > 2 * num_sums * 3
    assert found.num_data <= (2 * num_sums + MOST_OTHERS) * 3
    assert found.num_controls <= 4 * 4
    # What ``explain()`` says, to which calls and returned values come.
    assert 0 <= found.num_data - step.edges.num_values <= MOST_OTHERS * 3
    assert 3 == step.edges.num_signals <= found.num_controls
    assert f"{step.edges.num_values} tensor(s) and 3 signal(s)" in repl.explain()


@pytest.mark.parametrize(
    "is_whole", [False, pytest.param(True, marks=pytest.mark.full)]
)
def test_devices_that_meet_in_reductions_send_nothing_for_them(monkeypatch, is_whole):
    """Devices that are taken for GPUs; the full run has the whole ResNet-50.

    No reduction runs before all batches are there, although none has an edge from them.
    """
    take_cpus_for_gpus(monkeypatch.setattr)
    num_replicas, most_nodes = 4, MOST_NODES
    network = short()
    if is_whole:
        # On eight it was so, too: in a process by itself, since tests have four.
        network = contextlib.nullcontext()
        stock = replicator.create("tf_mirrored", num_replicas=num_replicas)
        _, graphs = graphs_of(stock, network)
        most_nodes = executed_graph.count(graphs).num_nodes
    _, graphs = graphs_of(create(num_replicas), network)
    found = executed_graph.count(graphs)

    nodes = [node for graph in graphs for node in graph.node]
    reductions = [node for node in nodes if node.op == "CollectiveReduceV2"]
    reads = {node.name for node in nodes if node.op == "IteratorGetNext"}
    assert 1 <= len(reductions) / num_replicas <= MOST_LAUNCHES
    assert found.num_data <= MOST_OTHERS * (num_replicas - 1)
    assert found.num_controls <= 4 * num_replicas
    assert 1000 < found.num_nodes <= most_nodes
    assert num_replicas == len(reads)
    assert MOST_KERNELS[is_whole] >= max(map(executed_graph.launches, graphs))
    before = executed_graph.before(executed_graph.together(graphs))
    for node in reductions:
        assert reads <= before(node.name)
