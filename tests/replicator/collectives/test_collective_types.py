"""Types of collectives that have few kernels, or gradients beside others."""

import tensorflow as tf

import replicator
from replicator.engine import emitter


def test_eight_bit_floats_keep_their_type(in_graph):
    dtype = tf.dtypes.experimental.float8_e4m3fn
    values = [[1.5, 3.0], [2.5, -3.0]]
    x = replicator.PerReplica([tf.cast(tf.constant(v), dtype) for v in values])

    out = in_graph.run(lambda x: (replicator.all_sum(x), replicator.all_max(x)), x)

    assert dtype == out[0][0].dtype
    assert [4.0, 0.0] == tf.cast(out[0][1], tf.float32).numpy().tolist()
    assert [2.5, 3.0] == tf.cast(out[1][0], tf.float32).numpy().tolist()


def test_gradients_flow_through_mixed_types(in_graph):
    """That of |sum x|^2 is 2 * 2 * the sum; integers beside it have none."""
    dtypes = [tf.complex64, tf.bfloat16, tf.float64]
    values = [
        replicator.PerReplica([tf.cast(x, dtype) for x in ([1.0, -2.0], [3.0, 1.0])])
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
    values = replicator.PerReplica([tf.fill([2, 3], 1.0 + r) for r in range(n)])
    indices = replicator.PerReplica([tf.constant([r, 4]) for r in range(n)])

    def step(pair):
        slices = tf.IndexedSlices(*pair, dense_shape=tf.constant([5, 3]))
        result = replicator.broadcast({"embedding": slices}, n - 1)["embedding"]
        return {"values": result.values, "indices": result.indices}

    out = repl.run(step, (values, indices))

    for r in range(n):
        assert [[float(n)] * 3] * 2 == out["values"][r].numpy().tolist()
        assert [n - 1, 4] == out["indices"][r].numpy().tolist()


def test_a_type_without_gpu_kernel_is_combined_on_the_cpu_of_the_same_process():
    """The rule that moves it; GPUs that have the kernel keep their work."""
    gpu = "/job:worker/replica:0/task:3/device:GPU:2"

    assert gpu == emitter.supported_device("AddN", tf.float32, gpu)
    assert "/job:worker/replica:0/task:3/device:CPU:0" == emitter.supported_device(
        "AddN", tf.int8, gpu
    )
    assert "/device:CPU:1" == emitter.supported_device("AddN", tf.int8, "/device:CPU:1")
