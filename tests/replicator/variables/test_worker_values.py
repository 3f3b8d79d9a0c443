"""Values of variables between workers: by NCCL on GPUs, in a ring of CPUs elsewhere."""

import dataclasses

import pytest
import tensorflow as tf

from replicator.placement.topology import make_topology
from replicator.placement.worker_group import (
    CPU_GROUP_KEY,
    GPU_GROUP_KEY,
    Group,
)
from replicator.variables import outside_values, worker_values

GPU = "/job:worker/replica:0/task:1/device:GPU:0"
CPU = GPU.replace("GPU", "CPU")


def sum_of(dtype, device, *, has_virtual_gpus=False):
    topology = make_topology([[device]], num_programs=2, num_replicas=2)
    topology = dataclasses.replace(topology, has_virtual_gpus=has_virtual_gpus)
    group = Group(num_workers=2, worker_id=1, order=(0, 1))
    with tf.Graph().as_default() as graph:
        place = outside_values.near(topology, dtype)
        value = tf.zeros([4], dtype)
        worker_values.reduce(value, topology, group, 7, device=place)
    (node,) = [n for n in graph.as_graph_def().node if n.op == "CollectiveReduceV2"]
    (key,) = [n for n in graph.as_graph_def().node if n.name == node.input[2]]
    return (
        node.device,
        node.attr["communication_hint"].s.decode(),
        tf.make_ndarray(key.attr["value"].tensor).item(),
    )


@pytest.mark.parametrize(
    ("dtype", "device", "expected"),
    [
        (tf.float32, GPU, (GPU, "nccl", GPU_GROUP_KEY)),
        (tf.int32, GPU, (CPU, "ring", CPU_GROUP_KEY)),
        (tf.bfloat16, GPU, (CPU, "ring", CPU_GROUP_KEY)),
        (tf.float32, CPU, (CPU, "ring", CPU_GROUP_KEY)),
    ],
)
def test_statistics_stay_on_gpus_where_nccl_takes_them(dtype, device, expected):
    """They went through the CPUs and gRPC."""
    assert expected == sum_of(dtype, device)


def test_statistics_of_parts_of_a_gpu_go_through_cpus():
    """NCCL refuses two of one GPU."""
    found = sum_of(tf.float32, GPU, has_virtual_gpus=True)

    assert (CPU, "ring", CPU_GROUP_KEY) == found
