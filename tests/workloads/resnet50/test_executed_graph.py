"""What a step costs between devices, counted on the graph that TensorFlow executes."""

import contextlib

import graphs as executed_graph
import pytest
from small_programs import NUM_CONVOLUTIONS, build_whole, short
from tiny_models import take_cpus_for_gpus

import replicator

# A vector per type of statistics, losses and batches: 6 with 2 and with 4 replicas.
MOST_OTHERS = 6
NUM_REPLICAS = 4
MOST_LAUNCHES = 12
# Of all kernels of a device, by whether it is the whole network.
MOST_KERNELS = {True: 800, False: 160}
# Of the short network on four devices; it has 2,114.
MOST_NODES = 2_200


def graphs_of(network, backend="in_graph", **options):
    if backend == "in_graph":
        options = {
            "devices": [f"CPU:{index}" for index in range(NUM_REPLICAS)],
            "variable_placement": "mirrored",
            "external_writes": "never",
        }
    repl = replicator.create(backend, num_replicas=NUM_REPLICAS, **options)
    with network:
        program = build_whole("resnet50", repl, per_replica_batch_size=2)
    return program, executed_graph.partitions(program.run)


def test_control_transfers_do_not_grow_with_the_network():
    """At most four per replica: each is a wait and a callback on a GPU's stream.

    Values are sent as the plan says: to the owner of a sum and back, from each other
    replica, and as many vectors of statistics and outputs.
    """
    program, graphs = graphs_of(short())
    found = executed_graph.count(graphs)

    assert found.num_nodes > 1000  # it is the step that was counted
    (step,) = (step for _, step in program._repl._programs.items())
    num_sums = sum(len(planned.buckets) for planned in step.plans)
    assert num_sums > NUM_CONVOLUTIONS
    assert 2 * num_sums * 3 < found.num_data <= (2 * num_sums + MOST_OTHERS) * 3
    assert found.num_controls <= 4 * 4


@pytest.mark.parametrize(
    "is_whole", [False, pytest.param(True, marks=pytest.mark.full)]
)
def test_devices_that_meet_in_reductions_send_nothing_for_them(monkeypatch, is_whole):
    take_cpus_for_gpus(monkeypatch.setattr)
    most_nodes, network = MOST_NODES, short()
    if is_whole:
        network = contextlib.nullcontext()
        _, graphs = graphs_of(network, "tf_mirrored")
        most_nodes = executed_graph.count(graphs).num_nodes
    _, graphs = graphs_of(network)
    found = executed_graph.count(graphs)

    nodes = [node for graph in graphs for node in graph.node]
    reductions = [node for node in nodes if node.op == "CollectiveReduceV2"]
    reads = {node.name for node in nodes if node.op == "IteratorGetNext"}
    assert 1 <= len(reductions) / NUM_REPLICAS <= MOST_LAUNCHES
    assert found.num_data <= MOST_OTHERS * (NUM_REPLICAS - 1)
    assert found.num_controls <= 4 * NUM_REPLICAS
    assert 1000 < found.num_nodes <= most_nodes
    assert NUM_REPLICAS == len(reads)
    assert MOST_KERNELS[is_whole] >= max(map(executed_graph.launches, graphs))
    before = executed_graph.before(executed_graph.together(graphs))
    for node in reductions:
        assert reads <= before(node.name)
