"""Inception from files of every kind, with made-up weights of the real shapes."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from workloads.metrics.extractors import inception_network
from workloads.metrics.extractors.inception import open_inception

if TYPE_CHECKING:
    import pathlib

NUM_FEATURES, NUM_CLASSES = 2048, 1008
RTOL_FLOAT32 = 1e-4  # a mean over 89,401 pixels and a product of 2,048 terms


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    """Three images of the network's own size."""
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, size=(3, 299, 299, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def kernels() -> Any:
    """Weights of a network that averages pixels, and of its classifier."""
    generator = np.random.default_rng(1)
    pool = generator.normal(size=(3, NUM_FEATURES)).astype(np.float32)
    return pool, generator.normal(size=(NUM_FEATURES, NUM_CLASSES)).astype(np.float32)


def expected(images: np.ndarray, kernels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Features and logits of that network, in float64."""
    pool, classifier = (kernel.astype(np.float64) for kernel in kernels)
    features = ((images - 128.0) / 128.0).mean(axis=(1, 2)) @ pool
    return features, features @ classifier


def write_graph(path: pathlib.Path, kernels: Any, *, logits_name: str) -> None:
    """Writes a frozen graph with the node names of 2015, for one image at a time."""
    with tf.Graph().as_default() as graph:
        image = tf.compat.v1.placeholder(tf.float32, [1, 299, 299, 3], name="Mul")
        mean = tf.reduce_mean(image, axis=(1, 2), keepdims=True)
        pool = tf.nn.conv2d(mean, kernels[0][None, None], 1, "SAME", name="pool_3")
        flat = tf.reshape(pool, [1, NUM_FEATURES], name="pool_3/_reshape")
        weights = tf.constant(kernels[1], name="softmax/weights")
        if logits_name == "logits":  # TF-GAN's copy takes any number of images
            flat = tf.reshape(pool, [-1, NUM_FEATURES])
        tf.matmul(flat, weights, name=logits_name)
    path.write_bytes(graph.as_graph_def().SerializeToString())


@pytest.mark.parametrize("logits_name", ["softmax/logits/MatMul", "logits"])
def test_a_frozen_graph_takes_many_images(
    tmp_path: pathlib.Path, images: np.ndarray, kernels: Any, logits_name: str
) -> None:
    """Features and logits without bias, of the original graph and of TF-GAN's copy."""
    path = tmp_path / "classify_image_graph_def.pb"
    write_graph(path, kernels, logits_name=logits_name)

    extractor = open_inception(path)
    found = extractor.extract(images, num_images_at_once=2)

    features, logits = expected(images, kernels)
    np.testing.assert_allclose(found.features, features, rtol=RTOL_FLOAT32, atol=1e-4)
    np.testing.assert_allclose(found.logits, logits, rtol=RTOL_FLOAT32, atol=1e-2)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == extractor.digest


def test_images_are_resized_as_in_2015() -> None:
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

    prepared = inception_network.prepare_2015(tf.constant(small)).numpy()

    np.testing.assert_allclose(prepared[0, :, :, 1], (square - 128) / 128, atol=1e-4)


class AveragingModule(tf.Module):
    """The averaging network as TF-GAN's SavedModel has it."""

    def __init__(self, kernels: Any, names: tuple[str, str]) -> None:
        super().__init__()
        self.kernels = [tf.Variable(kernel) for kernel in kernels]
        self.names = names

    @tf.function(input_signature=[tf.TensorSpec([None, 299, 299, 3], tf.float32)])
    def __call__(self, images: Any) -> Any:
        """Returns a dict of rank 4 features and rank 2 logits."""
        features = tf.reduce_mean(images, axis=(1, 2)) @ self.kernels[0]
        logits = features @ self.kernels[1]
        return dict(zip(self.names, (features[:, None, None], logits), strict=True))


@pytest.mark.parametrize("has_call", [True, False])
def test_a_saved_model_is_called_or_its_signature_is(
    tmp_path: pathlib.Path, images: np.ndarray, kernels: Any, has_call: bool
) -> None:
    """Both ways to export it; variables live as long as the extractor."""
    module: Any = AveragingModule(kernels, ("pool_3", "logits"))
    signatures = None
    if not has_call:
        outer = tf.Module()
        outer.inner = module.kernels
        signatures = {"serving_default": module.__call__.get_concrete_function()}
        module = outer
    tf.saved_model.save(module, str(tmp_path), signatures=signatures)

    found = open_inception(tmp_path).extract(images)

    features, logits = expected(images, kernels)
    np.testing.assert_allclose(found.features, features, rtol=RTOL_FLOAT32, atol=1e-4)
    np.testing.assert_allclose(found.logits, logits, rtol=RTOL_FLOAT32, atol=1e-2)


def short_inception(weights: None = None) -> Any:
    """A network with the input, the last layers and the kinds of weights of Inception.

    Making, writing and tracing all of Keras' InceptionV3 takes ten seconds.
    """
    assert weights is None
    return keras.Sequential(
        [
            keras.Input((299, 299, 3)),
            keras.layers.Conv2D(8, 5, strides=16, use_bias=False),
            keras.layers.BatchNormalization(scale=False),
            keras.layers.ReLU(),
            keras.layers.Conv2D(NUM_FEATURES, 1, use_bias=False),
            keras.layers.GlobalAveragePooling2D(name="avg_pool"),
            keras.layers.Dense(1000, activation="softmax", name="predictions"),
        ]
    )


@pytest.fixture(params=["short", pytest.param("whole", marks=pytest.mark.full)])
def keras_model(request: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """InceptionV3 with random weights, and statistics that are not trivial.

    A short one; in the full run all of it as well.
    """
    if request.param == "short":
        monkeypatch.setattr(keras.applications, "InceptionV3", short_inception)
    keras.utils.set_random_seed(3)
    model = keras.applications.InceptionV3(weights=None)
    for weight in model.weights:
        if weight.path.endswith("moving_mean"):
            weight.assign(weight + 0.1)
    return model


def write_legacy_weights(path: pathlib.Path, model: Any) -> None:
    """Writes the weights as Keras' published file has them: by layer, in order."""
    with h5py.File(path, "w") as file:
        layers = [layer for layer in model.layers if layer.weights]
        file.attrs["layer_names"] = [layer.name.encode() for layer in layers]
        file.attrs["backend"] = b"tensorflow"
        file.attrs["keras_version"] = b"2.1.0"
        for layer in layers:
            group = file.create_group(layer.name)
            names = [f"{layer.name}/{weight.name}:0" for weight in layer.weights]
            group.attrs["weight_names"] = [name.encode() for name in names]
            for name, weight in zip(names, layer.weights, strict=True):
                group[name] = weight.numpy()


@pytest.mark.parametrize("name", ["inception_v3_weights.h5", "model.keras"])
def test_keras_files_give_features_and_logits(
    tmp_path: pathlib.Path, images: np.ndarray, keras_model: Any, name: str
) -> None:
    """Weights as published, and whole models: the pooled values, logits not softmax.

    Of a short network with the same input and last layers; the full run does it with
    all of Inception.
    """
    path = tmp_path / name
    if path.suffix == ".h5":
        write_legacy_weights(path, keras_model)
    else:
        keras_model.save(path)

    found = open_inception(path).extract(images[:1])

    softmax = keras_model(images[:1] / np.float32(127.5) - 1.0, training=False).numpy()
    exponents = np.exp(found.logits.astype(np.float64))
    np.testing.assert_allclose(exponents / exponents.sum(), softmax, rtol=1e-3)
    kernel, bias = keras_model.get_layer("predictions").get_weights()
    np.testing.assert_allclose(
        found.features @ kernel + bias, found.logits, rtol=1e-3, atol=1e-5
    )


def test_a_keras_file_of_another_network_is_refused(tmp_path: pathlib.Path) -> None:
    """The missing layer is named, with what to do."""
    path = tmp_path / "other.keras"
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]).save(path)

    with pytest.raises(ValueError, match=r"avg_pool.*made with include_top=True"):
        open_inception(path)


def test_a_network_of_another_size_is_refused(
    tmp_path: pathlib.Path, kernels: Any
) -> None:
    """2,048 features and at least 1,000 classes, or it is not Inception v3."""
    module = AveragingModule(
        [kernels[0][:, :64], kernels[1][:64, :10]], ("pool_3", "logits")
    )
    tf.saved_model.save(module, str(tmp_path))

    with pytest.raises(ValueError, match="gives 64 features and 10 logits"):
        open_inception(tmp_path)


def test_a_saved_model_of_another_network_is_refused(
    tmp_path: pathlib.Path, kernels: Any
) -> None:
    """Its outputs are listed, and those that are needed."""
    tf.saved_model.save(
        AveragingModule(kernels, ("embedding", "scores")), str(tmp_path)
    )

    with pytest.raises(ValueError, match=r"\['embedding', 'scores'\]: .*'pool_3'"):
        open_inception(tmp_path)


def test_a_saved_model_without_a_function_is_refused(tmp_path: pathlib.Path) -> None:
    """Neither a call nor the default signature."""
    tf.saved_model.save(tf.Module(), str(tmp_path))

    with pytest.raises(ValueError, match="neither be called nor has it the signature"):
        open_inception(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.pb", None, "do not exist: point to a Keras"),
        ("weights.npz", b"x", "of an unknown kind: point to a Keras"),
        ("graph.pb", b"no graph", "is not a frozen graph"),
        ("empty.pb", b"", r"no nodes \['Mul', 'pool_3', 'softmax/logits/MatMul'\]"),
        ("weights.h5", b"no archive", "does not hold Keras' InceptionV3"),
        ("model.keras", b"no archive", "does not hold Keras' InceptionV3"),
        ("folder", None, "is not a SavedModel .* holds saved_model.pb"),
    ],
)
def test_files_of_other_kinds_are_refused(
    tmp_path: pathlib.Path, name: str, content: bytes | None, message: str
) -> None:
    """One line that says what to point to instead."""
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    elif name == "folder":
        path.mkdir()

    with pytest.raises(ValueError, match=message) as info:
        open_inception(path)

    assert "\n" not in str(info.value)
