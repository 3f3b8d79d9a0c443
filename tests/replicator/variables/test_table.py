"""How the values of copies meet: over which replicas, and by which kind of op."""

import dataclasses

import pytest
import tensorflow as tf

from replicator.core.devices import CPU_GROUP_KEY, GPU_GROUP_KEY, Group, make_topology
from replicator.variables import coherence, kinds
from replicator.variables.kinds import Kind
from replicator.variables.table import VariableTable

WORKER_GPU = "/job:worker/replica:0/task:1/device:GPU:0"
WORKER_CPU = WORKER_GPU.replace("GPU", "CPU")
BY_NCCL = WORKER_GPU, "nccl", GPU_GROUP_KEY
IN_A_RING = WORKER_CPU, "ring", CPU_GROUP_KEY


@pytest.mark.parametrize(
    ("dtype", "device", "has_virtual_gpus", "expected"),
    [
        (tf.float32, WORKER_GPU, False, BY_NCCL),
        (tf.int32, WORKER_GPU, False, IN_A_RING),
        (tf.bfloat16, WORKER_GPU, False, IN_A_RING),
        (tf.float32, WORKER_CPU, False, IN_A_RING),
        # NCCL refuses two of one GPU.
        (tf.float32, WORKER_GPU, True, IN_A_RING),
    ],
)
def test_statistics_stay_on_gpus_where_nccl_takes_them(
    dtype, device, has_virtual_gpus, expected
):
    topology = make_topology([[device]], num_programs=2, num_replicas=2)
    topology = dataclasses.replace(topology, has_virtual_gpus=has_virtual_gpus)
    group = Group(num_workers=2, worker_id=1, order=(0, 1))
    with tf.Graph().as_default() as graph:
        place = kinds.reduction_device(topology, dtype)
        kinds.Workers(topology, group).reduce(tf.zeros([4], dtype), 7, place)
    nodes = {node.name: node for node in graph.as_graph_def().node}
    (node,) = [n for n in nodes.values() if n.op == "CollectiveReduceV2"]
    key = tf.make_ndarray(nodes[node.input[2]].attr["value"].tensor).item()

    hint = node.attr["communication_hint"].s.decode()
    assert expected == (node.device, hint, key)


def test_a_checkpoint_has_the_mean_of_partial_variables_over_all_programs():
    """Two replicas here with a sum of 2, and two elsewhere with 10; others stay."""
    cpus = [[f"/job:localhost/replica:0/task:0/device:CPU:{i}"] for i in (0, 1)]
    topology = make_topology(cpus, is_mirrored=True, num_replicas=4)
    table = VariableTable(topology)
    entries = [
        table.require(tf.Variable([0.0, 0.0]), kind)
        for kind in (Kind.MIRRORED, Kind.PARTIAL, Kind.LOCAL)
    ]
    for entry in entries:
        for replica, copy in enumerate(entry.copies):
            copy.assign([2.0 * replica, 5.0])
    here = []

    def add_up(sums):
        here.extend(each.numpy().tolist() for each in sums)
        return [each + tf.constant([10.0, 10.0]) for each in sums]

    coherence.consolidate(entries, topology, add_up)

    mirrored, partial, local = (
        [copy.numpy().tolist() for copy in entry.copies] for entry in entries
    )
    assert [[2.0, 10.0]] == here
    assert [[3.0, 5.0]] * 2 == partial
    assert [3.0, 5.0] == entries[1].variable.numpy().tolist()
    assert [[0.0, 5.0], [2.0, 5.0]] == mirrored == local
    here.clear()
    coherence.consolidate([entries[0], entries[2]], topology, add_up)
    assert [] == here  # nobody communicates
