"""Inception from the graph of 2015, with made-up weights of the real shapes."""

import hashlib

import numpy as np
import pytest
import tensorflow as tf

from workloads.metrics.extractors.inception import open_inception, prepare

NUM_FEATURES, NUM_CLASSES = 2048, 1008
RTOL_FLOAT32 = 1e-4  # a mean over 89,401 pixels and a product of 2,048 terms


@pytest.fixture(scope="module")
def images():
    """Three images of the network's own size."""
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, size=(3, 299, 299, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def kernels():
    """Weights of a network that averages pixels, and of its classifier."""
    generator = np.random.default_rng(1)
    pool = generator.normal(size=(3, NUM_FEATURES)).astype(np.float32)
    return pool, generator.normal(size=(NUM_FEATURES, NUM_CLASSES)).astype(np.float32)


def expected(images, kernels):
    """Features and logits of that network, in float64."""
    pool, classifier = (kernel.astype(np.float64) for kernel in kernels)
    features = ((images - 128.0) / 128.0).mean(axis=(1, 2)) @ pool
    return features, features @ classifier


def write_graph(path, kernels, *, logits_name):
    """Writes a frozen graph with the node names of 2015, for one image at a time."""
    with tf.Graph().as_default() as graph:
        image = tf.compat.v1.placeholder(tf.float32, [1, 299, 299, 3], name="Mul")
        mean = tf.reduce_mean(image, axis=(1, 2), keepdims=True)
        pool = tf.nn.conv2d(mean, kernels[0][None, None], 1, "SAME", name="pool_3")
        num_features = pool.shape[-1]
        flat = tf.reshape(pool, [1, num_features], name="pool_3/_reshape")
        weights = tf.constant(kernels[1], name="softmax/weights")
        if logits_name == "logits":  # TF-GAN's copy takes any number of images
            flat = tf.reshape(pool, [-1, num_features])
        tf.matmul(flat, weights, name=logits_name)
    path.write_bytes(graph.as_graph_def().SerializeToString())


@pytest.mark.parametrize("logits_name", ["softmax/logits/MatMul", "logits"])
def test_a_frozen_graph_takes_many_images(tmp_path, images, kernels, logits_name):
    """Features and logits without bias, of the original graph and of TF-GAN's copy."""
    path = tmp_path / "classify_image_graph_def.pb"
    write_graph(path, kernels, logits_name=logits_name)

    extractor = open_inception(path)
    found = extractor.extract(images, num_images_at_once=2)

    features, logits = expected(images, kernels)
    np.testing.assert_allclose(found.features, features, rtol=RTOL_FLOAT32, atol=1e-4)
    np.testing.assert_allclose(found.logits, logits, rtol=RTOL_FLOAT32, atol=1e-2)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == extractor.digest


def test_images_are_resized_as_in_2015():
    """Output pixel i comes from input i * size / 299, with nothing beyond the last."""
    small = np.arange(4 * 4, dtype=np.uint8).reshape(1, 4, 4, 1).repeat(3, axis=3) * 16
    position = np.arange(299) * (4 / 299)
    low = position.astype(int)
    high, share = np.minimum(low + 1, 3), position - low
    rows = (
        small[0, low, :, 0] * (1 - share)[:, None]
        + small[0, high, :, 0] * share[:, None]
    )
    square = rows[:, low] * (1 - share) + rows[:, high] * share

    prepared = prepare(tf.constant(small)).numpy()

    np.testing.assert_allclose(prepared[0, :, :, 1], (square - 128) / 128, atol=1e-4)


def test_a_network_of_another_size_is_refused(tmp_path, kernels):
    """2,048 features and at least 1,000 classes, or it is not Inception v3."""
    path = tmp_path / "small.pb"
    small = kernels[0][:, :64], kernels[1][:64, :10]
    write_graph(path, small, logits_name="logits")

    with pytest.raises(ValueError, match="gives 64 features and 10 logits"):
        open_inception(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "are no file: use classify_image_graph_def.pb or TF-GAN's"),
        (b"no graph", "is not a frozen graph .* point to classify_image"),
        (b"", r"no nodes \['Mul', 'pool_3', 'softmax/logits/MatMul'\]"),
    ],
)
def test_other_files_are_refused(tmp_path, content, message):
    """One line that says what to point to instead."""
    path = tmp_path / "weights.pb"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ValueError, match=message) as info:
        open_inception(path)

    assert "\n" not in str(info.value)
