"""Gradients and types of collectives that no drawn program has; unused results."""

import tensorflow as tf

import replicator
from replicator import PerReplica
from replicator.engine import emitter


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


def test_a_type_without_gpu_kernel_is_combined_on_the_cpu_of_the_same_process():
    gpu = "/job:worker/replica:0/task:3/device:GPU:2"

    assert gpu == emitter.supported_device("AddN", tf.float32, gpu)
    assert "/job:worker/replica:0/task:3/device:CPU:0" == emitter.supported_device(
        "AddN", tf.int8, gpu
    )
    assert "/device:CPU:1" == emitter.supported_device("AddN", tf.int8, "/device:CPU:1")
