"""Each GPU's cores are on the NUMA node that it is attached to."""

from hypothesis import given
from hypothesis import strategies as st

from harness.machine.topology import CpuTopology, LogicalCpu
from harness.placement import allocation


def _cpus(num_nodes, per_node):
    return [
        LogicalCpu(cpu=cpu, node=cpu // per_node, package=cpu // per_node, core=cpu)
        for cpu in range(num_nodes * per_node)
    ]


def _nodes_of_gpus(cpus, num_per_gpu, count):
    starts = range(0, count * num_per_gpu, num_per_gpu)
    return [{cpu.node for cpu in cpus[i : i + num_per_gpu]} for i in starts]


def test_four_gpus_on_each_of_two_nodes_get_cores_of_their_own():
    """GPUs 4 to 7 are on node 1; cores are numbered across the nodes."""
    cpus = _cpus(2, 48)
    nodes = [0, 0, 0, 0, 1, 1, 1, 1]
    ordered = allocation.near_gpus(cpus, 8, nodes)

    assert [{node} for node in nodes] == _nodes_of_gpus(ordered, 8, 8)


def test_gpus_of_node_1_alone_leave_node_0_alone():
    """As with CUDA_VISIBLE_DEVICES=4,5."""
    ordered = allocation.near_gpus(_cpus(2, 48), 24, [1, 1])

    assert [{1}, {1}] == _nodes_of_gpus(ordered, 24, 2)


def test_a_trial_takes_the_cores_near_its_gpus():
    """One process has the cores of all its GPUs; two GPUs, one on each node."""
    placed = allocation.place(
        CpuTopology(cpus=tuple(_cpus(2, 8))),
        num_replicas=2,
        cores_per_replica=4,
        device="gpu",
        gpu_nodes=[0, 1],
    )

    assert ((0, 1, 2, 3, 8, 9, 10, 11),) == placed.cpusets
    assert "exclusive" == placed.device_sharing


def test_a_node_with_too_few_cores_is_completed_from_others():
    """No GPU takes cores of a node that another GPU needs, while there are others."""
    ordered = allocation.near_gpus(_cpus(3, 4), 3, [0, 0, 1])

    assert [0, 1, 2, 3, 7, 8, 4, 5, 6] == [cpu.cpu for cpu in ordered[:9]]


@given(
    num_nodes=st.integers(1, 4),
    per_node=st.integers(1, 9),
    num_per_gpu=st.integers(1, 6),
    nodes=st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=9),
)
def test_no_core_is_lost_or_given_twice(num_nodes, per_node, num_per_gpu, nodes):
    """Whatever the kernel says; without nodes the order stays as it was."""
    cpus = _cpus(num_nodes, per_node)
    ordered = allocation.near_gpus(cpus, num_per_gpu, nodes)

    assert cpus == sorted(ordered, key=lambda cpu: cpu.cpu)
    assert cpus == allocation.near_gpus(cpus, num_per_gpu, [None] * len(nodes))
