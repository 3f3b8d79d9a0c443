"""Linked collectives: fused or not, by kernel or by name, the values are NumPy's."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from collective_calls import SUM, make_call

import replicator
from replicator._tf import compat as _tf_compat
from replicator._tf import dispatch as _tf_dispatch
from replicator.collectives.kinds import all_reduce
from replicator.collectives.kinds.all_gather import AllGather
from replicator.collectives.kinds.all_reduce import AllReduce
from replicator.collectives.kinds.broadcast import Broadcast
from replicator.engine.analysis import plan
from replicator.engine.graph import body
from replicator.engine.link import linker as link
from replicator.engine.link.cross_worker import CrossWorker
from replicator.placement import topology
from replicator.placement.topology import make_topology
from replicator.placement.worker_group import Group, flat_group

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]
GPU = [name.replace("CPU", "GPU") for name in CPU]
_CALLS = iter(range(1000))


def _on(devices, planned_for=None):
    memories = make_topology([[d] for d in planned_for or devices]).memories
    return dataclasses.replace(make_topology([[d] for d in devices]), memories=memories)


def _collective(arrays, kind=SUM, *, n=2):
    return make_call(
        [array.shape for array in arrays],
        kind,
        num_replicas=n,
        dtypes=[tf.as_dtype(array.dtype) for array in arrays],
    )


def _operand(replica_id, name):
    return f"in_{replica_id}_{name.rpartition('_')[2]}"


def _execute(collective, planned_for, per_replica_arrays):
    """Plans for some devices, links on CPUs, runs; returns results[replica][tensor]."""
    n = len(per_replica_arrays)
    (planned,) = plan.make_plan([collective], _on(planned_for[:n]))
    linker = link.Linker(
        _on(CPU[:n], planned_for=planned_for[:n]), f"linked_{next(_CALLS)}"
    )
    linker.link(planned, _operand)
    function = _tf_compat.FunctionDef()
    function.signature.name = f"link_test_{next(_CALLS)}"
    args, dtypes = [], []
    for replica_id, arrays in enumerate(per_replica_arrays):
        for index, array in enumerate(arrays):
            arg = function.signature.input_arg.add(name=f"in_{replica_id}_{index}")
            arg.type = tf.as_dtype(array.dtype).as_datatype_enum
            args.append(tf.constant(array))
    for replica_id in range(n):
        for index, marker in enumerate(collective.markers):
            arg = function.signature.output_arg.add(name=f"out_{replica_id}_{index}")
            arg.type = collective.dtypes[index].as_datatype_enum
            function.ret[arg.name] = str(linker.results[marker][replica_id])
            dtypes.append(collective.dtypes[index])
    function.node_def.extend(linker.nodes)
    _tf_compat.add_function(function)

    @tf.function(autograph=False)
    def run():
        return _tf_dispatch.call_function(function.signature.name, args, dtypes)

    flat = [value.numpy() for value in run()]
    size = len(collective.markers)
    return [flat[r * size : (r + 1) * size] for r in range(n)], linker.nodes


def _number(linker, node, position):
    """The constant that is an input of a node."""
    name = node.input[position].partition(":")[0]
    (const,) = [n for n in linker.nodes if n.name == name]
    return tf.make_ndarray(const.attr["value"].tensor).item()


def _arrays(n, seed=0):
    rng = np.random.default_rng(seed)
    shapes = [(3,), (), (2, 2), (1, 4), (5,)]
    dtypes = [np.float32, np.float32, np.float64, np.float32, np.float64]
    return [
        [
            rng.normal(size=shape).astype(dtype)
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]
        for _ in range(n)
    ]


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("op", ["min", "max"])
def test_fused_extremes_equal_those_of_each_tensor(op, n):
    """Buckets of mixed shapes are packed and unpacked in their places."""
    arrays = _arrays(n)

    results, nodes = _execute(
        _collective(arrays[0], AllReduce(op=op), n=n), GPU, arrays
    )

    assert 2 * n == sum(node.op == "SplitV" for node in nodes)
    for index, expected in enumerate(zip(*arrays, strict=True)):
        for result in results:
            np.testing.assert_array_equal(
                getattr(np, op)(expected, axis=0), result[index]
            )


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_sums_on_owners_equal_numpy_fused_or_not(op, is_fused, monkeypatch):
    """The same values with one transfer per type and with one per tensor."""
    monkeypatch.setattr(all_reduce, "NCCL_DTYPES", frozenset())
    if not is_fused:
        monkeypatch.setattr(plan, "FUSE_BELOW_BYTES", 0)
    arrays = _arrays(3)

    results, nodes = _execute(
        _collective(arrays[0], AllReduce(op=op), n=3), GPU, arrays
    )

    assert (2 if is_fused else 5) == sum(node.op == "AddN" for node in nodes)
    for index, values in enumerate(zip(*arrays, strict=True)):
        for result in results:
            np.testing.assert_allclose(
                getattr(np, op)(values, axis=0), result[index], rtol=1e-6, atol=1e-7
            )


def test_a_bucket_limit_splits_and_keeps_the_values(monkeypatch):
    """Buckets that close in the middle of a call still return every tensor."""
    monkeypatch.setattr(all_reduce, "NCCL_DTYPES", frozenset())
    monkeypatch.setattr(plan, "BUCKET_BYTES", 24)
    arrays = [[np.full(i % 3 + 1, 10 * r + i, np.float32) for i in range(9)]
              for r in range(2)]  # fmt: skip

    results, nodes = _execute(_collective(arrays[0]), GPU, arrays)

    assert 3 <= sum(node.op == "AddN" for node in nodes)
    for index in range(9):
        np.testing.assert_array_equal(
            arrays[0][index] + arrays[1][index], results[1][index]
        )


def test_gather_stacks_and_broadcast_copies():
    """Slices by replica id, and the source's value on every replica."""
    arrays = _arrays(3)

    gathered, _ = _execute(_collective(arrays[0], AllGather(), n=3), CPU, arrays)
    copied, nodes = _execute(
        _collective(arrays[0], Broadcast(source_replica_id=2), n=3), CPU, arrays
    )

    assert [] == nodes
    for index, values in enumerate(zip(*arrays, strict=True)):
        for replica_id in range(3):
            np.testing.assert_array_equal(np.stack(values), gathered[replica_id][index])
            np.testing.assert_array_equal(values[2], copied[replica_id][index])


def test_one_replica_gathers_itself():
    """The replica dimension is there, of size one."""
    results, _ = _execute(
        _collective([np.float32([1, 2])], AllGather(), n=1),
        CPU,
        [[np.float32([1, 2])]],
    )

    assert [[1, 2]] == results[0][0].tolist()


@pytest.mark.parametrize(
    ("has_virtual_gpus", "hint"), [(False, b"nccl"), (True, b"ring")]
)
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_gpus_meet_in_one_op_per_transfer(op, has_virtual_gpus, hint):
    """One op per replica, on its device; NCCL refuses two parts of one GPU."""
    arrays = [np.zeros(4, np.float32), np.zeros(50_000, np.float32), np.float32(0)]
    call = _collective(arrays, AllReduce(op=op), n=3)
    places = dataclasses.replace(_on(GPU[:3]), has_virtual_gpus=has_virtual_gpus)
    (planned,) = plan.make_plan([call], places)
    linker = link.Linker(places, "step")

    linker.link(planned, _operand)

    sums = [node for node in linker.nodes if node.op == "CollectiveReduceV2"]
    by_instance = {}
    for node in sums:
        assert 3 == _number(linker, node, 1)
        assert _number(linker, sums[0], 2) == _number(linker, node, 2)
        assert hint == node.attr["communication_hint"].s
        by_instance.setdefault(_number(linker, node, 3), []).append(node.device)
        # int32 on a GPU is in host memory: the keys cross no device.
        keys = {text.partition(":")[0] for text in node.input[1:4]}
        assert {node.device} == {n.device for n in linker.nodes if n.name in keys}
    assert 2 == len(planned.buckets) == len(by_instance)
    assert [GPU[:3]] * 2 == list(by_instance.values())
    for marker in call.markers:
        by_replica = linker.results[marker]
        devices = {node.name: node.device for node in linker.nodes}
        assert GPU[:3] == [devices[ref.node] for ref in by_replica]


def test_each_gpu_orders_its_own_collectives():
    """An op waits for its predecessor on the same device, and the first for batches."""
    arrays = [np.zeros(50_000, np.float32), np.zeros(60_000, np.float32)]
    (planned,) = plan.make_plan([_collective(arrays, n=2)], _on(GPU[:2]))
    linker = link.Linker(_on(GPU[:2]), "step", first_controls=["batch_0", "batch_1"])

    linker.link(planned, _operand)

    waits = {
        node.name.removeprefix("step/collective_"): [
            text for text in node.input if text.startswith("^")
        ]
        for node in linker.nodes
        if node.op == "CollectiveReduceV2"
    }
    assert {
        "0_0/all_0": ["^batch_0", "^batch_1"],
        "0_0/all_1": ["^batch_0", "^batch_1"],
        "0_1/all_0": ["^step/collective_0_0/all_0"],
        "0_1/all_1": ["^step/collective_0_0/all_1"],
    } == waits


def test_collectives_between_gpus_run_in_the_order_in_which_they_are_ready():
    """A backward pass ends with the first layer: its gradient is not waited for."""
    call = _collective([np.zeros(50_000, np.float32)] * 3, n=2)
    depths = {"operand_0_0": 9, "operand_0_1": 5, "operand_0_2": 1}

    (planned,) = plan.make_plan([call], _on(GPU[:2]), depths)

    assert [(2,), (1,), (0,)] == [bucket.positions for bucket in planned.buckets]


def test_the_same_gpus_always_form_the_same_group():
    """NCCL keeps memory for each group; other GPUs are another one."""
    arrays = [np.zeros(50_000, np.float32)]
    groups = []
    for devices in (GPU[:2], GPU[:2], GPU[2:4]):
        (planned,) = plan.make_plan([_collective(arrays, n=2)], _on(devices))
        linker = link.Linker(_on(devices), "step")
        linker.link(planned, _operand)
        node = next(n for n in linker.nodes if n.op == "CollectiveReduceV2")
        groups.append((_number(linker, node, 2), _number(linker, node, 3)))

    (first, key), (again, other_key), (elsewhere, _) = groups
    assert first == again != elsewhere
    assert key != other_key


def test_two_programs_of_eight_gpus_form_one_group():
    """Sixteen replicas: before, there were eight groups of two, one after the other."""
    gpus = [GPU[0].replace("GPU:0", f"GPU:{index}") for index in range(8)]
    places = make_topology([[name] for name in gpus], num_replicas=16, num_programs=2)
    group = Group(num_workers=2, worker_id=0, order=(0, 1))
    workers = CrossWorker(group, ["batch"], flat_group(places, group))
    arrays = [np.zeros(50_000, np.float32), np.zeros(60_000, np.float32)]
    (planned,) = plan.make_plan(
        [_collective(arrays, AllReduce(op="mean"), n=16)], places
    )
    linker = link.Linker(places, "step", workers)

    linker.link(planned, _operand)

    linker.nodes.extend(workers.nodes)
    sums = [node for node in linker.nodes if node.op == "CollectiveReduceV2"]
    assert "nccl" == planned.algorithm
    assert 8 * len(planned.buckets) == len(sums)
    assert {16} == {_number(linker, node, 1) for node in sums}
    assert 1 == len({_number(linker, node, 2) for node in sums})
    assert not [node for node in linker.nodes if node.op == "AddN"]
    shares = [node for node in linker.nodes if node.name.endswith("/factor")]
    assert {np.float32(1 / 16)} == {
        tf.make_ndarray(node.attr["value"].tensor).item() for node in shares
    }


def test_every_node_the_linker_emits_is_well_formed():
    """Names are unique, inputs exist, and attributes are those the op declares."""
    arrays = _arrays(3)
    nodes = []
    for op in ("sum", "mean", "min"):
        linker = link.Linker(_on(GPU[:3]), f"step_{op}")
        (planned,) = plan.make_plan(
            [_collective(arrays[0], AllReduce(op=op), n=3)], _on(GPU[:3])
        )
        linker.link(planned, _operand)
        nodes += linker.nodes

    names = [node.name for node in nodes]
    assert len(names) == len(set(names))
    for node in nodes:
        declared = {attr.name for attr in _tf_compat.op_def(node.op).attr}
        assert set(node.attr) <= declared
        producers = {body.producer(text) for text in node.input}
        assert producers <= {p for p in producers if p.startswith("in_")} | set(names)


def test_a_whole_step_gives_the_same_with_and_without_fusing(monkeypatch):
    """Training through buckets follows training without them bit by bit."""

    def train(fuse):
        with monkeypatch.context() as patch:
            if fuse:  # as if every device had a memory of its own
                patch.setattr(topology.device_lib, "memory", lambda device: device)
            repl = replicator.InGraphReplicator(
                num_replicas=2,
                devices=["CPU:0", "CPU:1"],
                variable_placement="mirrored",
            )
        with repl.context():
            weights = [tf.Variable(tf.ones([i + 1])) for i in range(6)]

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.add_n([tf.reduce_sum(w * w * x) for w in weights])
            grads = replicator.all_mean(tape.gradient(loss, weights))
            for weight, grad in zip(weights, grads, strict=True):
                weight.assign_sub(0.05 * grad)
            return loss

        xs = replicator.PerReplica([tf.constant(1.0), tf.constant(2.5)])
        for _ in range(3):
            repl.run(step, xs)
        repl.assert_in_sync()
        return [w.numpy().tolist() for w in weights], repl.explain()

    fused, fused_plan = train(fuse=True)
    alone, alone_plan = train(fuse=False)

    assert "1 transfers of which 1 fused" in fused_plan
    assert "6 transfers of which 0 fused" in alone_plan
    assert alone == fused
