"""Inception v3 from files of Keras."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import keras
import tensorflow as tf

from workloads.metrics.extractors.inception_network import (
    IMAGE_SIZE,
    InceptionExtractor,
)

if TYPE_CHECKING:
    import pathlib

PREPARATION = "299 x 299 bilinear (half-pixel centres, antialiased), x / 127.5 - 1"
_POOL, _CLASSIFIER = "avg_pool", "predictions"


def open_keras(path: pathlib.Path) -> InceptionExtractor:
    """Opens a whole model (``.keras``, ``.h5``) or weights (``.h5``, ``.weights.h5``).

    Raises:
      ValueError: Not such a file, weights of another network, or without classifier.
    """
    try:
        model = _load(path)
        pool = model.get_layer(_POOL).output
        classifier = model.get_layer(_CLASSIFIER)
    except (ValueError, OSError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(
            f"{str(path)!r} does not hold Keras' InceptionV3 with its classifier "
            f"({reason}): point to weights made with include_top=True"
        ) from error
    features_of = keras.Model(model.inputs, pool)
    kernel, bias = classifier.kernel, classifier.bias

    def network(images: tf.Tensor) -> tuple[Any, Any]:
        features = features_of(images, training=False)
        # Logits, also where the stored classifier ends in a softmax.
        return features, features @ kernel.value + bias.value

    return InceptionExtractor(
        path, prepare=_prepare, preparation=PREPARATION, network=network
    )


def _load(path: pathlib.Path) -> Any:
    if path.suffix == ".keras" or _is_whole_model(path):
        return keras.models.load_model(path, compile=False)  # safe_mode stays on
    model = keras.applications.InceptionV3(weights=None)
    model.load_weights(path)
    return model


def _is_whole_model(path: pathlib.Path) -> bool:
    with h5py.File(path, "r") as file:
        return "model_config" in file.attrs


def _prepare(images: tf.Tensor) -> tf.Tensor:
    resized = tf.image.resize(
        tf.cast(images, tf.float32), [IMAGE_SIZE, IMAGE_SIZE], antialias=True
    )
    return resized / 127.5 - 1.0
