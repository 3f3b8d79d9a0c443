"""Extractors: the embedded classifier of digits, Inception from the graph of 2015."""

import hashlib
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from workloads.data import open_source
from workloads.metrics import Evaluator, open_digits, open_inception, to_uint8


def load_digits(split):
    stored = open_source("digits").splits[split]
    images = [tf.io.decode_png(encoded).numpy() for encoded in stored["image"]]
    return np.stack(images), stored["label"]


def kept():
    """What is kept of training the classifier."""
    folder = Path(os.environ["REPLICATOR_DATA_DIR"]) / "extractors"
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.fixture(scope="module")
def extractor(data_dirs):
    return open_digits()


@pytest.fixture(scope="module")
def evaluator(extractor):
    images, _ = load_digits("train")
    return Evaluator(extractor, images, reference_name="digits/train")


def test_the_classifier_knows_held_out_digits(extractor):
    images, labels = load_digits("test")

    features, logits = extractor.extract(images)

    assert features.shape == (359, 32)
    assert 0.98 <= (logits.argmax(axis=1) == labels).mean()
    # So the scale of the kernel distance does not depend on the training.
    features, _ = extractor.extract(load_digits("train")[0])
    assert pytest.approx(1.0, rel=1e-3) == np.square(features).mean()


@pytest.mark.full
@pytest.mark.processes
def test_training_again_gives_the_same_bits(extractor, monkeypatch, tmp_path):
    monkeypatch.setenv("REPLICATOR_DATA_DIR", str(tmp_path))
    assert [] == kept()

    again = open_digits()

    assert extractor.digest == again.digest
    assert [".lock", ".npz"] == [path.suffix for path in kept()]


def test_the_scale_has_two_ends(evaluator):
    held_out, _ = load_digits("test")

    noise = np.random.default_rng(0).integers(0, 256, held_out.shape, np.uint8)
    best, worst = evaluator.score(held_out), evaluator.score(noise)

    assert ["fid", "kid", "inception_score"] == [score.name for score in best]
    for data, noise in zip(best, worst, strict=True):
        assert data.protocol == noise.protocol
        assert (359, 359) == (data.num_examples, noise.num_examples)
        # Figures that differ in one of these share no axis.
        for part in (evaluator.extractor.digest[:16], "8 x 8 as stored"):
            assert part in data.protocol
        if data.name == "inception_score":  # large is good
            assert "reference" not in data.protocol
            assert noise.high < data.low
        else:
            assert "; reference digits/train, n = 1438, " in data.protocol
            assert data.high < noise.low


def test_a_score_without_interval_is_not_reported(extractor):
    images, _ = load_digits("test")
    judge = Evaluator(extractor, images, reference_name="x")

    with pytest.raises(ValueError, match=r"no interval: 9 examples .*report kid"):
        judge.score(images[:9])


def test_resized_digits_are_another_protocol(extractor):
    images, _ = load_digits("test")
    enlarged = images.repeat(4, axis=1).repeat(4, axis=2).repeat(3, axis=3)

    (small, _), (large, _) = map(extractor.extract, (images, enlarged))

    np.testing.assert_allclose(small, large, rtol=1e-4, atol=1e-4)
    assert "8 x 8 as stored" in extractor.preparation(images.shape[1:])
    assert "32 x 32 x 3, mean of channels, 8 x 8 resized by area" in (
        extractor.preparation(enlarged.shape[1:])
    )


# Calls, and what is said of them; resizing changes scores, so nothing does it silently.
REFUSED = r"""
score(np.zeros((5, 16, 16, 1), "u1")) -> images of \(16, 16, 1\) .* with the same code
extract(np.zeros((1, 8, 8, 1), "f4")) -> type float32 must be uint8 .* use to_uint8
extract(np.zeros((8, 8, 1), "u1")) -> shape \(8, 8, 1\) must be \[examples
to_uint8([np.nan], low=-1.0, high=1.0) -> generator that has diverged has no score
"""


@pytest.mark.parametrize("row", REFUSED.strip().splitlines())
def test_wrong_images_are_refused(evaluator, row):
    call, _, message = row.partition(" -> ")
    of_evaluator = {"score": evaluator.score, "extract": evaluator.extractor.extract}
    with pytest.raises(ValueError, match=message):
        eval(call, globals(), of_evaluator)


def test_floats_become_pixels_as_a_viewer_stores_them():
    values = np.array([-2.0, -1.0, 0.0, 0.999, 1.0, 5.0])

    pixels = to_uint8(values, low=-1.0, high=1.0)

    assert [0, 0, 128, 255, 255, 255] == pixels.tolist()


def test_weights_that_cannot_be_read_or_written_say_what_to_do(
    extractor, monkeypatch, tmp_path
):
    (whole,) = (path for path in kept() if path.suffix == ".npz")
    monkeypatch.setenv("REPLICATOR_DATA_DIR", str(tmp_path))
    path = tmp_path / "extractors" / whole.name
    path.parent.mkdir()
    path.write_bytes(whole.read_bytes()[:1000])

    with pytest.raises(ValueError, match=r"digits-.*delete it to train again"):
        open_digits()
    monkeypatch.setenv("REPLICATOR_DATA_DIR", str(path))  # where a folder is needed
    with pytest.raises(ValueError, match="set REPLICATOR_DATA_DIR to a directory"):
        open_digits()


@pytest.mark.processes
def test_a_training_that_hangs_leaves_no_weights(extractor, monkeypatch, tmp_path):
    monkeypatch.setenv("REPLICATOR_DATA_DIR", str(tmp_path))
    run = subprocess.run

    def soon(*args, timeout, **options):
        return run(*args, timeout=timeout / 12_000, **options)

    monkeypatch.setattr(subprocess, "run", soon)
    with pytest.raises(ValueError, match=r"took more than 600\.0 s, where about 10"):
        open_digits()
    assert [".lock"] == [path.suffix for path in kept()]


NUM_FEATURES, NUM_CLASSES = 2048, 1008
RTOL_FLOAT32 = 1e-4  # a mean over 89,401 pixels and a product of 2,048 terms


@pytest.fixture(scope="module")
def images():
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, size=(3, 299, 299, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def kernels():
    generator = np.random.default_rng(1)
    pool = generator.normal(size=(3, NUM_FEATURES)).astype(np.float32)
    return pool, generator.normal(size=(NUM_FEATURES, NUM_CLASSES)).astype(np.float32)


def expected(images, kernels):
    pool, classifier = (kernel.astype(np.float64) for kernel in kernels)
    features = ((images - 128.0) / 128.0).mean(axis=(1, 2)) @ pool
    return features, features @ classifier


def write_graph(path, kernels, *, logits_name="logits", places=None):
    """A network of mean colours; with ``places``, of green at rows and columns."""
    with tf.Graph().as_default() as graph:
        image = tf.compat.v1.placeholder(tf.float32, [1, 299, 299, 3], name="Mul")
        if places is None:
            mean = tf.reduce_mean(image, axis=(1, 2), keepdims=True)
            pool = tf.nn.conv2d(mean, kernels[0][None, None], 1, "SAME", name="pool_3")
        else:
            rows = tf.gather(image[..., 1], places[0], axis=1)
            seen = tf.gather(rows, places[1], axis=2)
            pool = tf.reshape(seen, [-1, 1, 1, NUM_FEATURES], name="pool_3")
        num_features = pool.shape[-1]
        flat = tf.reshape(pool, [1, num_features], name="pool_3/_reshape")
        weights = tf.constant(kernels[1], name="softmax/weights")
        if logits_name == "logits":  # TF-GAN's copy takes any number of images
            flat = tf.reshape(pool, [-1, num_features])
        tf.matmul(flat, weights, name=logits_name)
    path.write_bytes(graph.as_graph_def().SerializeToString())


def test_a_frozen_graph_takes_many_images(tmp_path, images, kernels):
    for logits_name in ("softmax/logits/MatMul", "logits"):
        path = tmp_path / "classify_image_graph_def.pb"
        write_graph(path, kernels, logits_name=logits_name)

        extractor = open_inception(path)
        found = extractor.extract(images, num_images_at_once=2)

        for values, right, atol in zip(
            found, expected(images, kernels), (1e-4, 1e-2), strict=True
        ):
            np.testing.assert_allclose(values, right, rtol=RTOL_FLOAT32, atol=atol)
        assert hashlib.sha256(path.read_bytes()).hexdigest() == extractor.digest


def test_images_are_resized_as_in_2015(tmp_path, kernels):
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
    places = [np.linspace(0, 298, count).astype(int) for count in (32, 64)]
    write_graph(tmp_path / "weights.pb", kernels, places=places)

    (found, _) = open_inception(tmp_path / "weights.pb").extract(small)

    right = (square[np.ix_(*places)] - 128) / 128
    np.testing.assert_allclose(found.reshape(32, 64), right, atol=1e-4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "are no file: use classify_image_graph_def.pb or TF-GAN's"),
        (b"no graph", "is not a frozen graph .* point to classify_image"),
        (b"", r"no nodes \['Mul', 'pool_3', 'softmax/logits/MatMul'\]"),
        # 2,048 features and at least 1,000 classes, or it is not Inception v3.
        ("small", "gives 64 features and 10 logits"),
    ],
)
def test_other_files_are_refused(tmp_path, kernels, content, message):
    path = tmp_path / "weights.pb"
    if content == "small":
        small = kernels[0][:, :64], kernels[1][:64, :10]
        write_graph(path, small)
    elif content is not None:
        path.write_bytes(content)

    with pytest.raises(ValueError, match=message) as info:
        open_inception(path)

    assert "\n" not in str(info.value)
