"""Collectives that move values: every type, what is refused, and what is sent.

A new kind is made, and never taken for another, in ``docs/howto/collective.md``.
"""

import functools

import numpy as np
import pytest
import tensorflow as tf
from cluster_member import check_messages
from graphs import make_call

import replicator
from replicator import PerReplica
from replicator.collectives.kinds import (
    AllReduce,
    AllToAll,
    BetweenWorkers,
    Permute,
    ReduceScatter,
)
from replicator.core.topology import make_topology
from replicator.engine import plan

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]
REMOTE = [f"/job:worker/replica:0/task:{i // 2}/device:CPU:{i % 2}" for i in range(4)]
SLICES = tf.IndexedSlices(tf.ones([2]), tf.constant([0, 1]))
RING = Permute(pairs=((0, 1), (1, 2), (2, 3), (3, 0)))


VALUES = np.arange(32, dtype=np.float32).reshape(4, 4, 2)
RESULTS = {
    "reduce_scatter": lambda x: [x.sum(axis=0)[r : r + 1] for r in range(len(x))],
    "all_to_all": lambda x: [x[:, r] for r in range(len(x))],
    "permute": lambda x: [np.zeros_like(x[0]), *x[:-1]],
}


def _call(name, x):
    if name == "permute":
        count = replicator.get_replica_context().num_replicas_in_sync
        return replicator.permute(x, [(r, r + 1) for r in range(count - 1)])
    return getattr(replicator, name)(x)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool", "string"])
def test_values_are_moved_in_every_type(repl_of_four, dtype):
    values = VALUES % 2 if dtype == "bool" else VALUES // 4
    cast = tf.strings.as_string if dtype == "string" else lambda t: tf.cast(t, dtype)
    typed = [cast(tf.constant(value, tf.int32)) for value in values]
    names = [*RESULTS][1:] if dtype in ("bool", "string") else RESULTS

    def step(x):
        moved = {name: _call(name, x) for name in names}
        return moved | {"all_gather": replicator.all_gather(x)}

    found = repl_of_four.run(step, PerReplica(typed))

    for name in names:
        for want, got in zip(RESULTS[name](values), found[name], strict=True):
            assert tf.as_dtype(dtype) == got.dtype
            wanted = cast(tf.constant(want, tf.int32)).numpy()
            if dtype == "string":
                wanted[want.sum() == 0] = b"" if name == "permute" else b"0"
            np.testing.assert_array_equal(wanted, got.numpy())
    for got in found["all_gather"]:
        np.testing.assert_array_equal(tf.stack(typed), got)


@pytest.fixture(params=["shared", "mirrored"])
def repl_of_four(request):
    devices = [f"CPU:{r}" for r in range(4)] if request.param == "mirrored" else None
    return replicator.create(
        "in_graph", num_replicas=4, devices=devices, variable_placement=request.param
    )


REFUSED = {
    r"^ValueError: .*reduce_scatter divides .* 2 replicas, but got shape \(3,\); pass "
    "a first": lambda: replicator.reduce_scatter(tf.ones([3])),
    r"^ValueError: .*all_to_all divides .* shape \(\)": lambda: replicator.all_to_all(
        1.0
    ),
    "^ValueError: .*reduce_scatter 'sum' of bool is not defined": lambda: (
        replicator.reduce_scatter(tf.constant([True, False]))
    ),
    "^ValueError: .*'sum' of bool .* 'max' for": lambda: replicator.all_sum(
        tf.constant(True)
    ),
    r"^ValueError: .*'max' of complex64 .* no order; reduce tf\.abs of the value": (
        lambda: replicator.all_max(tf.complex(1.0, 1.0))
    ),
    "^ValueError: .*'min' of string is not defined": lambda: replicator.all_min(
        tf.constant("a")
    ),
    "^ValueError: .*IndexedSlices supports 'sum' and 'mean', but not 'max'": lambda: (
        replicator.all_max(SLICES)
    ),
    "^ValueError: .*all_gather does not take tf.IndexedSlices": lambda: (
        replicator.all_gather(SLICES)
    ),
    "^ValueError: .*all_to_all does not take tf.IndexedSlices, because it divides "
    "dense": (lambda: replicator.all_to_all(SLICES)),
    r"^TypeError: .*permute takes pairs of source and target, such as .* but got "
    r"\[1, 0\]": (lambda: replicator.permute(1.0, [1, 0])),
    "^ValueError: .*permute got target 2, but there are 2 replicas; use 0 to 1": (
        lambda: replicator.permute(1.0, [(0, 2)])
    ),
    "^ValueError: .* replica 0 as the source of 2 pairs; .* use broadcast": lambda: (
        replicator.permute(1.0, [(0, 0), (0, 1)])
    ),
}


def test_bad_input_says_what_is_allowed():
    repl = replicator.create("in_graph", num_replicas=2)
    calls = {said: functools.partial(repl.run, call) for said, call in REFUSED.items()}

    check_messages(calls)


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        # Bytes by worker (64 per replica); two workers of two replicas.
        (AllReduce(op="sum"), {0: 64, 1: 64}),
        (ReduceScatter(op="sum"), {0: 32, 1: 32}),
        (AllToAll(), {0: 64, 1: 64}),
        (RING, {0: 64, 1: 64}),
        # Inside a worker.
        (Permute(pairs=((0, 1), (2, 3))), {0: 0, 1: 0}),
    ],
    ids=str,
)
def test_traffic_counts_what_leaves_a_worker(kind, sent):
    """Where one program has all replicas, parts are sent and not whole tensors."""
    places = make_topology([[device] for device in REMOTE])
    plans = plan.make_plan([make_call([[16]], kind, num_replicas=4)], places)

    assert sent == plan.sent(plans, places, [0, 0, 1, 1])


@pytest.mark.parametrize(
    ("kind", "op", "num_bytes"),
    [
        (AllReduce(op="sum"), "reduce", 128.0),
        (ReduceScatter(op="sum"), "reduce", 128.0),
        (AllToAll(), "gather", 256.0),
        (RING, "gather", 256.0),
        (Permute(pairs=((0, 1),)), "", 0.0),
    ],
    ids=str,
)
def test_kinds_say_what_goes_over_the_wire(kind, op, num_bytes):
    places = make_topology([[d] for d in CPU[:2]], num_replicas=4, num_programs=2)
    call = make_call([[16]], kind, num_replicas=4)

    assert BetweenWorkers(op, num_bytes) == kind.between_workers(64, places)
    text = plan.explain(plan.make_plan([call], places), places).splitlines()[0]
    assert text.endswith(
        f"{round(num_bytes)} bytes in all" if op else "; nothing over 2 workers"
    )
