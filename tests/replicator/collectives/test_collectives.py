"""Collectives: gradients and types that no drawn program has, and precision."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from case_cluster import check_messages

import replicator
from replicator import PerReplica


def _run(repl, step, values):
    return repl.run(step, PerReplica([tf.constant(v) for v in values]))


def test_graph_gradients_communicate_too(in_graph):
    def step(x):
        y = replicator.all_sum(x) ** 2
        return tf.gradients(tf.gradients(y, x)[0] ** 2, x)[0]

    values = [1.0, 2.0]
    found = _run(in_graph, step, values)

    assert [192.0, 192.0] == [float(value) for value in found]


def test_the_gradient_of_an_extreme_is_split_over_those_that_have_it(in_graph):
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = 3.0 * replicator.all_max(x)
        return tape.gradient(loss, x)

    assert [3.0, 3.0] == [float(value) for value in _run(in_graph, step, [2.0, 2.0])]


def test_a_result_that_nobody_uses_is_not_communicated(in_graph):
    def step(x):
        replicator.all_sum(x)
        y = replicator.all_max(x)
        replicator.all_gather(x)
        return replicator.all_sum(y)

    found = _run(in_graph, step, [1.0, 2.0])

    assert [4.0, 4.0] == [float(value) for value in found]
    plan = in_graph.explain()
    assert "#0 all_reduce(max)" in plan
    assert "#1 all_reduce(sum)" in plan
    assert "#2" not in plan


def test_the_trace_does_not_take_an_operand_for_the_result(in_graph):
    """A shape that is computed from a constant's sum is that of the sum."""

    def step(x):
        size = replicator.all_sum(tf.constant(2))
        return tf.zeros([size]) + x

    found = _run(in_graph, step, [1.0, 2.0])

    assert [(4,), (4,)] == [value.shape for value in found]


def test_eight_bit_floats_keep_their_type(in_graph):
    dtype = tf.dtypes.experimental.float8_e4m3fn
    values = [[1.5, 3.0], [2.5, -3.0]]
    x = PerReplica([tf.cast(tf.constant(v), dtype) for v in values])

    out = in_graph.run(lambda x: (replicator.all_sum(x), replicator.all_max(x)), x)

    assert dtype == out[0][0].dtype
    assert [4.0, 0.0] == tf.cast(out[0][1], tf.float32).numpy().tolist()
    assert [2.5, 3.0] == tf.cast(out[1][0], tf.float32).numpy().tolist()


def test_gradients_flow_through_mixed_types(in_graph):
    """That of |sum x|^2 is 2 * 2 * the sum; integers beside it have none."""
    dtypes = [tf.complex64, tf.bfloat16, tf.float64]
    values = [
        PerReplica([tf.cast(x, dtype) for x in ([1.0, -2.0], [3.0, 1.0])])
        for dtype in dtypes
    ]

    def step(values):
        with tf.GradientTape() as tape:
            tape.watch(values)
            *totals, count = replicator.all_sum([*values, tf.constant(7)])
            squares = [tf.math.real(x * tf.math.conj(x)) for x in totals]
            loss = tf.add_n([tf.reduce_sum(tf.cast(x, tf.float64)) for x in squares])
        return tape.gradient(loss, values), count

    grads, counts = in_graph.run(step, values)

    for dtype, per_replica in zip(dtypes, grads, strict=True):
        for grad in per_replica:
            assert dtype == grad.dtype
            assert [16.0, -4.0] == tf.math.real(
                tf.cast(grad, "complex64")
            ).numpy().tolist()
    assert [14, 14] == [int(count) for count in counts]


def test_sparse_slices_are_broadcast_as_they_are(repl_once):
    repl, n = repl_once, repl_once.num_replicas
    values = PerReplica([tf.fill([2, 3], 1.0 + r) for r in range(n)])
    indices = PerReplica([tf.constant([r, 4]) for r in range(n)])

    def step(pair):
        slices = tf.IndexedSlices(*pair, dense_shape=tf.constant([5, 3]))
        result = replicator.broadcast({"embedding": slices}, n - 1)["embedding"]
        return {"values": result.values, "indices": result.indices}

    out = repl.run(step, (values, indices))

    for r in range(n):
        assert [[float(n)] * 3] * 2 == out["values"][r].numpy().tolist()
        assert [n - 1, 4] == out["indices"][r].numpy().tolist()


SLICES = tf.IndexedSlices(tf.ones([2]), tf.constant([0, 1]))


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


NUM_ELEMENTS = 100_000
# Twice half the distance between the smallest numbers of float16.
TINY = 2.0**-24
# The largest relative error of rounding to a type.
UNIT_ROUNDOFF = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


def _operands(num_replicas):
    rng = np.random.default_rng(3)
    spread = 2.0 ** rng.integers(-6, 7, size=(num_replicas, NUM_ELEMENTS))
    signs = rng.normal(size=(num_replicas, NUM_ELEMENTS))
    return (spread * signs).astype(np.float32)


def _mean(repl, xs, name):
    def step(x):
        return replicator.all_reduce(x, "mean", compression=name)

    values = replicator.PerReplica([tf.constant(x) for x in xs])
    return repl.run(step, values), repl.explain()


@pytest.mark.parametrize("name", UNIT_ROUNDOFF)
def test_between_memories_errors_are_bounded_unbiased_and_the_same(separate, name):
    """Element by element, against float64; and it is an error, so bits were dropped."""
    xs = _operands(4)

    out, plan = _mean(separate(4), xs, name)

    exact = xs.astype(np.float64).mean(axis=0)
    error = out[0].numpy() - exact
    u = UNIT_ROUNDOFF[name]
    bound = u * np.abs(xs).mean(axis=0) * (1 + u) + u * np.abs(exact)
    float32_part = 1e-6 * np.abs(xs).sum(axis=0) + TINY
    assert tf.float32 == out[0].dtype
    assert np.all(np.abs(error) <= bound + float32_part)
    assert np.abs(error).max() > u / 4 * np.abs(exact).max()
    scaled = error / np.abs(xs).mean(axis=0)
    assert abs(scaled.mean()) < 4 * scaled.std() / np.sqrt(NUM_ELEMENTS)
    assert 1 == len({value.numpy().tobytes() for value in out})
    assert f"1 tensors, {2 * NUM_ELEMENTS} bytes per replica, algorithm add_n" in plan
    assert f"{name} between memories" in plan


def test_in_one_memory_nothing_is_rounded(in_graph):
    xs = _operands(2)

    out, plan = _mean(in_graph, xs, "bfloat16")

    np.testing.assert_allclose(xs.mean(axis=0), out[0], rtol=1e-6, atol=1e-7)
    assert "in one memory: nothing is sent, so nothing is compressed" in plan


def test_gradients_and_integers_keep_their_width(separate):
    x = replicator.PerReplica([tf.constant(1.0), tf.constant(2.0)])
    third = np.float32(1 / 3)

    def step(value):
        with tf.GradientTape() as tape:
            tape.watch(value)
            total, big = replicator.all_reduce(
                [value, tf.constant(16_777_217)], compression="bfloat16"
            )
            loss = total * third
        return tape.gradient(loss, value), big

    grad, big = separate(2).run(step, x)

    np.testing.assert_allclose(2 * third, grad[0], rtol=1e-7)
    assert 33_554_434 == int(big[1])


def test_sparse_slices_travel_in_16_bits(separate):
    values = [np.full((2, 3), 1.001, np.float32)] * 2

    def step(rows):
        joined = replicator.all_reduce(
            tf.IndexedSlices(*rows), "sum", compression="bfloat16"
        )
        return joined.values, joined.indices

    ids = replicator.PerReplica([np.array([70_001, 3])] * 2)
    joined, indices = separate(2).run(step, (replicator.PerReplica(values), ids))

    assert [70_001, 3] * 2 == indices[0].numpy().tolist()
    np.testing.assert_array_equal(np.ones((4, 3), np.float32), joined[0])


LARGEST = 65504.0  # of float16


MEANS = {
    "all_mean": replicator.all_mean,
    "compressed": lambda x: replicator.all_reduce(x, "mean", compression="bfloat16"),
    "reduce_scatter": lambda x: replicator.all_gather(
        replicator.reduce_scatter(x, "mean")
    )[:, 0],
    "map_reduce": lambda x: replicator.map_reduce(lambda _: x, [0, 1, 2, 3], "mean"),
    "run_and_reduce": tf.identity,
}


def test_a_mean_of_float16_does_not_overflow_where_the_sum_would(in_graph):
    values = np.array([[LARGEST, 2.0**-24], [LARGEST, 3 * 2.0**-24]])
    expected = tf.float16, values.mean(axis=0).astype(np.float16).tolist()

    def step(x):
        return {name: mean(tf.cast(x, tf.float16)) for name, mean in MEANS.items()}

    out = in_graph.run(step, replicator.PerReplica(list(tf.constant(values))))
    found = {
        name: (mean.dtype, mean.numpy().tolist())
        for name, mean in in_graph.reduce("mean", out).items()
    }

    assert dict.fromkeys(MEANS, expected) == found


def test_means_of_float16_are_rounded_once(separate):
    values = np.random.default_rng(0).normal(size=(4, 1000)).astype(np.float16)
    x = replicator.PerReplica(list(tf.constant(values)))

    out = separate(4).run(replicator.all_mean, x)

    expected = values.astype(np.float64).mean(axis=0).astype(np.float16)
    for mean in out:
        np.testing.assert_array_equal(expected, mean)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_gradients_of_float16_are_averaged_before_they_overflow(in_graph, momentum):
    """The kernels of SGD take sums where these are the same."""
    with in_graph.context():
        weight = tf.Variable([0.0], dtype=tf.float16)
        optimizer = in_graph.wrap_optimizer(keras.optimizers.SGD(0.5, momentum))

    def step(grad):
        optimizer.apply_gradients([(grad, weight)])

    grads = [tf.constant([LARGEST], tf.float16)] * 2
    in_graph.run(step, replicator.PerReplica(grads))

    assert optimizer.uses_fused_update
    assert [-LARGEST / 2] == weight.numpy().tolist()


def test_float64_is_divided_in_float64():
    """By three replicas: a third in float32 is off in the eighth digit."""
    repl = replicator.create("in_graph", num_replicas=3)
    with repl.context():
        weight = tf.Variable([0.0], dtype=tf.float64)
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(1.0))
    data = tf.data.Dataset.range(5).map(lambda x: tf.cast(x, tf.float64))
    inputs = repl.make_input_iterator(
        lambda ctx: replicator.split_global_batches(data, ctx, 6)
    )

    def step(x):
        optimizer.apply_gradients([(tf.ones([1], tf.float64), weight)])
        return replicator.mean_over_examples(x / 7)

    out = repl.run(step, inputs)

    assert [-1.0] == weight.numpy().tolist()
    assert 2 / 7 == pytest.approx(float(repl.reduce("mean", out)), rel=1e-15)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter"])
def test_shapes_that_differ_are_an_error_and_not_broadcast(in_graph, collective, op):
    """Of a last batch with one example less on one replica; both shapes are named."""
    inputs = in_graph.make_input_iterator(
        lambda _: tf.data.Dataset.range(7, output_type=tf.float32).batch(2)
    )

    def step(x):
        return getattr(replicator, collective)(tf.tile(x, [2]), op)

    in_graph.run(step, inputs)

    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=rf"{collective}\({op}\) got tensors of different shapes on different "
        r"replicas; pad them.*by replica\] \[\[4\] \[2\]\]",
    ):
        in_graph.run(step, inputs)
