"""Convolutions that are computed in another way than the user wrote.

The last blocks of ResNet-50 at 64 px, whose kernels are larger than their images, and
a block of a generator, which repeats the pixels of an image.
"""

import numpy as np
import pytest
import tensorflow as tf

import replicator

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
