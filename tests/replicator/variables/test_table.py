"""Which variables replicas use for the user's own, and how their values meet."""

import dataclasses

import pytest
import tensorflow as tf

from replicator.core.topology import (
    CPU_GROUP_KEY,
    GPU_GROUP_KEY,
    Group,
    make_topology,
)
from replicator.variables import coherence
from replicator.variables import values as values_lib
from replicator.variables.kinds import Kind
from replicator.variables.table import VariableTable
from replicator.variables.writes import state

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]


def make(num_local=3, *, is_mirrored=True, **programs):
    return VariableTable(
        make_topology(
            [[device] for device in CPU[:num_local]],
            is_mirrored=is_mirrored,
            **programs,
        )
    )


def values(entry):
    return [copy.numpy().tolist() for copy in entry.copies]


@pytest.fixture
def variable():
    with tf.device(CPU[0]):
        return tf.Variable([1.0, 2.0], name="scope/v", trainable=False)


def local_sum(value):
    return tf.Variable(
        value,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )


@pytest.mark.parametrize(
    ("num_replicas", "kind"), [(1, Kind.MIRRORED), (2, Kind.LOCAL)]
)
def test_the_kind_of_an_unused_variable_is_what_its_flags_say(num_replicas, kind):
    """With one replica there is nothing to tell apart."""
    assert kind is make(num_replicas).kind(local_sum([1.0]))


def test_bytes_count_every_copy_once_on_its_device(variable):
    """Unused variables once, shared copies once."""
    with tf.device(CPU[1]):
        unused = tf.Variable(tf.zeros([5]))
    mirrored, shared = make(2), make(2, is_mirrored=False)
    for table in (mirrored, shared):
        table.require(variable, Kind.MIRRORED)

    assert {CPU[0]: 8, CPU[1]: 8 + 20} == mirrored.bytes_by_device([variable, unused])
    assert {CPU[0]: 8, CPU[1]: 20} == shared.bytes_by_device([variable, unused])
    assert {} == mirrored.bytes_by_device([])


def test_a_restore_takes_partial_variables_without_copies(variable):
    """One replica on each of two workers: there is nothing to reset."""
    table = make(1, num_replicas=2, num_programs=2)
    entry = table.require(variable, Kind.PARTIAL)

    table.restore([])

    assert entry.seen is None
    assert [[1.0, 2.0]] == values(entry)


@pytest.fixture
def consolidated():
    """Settles copies of given values; returns the entries and what was added up."""

    def consolidate(kinds, num_replicas=2, add_up=list, in_all=None):
        topology = make_topology(
            [[device] for device in CPU[:num_replicas]],
            is_mirrored=True,
            num_replicas=in_all,
        )
        table = VariableTable(topology)
        variables = [tf.Variable([0.0, 0.0]) for _ in kinds]
        entries = [
            table.require(v, kind) for v, kind in zip(variables, kinds, strict=True)
        ]
        for index, entry in enumerate(entries):
            for replica, copy in enumerate(entry.copies):
                copy.assign([2.0 * replica, 10.0 * index])
        calls = []

        def listen(sums):
            calls.append([each.numpy().tolist() for each in sums])
            return add_up(sums)

        coherence.consolidate(entries, topology, listen)
        return entries, calls

    return consolidate


@pytest.mark.parametrize("num_replicas", [2, 4])
def test_all_copies_become_their_mean(consolidated, num_replicas):
    """The user's own is among them, and known to agree with them."""
    (entry,), _ = consolidated([Kind.PARTIAL], num_replicas)

    assert [[num_replicas - 1.0, 0.0]] * num_replicas == values(entry)
    assert [num_replicas - 1.0, 0.0] == entry.variable.numpy().tolist()
    expected = state(entry.variable, Kind.PARTIAL).numpy().tolist()
    assert expected == entry.seen.numpy().tolist()


def test_other_kinds_are_left_alone(consolidated):
    """Only what counts as a mean becomes one."""
    entries, calls = consolidated([Kind.MIRRORED, Kind.PARTIAL, Kind.LOCAL])

    assert [[0.0, 0.0], [2.0, 0.0]] == values(entries[0])
    assert [[1.0, 10.0]] * 2 == values(entries[1])
    assert [[0.0, 20.0], [2.0, 20.0]] == values(entries[2])
    assert [[[2.0, 20.0]]] == calls


def test_without_partial_variables_nobody_communicates(consolidated):
    _, calls = consolidated([Kind.MIRRORED, Kind.LOCAL])

    assert [] == calls


def test_the_mean_is_over_the_replicas_of_all_programs(consolidated):
    """Two here with a sum of 2, two elsewhere with a sum of 10."""
    (entry,), calls = consolidated(
        [Kind.PARTIAL],
        add_up=lambda sums: [each + tf.constant([10.0, 0.0]) for each in sums],
        in_all=4,
    )

    assert [[[2.0, 0.0]]] == calls
    assert [[3.0, 0.0]] * 2 == values(entry)


WORKER_GPU = "/job:worker/replica:0/task:1/device:GPU:0"
WORKER_CPU = WORKER_GPU.replace("GPU", "CPU")


def sum_of(dtype, device, *, has_virtual_gpus):
    topology = make_topology([[device]], num_programs=2, num_replicas=2)
    topology = dataclasses.replace(topology, has_virtual_gpus=has_virtual_gpus)
    group = Group(num_workers=2, worker_id=1, order=(0, 1))
    with tf.Graph().as_default() as graph:
        place = values_lib.reduction_device(topology, dtype)
        value = tf.zeros([4], dtype)
        values_lib.reduce(value, topology, group, 7, device=place)
    (node,) = [n for n in graph.as_graph_def().node if n.op == "CollectiveReduceV2"]
    (key,) = [n for n in graph.as_graph_def().node if n.name == node.input[2]]
    return (
        node.device,
        node.attr["communication_hint"].s.decode(),
        tf.make_ndarray(key.attr["value"].tensor).item(),
    )


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
    """They went through the CPUs and gRPC."""
    assert expected == sum_of(dtype, device, has_virtual_gpus=has_virtual_gpus)
