"""Steps: their first and their dispatch, a collective, and rewritten convolutions."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator.core import devices

NUM_REPLICAS = 8

# Virtual devices must exist before TensorFlow runs its first op.
NAMES = devices.split_cpu(NUM_REPLICAS)

# The costs of the engine itself.
NUM_COLLECTIVES = 500
NUM_UNTIMED = 20  # of a run that only looks whether the benchmarks work


@pytest.mark.parametrize("num_replicas", [1, NUM_REPLICAS])
def test_first_step_of_500_collectives(benchmark, request, num_replicas):
    """Traced, optimized, planned and linked; most of it once, whatever the number."""
    is_untimed = request.config.getoption("benchmark_disable")
    number = NUM_UNTIMED if is_untimed else NUM_COLLECTIVES
    ones = [tf.ones([64])] * num_replicas

    def run():
        repl = replicator.create(
            "in_graph",
            num_replicas=num_replicas,
            devices=NAMES[:num_replicas],
            variable_placement="mirrored",
        )

        def step(x):
            for _ in range(number):
                x = replicator.all_mean(tf.tanh(x))
            return x

        return repl.run(step, replicator.PerReplica(ones))

    benchmark.pedantic(run, rounds=5, warmup_rounds=1)


@pytest.mark.parametrize("name", ["plain tf.function", "single", "in_graph x4"])
def test_one_tiny_step(benchmark, name):
    weight = tf.Variable(1.0)

    def step():
        weight.assign_add(0.001)
        return weight.read_value()

    if name == "plain tf.function":
        plain = tf.function(step)
        benchmark(lambda: float(plain()))
        return
    backend, _, replicas = name.partition(" x")
    repl = replicator.create(backend, num_replicas=int(replicas or 1))
    benchmark(lambda: float(repl.run(step)[0]))


def test_16_tiny_steps_in_one_dispatch(benchmark):
    """The same 16 times in one call: divide by 16 for the cost of a step."""
    repl = replicator.create("in_graph", num_replicas=4)
    with repl.context():
        weight = tf.Variable(1.0)
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1))

    def step():
        with tf.GradientTape() as tape:
            loss = weight * weight
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return loss

    benchmark(lambda: float(repl.run(step, num_steps=16)[0]))


# One collective of a megabyte, dispatch included.
NUM_FLOATS = 2**18
COLLECTIVES = {
    "all_sum": replicator.all_sum,
    "all_mean": replicator.all_mean,
    "all_gather": replicator.all_gather,
    "broadcast": lambda value: replicator.broadcast(value, 1),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_megabyte_over_4_replicas(benchmark, name):
    """What differs by replica, so that nothing is left out as invariant."""
    repl = replicator.create(
        "in_graph",
        num_replicas=4,
        devices=NAMES[:4],
        variable_placement="mirrored",
    )

    def step():
        replica = replicator.get_replica_context().replica_id
        value = tf.fill([NUM_FLOATS], tf.cast(replica, tf.float32))
        return tf.reduce_sum(COLLECTIVES[name](value))

    found = benchmark(lambda: float(repl.run(step)[0]))

    total = {"all_sum": 6, "all_mean": 1.5, "all_gather": 6, "broadcast": 1}[name]
    assert total * NUM_FLOATS == found


# Convolutions that are computed in another way than the user wrote: the last blocks of
# ResNet-50 at 64 px, whose kernels are larger than their images, and a block of a
# generator, which repeats the pixels of an image.
BATCH = 8
LAYERS = ((1, 1, 2048, 512), (3, 3, 512, 512), (1, 1, 512, 2048))
IMAGES, SIZE, CHANNELS = 128, 8, 32
UNTIMED = 16  # times fewer channels, of a run that only looks whether it works


def _floats(*shape):
    generator = np.random.default_rng(0)
    return tf.constant(generator.standard_normal(shape, dtype=np.float32))


@pytest.mark.parametrize("way", ["tensorflow", "in_graph"])
def test_gradients_of_a_bottleneck_of_2_x_2_pixels(benchmark, request, way):
    """As TensorFlow runs them, and as products of matrices."""
    fewer = UNTIMED if request.config.getoption("benchmark_disable") else 1
    shapes = [(h, w, a // fewer, b // fewer) for h, w, a, b in LAYERS]
    image, kernels = _floats(BATCH, 2, 2, shapes[0][2]), [_floats(*s) for s in shapes]

    def result(*variables):
        hidden = image
        for variable in variables:
            hidden = tf.nn.relu(tf.nn.conv2d(hidden, variable, 1, "SAME"))
        return hidden

    _compare(benchmark, way, result, image, kernels)


@pytest.mark.parametrize("way", ["tensorflow", "in_graph"])
def test_gradients_of_repeated_pixels(benchmark, way):
    """As TensorFlow runs them, and from the smaller image."""
    image = _floats(IMAGES, SIZE, SIZE, CHANNELS)
    kernel = _floats(3, 3, CHANNELS, CHANNELS)

    def result(variable):
        size = [2 * SIZE, 2 * SIZE]
        larger = tf.image.resize(image, size, "nearest")
        return tf.nn.relu(tf.nn.conv2d(larger, variable, 1, "SAME"))

    _compare(benchmark, way, result, image, [kernel])


def _compare(benchmark, way, result, image, kernels):
    variables = [tf.Variable(kernel) for kernel in kernels]

    def step():
        with tf.GradientTape() as tape:
            tape.watch(image)
            loss = tf.reduce_mean(result(*variables))
        return tape.gradient(loss, [image, *variables])

    stock = tf.function(step)
    repl = replicator.create("in_graph", num_replicas=1)

    def run():
        if way == "tensorflow":
            return [part.numpy() for part in stock()]
        return [part.values[0].numpy() for part in repl.run(step)]

    for found, expected in zip(run(), stock(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
    benchmark(run)
