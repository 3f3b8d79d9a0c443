"""Collectives that are linked: what they give, cost, and in which order they meet.

What tests in one process check on replicators, and cases of jobs of several workers.
"""

import functools
import types
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
from case_cluster import check, check_message
from graphs import before, called_by, gpus_of_workers, linked
from tiny_models import share

import replicator
from replicator.core import devices

OPS = ("sum", "mean", "min", "max")


def pipeline(x):
    return replicator.permute(x, [(r, r + 1) for r in range(_count() - 1)])


def paired(x):
    return replicator.permute(x, [(1, 0)])


def last(x):
    return replicator.broadcast(x, _count() - 1)


def joined(x):
    """The rows of all replicas, whose indices depend on examples and differ."""
    ids = tf.range(tf.shape(x)[0]) + tf.cast(tf.reduce_sum(x) > 1e9, tf.int32)
    ids += 100 * replicator.get_replica_context().replica_id
    return replicator.all_sum(tf.IndexedSlices(x, ids)).values


def _count():
    return replicator.get_replica_context().num_replicas


def _each(function):
    return lambda xs: tf.nest.map_structure(function, xs)


def in_one_call(call):
    """A step that joins all of its tensors in one call."""
    return lambda *xs: call(list(xs))


CALLS = {
    **{op: functools.partial(replicator.all_reduce, op=op) for op in OPS},
    **{
        f"scattered {op}": functools.partial(replicator.reduce_scatter, op=op)
        for op in OPS
    },
    "gather": replicator.all_gather,
    "last": last,
    "dealt": replicator.all_to_all,
    "joined": _each(joined),
    "pipeline": pipeline,
    "paired": paired,
}


def meanings(x):
    """What collectives make of the stacked values of all replicas, for each of them."""
    n, zeros = len(x), np.zeros_like(x[0])
    return {
        **{op: [getattr(x, op)(0)] * n for op in OPS},
        **{f"scattered {op}": np.split(getattr(x, op)(0), n) for op in OPS},
        "gather": [x] * n,
        "last": [x[-1]] * n,
        "dealt": [
            np.concatenate([np.split(value, n)[r] for value in x]) for r in range(n)
        ],
        "joined": [np.concatenate(x)] * n,
        "pipeline": [zeros, *x[:-1]],
        "paired": [x[1], *[zeros] * (n - 1)],
    }


def values(n):
    """By tensor, in two types, a value per replica."""
    rng = np.random.default_rng(0)
    shapes = [((n,), "f4"), ((n, 2), "f4"), ((n, 1, 3), "f8"), ((n,), "f8")]
    return [rng.normal(size=(n, *shape)).astype(dtype) for shape, dtype in shapes]


def unknown_rows(x):
    return tf.compat.v1.placeholder_with_default(x, [None, *x.shape[1:]])


def check_values(repl, *, are_known):
    """Of all collectives in one step; what is alike everywhere is so bit by bit."""
    given = values(repl.num_replicas)
    first = repl.first_replica_id

    def step(xs):
        xs = xs if are_known else tf.nest.map_structure(unknown_rows, xs)
        return {name: call(xs) for name, call in CALLS.items()}

    found = repl.run(step, [share(repl, of_all) for of_all in given])
    for index, of_all in enumerate(given):
        for name, wanted in meanings(of_all).items():
            got = [value.numpy() for value in found[name][index]]
            for want, one in zip(wanted[first : first + len(got)], got, strict=True):
                assert (name, want.dtype) == (name, one.dtype)
                np.testing.assert_allclose(one, want, 1e-5, 1e-6, err_msg=name)
                if name in (*OPS, "gather", "last", "joined"):
                    np.testing.assert_array_equal(one, got[0], err_msg=name)


def specs(shapes=((4,), (4, 2)), dtypes=(tf.float32, tf.float64)):
    return [tf.TensorSpec(shape, dtype) for dtype in dtypes for shape in shapes]


def emitted(repl, step, *given):
    """The nodes that stand for the collectives of a step."""
    nodes = linked(repl, step, *given).node_def
    return [node for node in nodes if "/collective_" in node.name]


def count(nodes, *ops):
    return sum(node.op in ops for node in nodes)


def check_small(repl):
    """TensorFlow's collective ops may crash on tensors without elements."""
    n = repl.num_replicas
    given = [
        np.stack([np.full(shape, r, np.float32) for r in range(n)])
        for shape in ((), (0,), (0, 2), (2, 0, 3))
    ]

    def step(xs):
        one = xs[0][None]
        none = replicator.all_gather(tf.boolean_mask(one, one > 99.0))
        return replicator.all_sum(xs), replicator.all_gather(xs), none

    *found, none = repl.run(step, [share(repl, of_all) for of_all in given])
    for of_all, total, gather in zip(given, *found, strict=True):
        np.testing.assert_array_equal(of_all.sum(0), total[0])
        np.testing.assert_array_equal(of_all, gather[0])
    check((n, 0), none[0].shape)  # which the trace does not know


def plan_of_updates(repl, level):
    """What ``explain`` says of a step whose update is sharded, line by line."""
    with repl.context():
        weights = [tf.Variable(tf.zeros([size])) for size in (900, 800, 700, 600)]
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1), sharded_update=level)

    def step(x):
        optimizer.apply_gradients([(weight * x, weight) for weight in weights])

    linked(repl, step, tf.TensorSpec([]))
    return repl.explain().splitlines()


def const(function, text):
    nodes = {node.name: node for node in function.node_def}
    node = nodes[text.partition(":")[0]]
    return tf.make_ndarray(node.attr["value"].tensor).item(), node


# Of several workers.


@functools.cache
def make_two(num_workers):
    """Two replicas of each worker, whose devices are taken to have their own memory."""
    with mock.patch.object(devices, "memory", str):
        return replicator.create(
            "multi_worker", num_replicas=2 * num_workers, devices=["CPU:0", "CPU:1"]
        )


def two_memories_of_each_worker(repl):
    check_values(make_two(repl.num_workers), are_known=True)
    check_small(repl)


def workers_meet_as_often_as_there_are_transfers(repl):
    """Inside a worker nothing is sent."""
    two = make_two(repl.num_workers)
    shapes = ((two.num_replicas,), (two.num_replicas, 2))
    transfers = {
        # Four tensors of two types: sums are sent in one bucket per type.
        "sum": {"CollectiveReduceV2": 2},
        "scattered sum": {"CollectiveReduceV2": 4},
        "gather": {"CollectiveGatherV2": 4},
        "dealt": {"CollectiveGatherV2": 4},
        "pipeline": {"CollectiveGatherV2": 4},
        "paired": {},
    }
    for name, expected in transfers.items():
        nodes = emitted(two, in_one_call(CALLS[name]), *specs(shapes))
        ops = [node.op for node in nodes if node.op.startswith("Collective")]
        check((name, expected), (name, {op: ops.count(op) for op in set(ops)}))


def a_broadcast_is_sent_by_one_worker_and_received_by_the_others(repl):
    nodes = emitted(repl, in_one_call(last), *specs())

    is_source = repl.worker_id == repl.num_workers - 1
    check(4 * is_source, count(nodes, "CollectiveBcastSendV2"))
    check(4 * (not is_source), count(nodes, "CollectiveBcastRecvV2"))


def rows_are_joined_by_worker_without_padding(repl):
    def step(given):
        num_rows, ids, *both = given
        slices = (tf.IndexedSlices(x[:num_rows], ids[:num_rows]) for x in both)
        return [replicator.all_sum(each).values for each in slices]

    n, rng = repl.num_workers, np.random.default_rng(1)
    ids = np.arange(6 * n).reshape(n, 6)
    both = [rng.normal(size=(n, 6, *more)) for more in ((), (2,))]
    for counts in ((2, 3, 0), (3, 2, 1), (0, 0, 0), (4, 4, 4), (1, 0, 5)):
        given = [np.int32(counts), ids, *both]
        found = repl.run(step, [share(repl, of_all) for of_all in given])
        for of_all, (rows,) in zip(both, found, strict=True):
            parts = [x[:n] for x, n in zip(of_all, counts, strict=True)]
            np.testing.assert_array_equal(np.concatenate(parts), rows)
    types = [tf.TensorSpec([], tf.int32), tf.TensorSpec([6], tf.int64)]
    types += [tf.TensorSpec(x.shape[1:], tf.float64) for x in both]
    nodes = linked(repl, lambda *given: step(given), *types).node_def
    # The numbers of rows, the rows and their indices.
    check(2 * (1 + 2), count(nodes, "CollectiveGatherV2"))


def rows_of_known_numbers_are_joined_without_asking(repl):
    strategy = repl.as_strategy()

    def num_gathers(*shapes):
        def gather(*xs):
            return [strategy.gather(x, axis=0) for x in xs]

        around = tf.function(gather, autograph=False)
        traced = around.get_concrete_function(*map(tf.TensorSpec, shapes))
        check(
            [(repl.num_workers * shape[0], *shape[1:]) for shape in shapes],
            [tuple(output.shape) for output in traced.outputs],
        )
        functions = called_by(traced.graph.as_graph_def().node)
        return count([n for f in functions for n in f.node_def], "CollectiveGatherV2")

    check(1, num_gathers([2, 3]))
    check(0, num_gathers([0, 3], [2, 0]))  # without elements


def rows_of_unknown_rank_are_refused(repl):
    def step(x):
        rows = tf.compat.v1.placeholder_with_default(x, None)
        slices = tf.IndexedSlices(rows, tf.cast(x, tf.int64))
        return replicator.all_sum(slices).values

    check_message(
        r"CollectiveTypeError: .*float32 rows of unknown rank cannot be sent between",
        lambda: repl.run(step, share(repl, np.ones([repl.num_workers, 2], np.float32))),
    )


# In which order the collectives of a program meet those of others.


class Order:
    """What each collective of a linked function waits for, in the order of emission."""

    def __init__(self, function):
        self._nodes = {node.name: node for node in function.node_def}
        self._ancestors = before(types.SimpleNamespace(node=function.node_def))
        self.all = [n for n in function.node_def if n.op.startswith("Collective")]
        self._number = {
            node.attr["instance_key"].i: self.short(node.name)
            for node in self.all
            if node.op == "CollectiveReduce"
        }
        ends = {end for end in function.control_ret.values() if end in self._nodes}
        joined_ends = {end for end in ends if "/done_" in end}
        for end in joined_ends:
            ends |= {text[1:] for text in self._nodes[end].input}
        # What a caller waits for, besides writes of variables.
        ends = {end for end in ends - joined_ends if "/collective_" in end}
        self.ends = set(map(self.short, ends))

    @staticmethod
    def short(name):
        """The number of the call; of its part on a device or its gate, too."""
        what = name.partition("collective_")[2]
        number, _, part = what.partition("_0")
        part = part.removeprefix("/all_").replace("/gate/result_0_", "g")
        return f"{number}.{part}" if part else number

    def waits(self):
        return {self.short(node.name): self._waits(node) for node in self.all}

    def _waits(self, node):
        controls = [text[1:] for text in node.input if text.startswith("^")]
        if all(text.startswith("batch_") for text in controls):
            controls = ["batches"] if controls else []
        shorts = [text if text == "batches" else self.short(text) for text in controls]
        starts = [f"start-{self._number[k]}" for k in node.attr["wait_for"].list.i]
        return " ".join([*sorted(shorts), *starts])

    def is_before(self, first, then):
        return first == then or first in self._ancestors(then)


def each_collective_waits_for_the_one_before(repl):
    """The first for the batches; a check of shapes takes a place."""

    def step(x, rows):
        return (
            replicator.all_sum(x),
            replicator.all_max(x),
            replicator.all_sum(rows),
            replicator.all_gather(x),
        )

    function = linked(repl, step, tf.TensorSpec([4]), tf.TensorSpec([None]))
    order = Order(function)
    first, *others = order.all
    check("batches", order.waits()[order.short(first.name)])
    assert {"ring"} == {n.attr["communication_hint"].s.decode() for n in order.all}
    previous = first.name
    for node in others:
        (wait,) = [text[1:] for text in node.input if text.startswith("^")]
        assert order.is_before(previous, wait), (previous, wait)
        assert previous == wait or "/check/" in wait, (previous, wait)
        previous = node.name
    check(1 + 1 + 2 + 1, len(order.all))  # the check of shapes is one
    check({"3"}, order.ends)


def nccl_waits_for_the_start_of_what_is_before(repl):
    """For the end only where an op of one device is between."""

    def step(*xs):
        calls = (
            [replicator.all_sum] * 2 + [replicator.all_min] + [replicator.all_sum] * 2
        )
        return [call(x) for call, x in zip(calls, xs, strict=True)]

    order = Order(linked(gpus_of_workers(repl, 2), step, *[tf.TensorSpec([4])] * 5))

    waiting = {
        "0": "batches",
        "1": "batches start-0.{}",
        "3": "2 start-1.{}",
        "4": "2 start-3.{}",
    }
    expected = {
        f"{number}.{i}": text.format(1)
        for number, text in waiting.items()
        for i in (0, 1)
    }
    check({**expected, "2": "1.0 1.1"}, order.waits())
    check({"2", "4.0", "4.1"}, order.ends)


def what_follows_a_gate_waits_for_its_end_and_the_start_of_what_was_before_it(repl):
    """Nothing waits for the start of an op that a gate may skip: it would not come."""
    gpus = gpus_of_workers(repl, 2)
    with gpus.context():
        weights = [tf.Variable(tf.zeros([4])) for _ in range(2)]
        optimizers = [
            gpus.wrap_optimizer(keras.optimizers.SGD(1.0), accumulation_steps=2)
            for _ in weights
        ]

    def step(x):
        results = [replicator.all_sum(x)]
        for weight, optimizer in zip(weights, optimizers, strict=True):
            optimizer.apply_gradients([(weight * x, weight)])
            reduce = replicator.all_sum if weight is weights[0] else replicator.all_min
            results.append(reduce(x))
        return results

    order = Order(linked(gpus, step, tf.TensorSpec([4])))

    expected = {
        "0": "batches",
        "1": "batches start-0.1",  # gated
        "2": "1.g{} start-0.1",
        "3": "1.g{} start-2.1",  # gated
    }
    found = order.waits()
    check("2.0 2.1 3.g0 3.g1", found.pop("4"))
    check(
        {f"{n}.{i}": text.format(i) for n, text in expected.items() for i in (0, 1)},
        found,
    )

    def gated_at_last(x):
        total = replicator.all_sum(x)
        optimizers[0].apply_gradients([(weights[0] * x, weights[0])])
        return total

    ends = Order(linked(gpus, gated_at_last, tf.TensorSpec([4]))).ends
    check({"0.0", "0.1", "1.g0", "1.g1"}, ends)


def rings_join_cpus_and_nccl_joins_gpus(repl):
    """The op accepts bfloat16 with NCCL, and then fails."""
    gpus = gpus_of_workers(repl, 1)
    dtypes = (tf.float32, tf.float16, tf.bfloat16)
    function = linked(
        gpus,
        lambda *xs: [replicator.all_min(x) for x in xs],
        *[tf.TensorSpec([4], dtype) for dtype in dtypes],
    )

    found = {}
    for node in function.node_def:
        if node.op == "CollectiveReduceV2":
            dtype = tf.as_dtype(node.attr["T"].type)
            _, key = const(function, node.input[3])
            found[dtype] = node.attr["communication_hint"].s.decode()
            check(gpus.devices[0], node.device)
            check(gpus.devices[0].replace("GPU", "CPU"), key.device)
    check(dict(zip(dtypes, ("nccl", "nccl", "ring"), strict=True)), found)


def all_gpus_of_all_programs_form_one_group(repl):
    """Not a group of each GPU of a program, one after the other."""
    gpus = gpus_of_workers(repl, 8)
    step = in_one_call(replicator.all_mean)
    function = linked(gpus, step, *map(tf.TensorSpec, [[7_000_000], [8_000_000]]))

    found = [node for node in function.node_def if node.op == "CollectiveReduce"]
    assert "algorithm nccl, 2 transfers" in gpus.explain(), gpus.explain()
    check(8 * 2, len(found))
    check({8 * repl.num_workers}, {node.attr["group_size"].i for node in found})
    check(1, len({node.attr["group_key"].i for node in found}))
    check(0, count(function.node_def, "AddN"))


def results_of_unknown_shapes_are_those_of_numpy(repl):
    """Of known shapes, the conformance suite asks for them."""
    check_values(repl, are_known=False)


OF_TWO_WORKERS = {
    case.__name__: case
    for case in (
        two_memories_of_each_worker,
        workers_meet_as_often_as_there_are_transfers,
        rows_of_known_numbers_are_joined_without_asking,
        rows_of_unknown_rank_are_refused,
        each_collective_waits_for_the_one_before,
        nccl_waits_for_the_start_of_what_is_before,
        what_follows_a_gate_waits_for_its_end_and_the_start_of_what_was_before_it,
        rings_join_cpus_and_nccl_joins_gpus,
        all_gpus_of_all_programs_form_one_group,
    )
}
# What differs where there are more than two.
CASES = {
    case.__name__: case
    for case in (
        results_of_unknown_shapes_are_those_of_numpy,
        a_broadcast_is_sent_by_one_worker_and_received_by_the_others,
        rows_are_joined_by_worker_without_padding,
    )
}


def set_up(_folder):
    return (replicator.create("multi_worker"),)
