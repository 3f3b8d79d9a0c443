"""The extractor that is always available: a small classifier of the embedded digits."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import pathlib
import zipfile

import numpy as np
import tensorflow as tf

from workloads import child_process
from workloads.data import builders, names
from workloads.metrics import digits_training, extractor
from workloads.metrics.extractor import FeatureExtractor

_MOST_SEC = 600.0
_KEY_LENGTH = 16


class DigitsExtractor(FeatureExtractor):
    """Three convolutions and two dense layers, trained on the 1,438 training digits.

    Features are the 32 values before the logits of the ten digits, with mean square 1.
    Images of other sizes are averaged over areas to 8 x 8, and colours over channels,
    so a score compares digits at their original resolution, and says nothing about
    finer details.
    """

    name = "digits"
    num_features = digits_training.NUM_FEATURES

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.digest = extractor.digest_arrays(weights)
        self._weights = {name: tf.constant(value) for name, value in weights.items()}
        self._forward = tf.function(self._features_and_logits)

    def preparation(self, image_shape: tuple[int, ...]) -> str:
        """Describes how images become 8 x 8 grey values."""
        height, width, num_channels = image_shape
        size = digits_training.IMAGE_SIZE
        resizing = "as stored" if height == width == size else "resized by area"
        return (
            f"uint8 {height} x {width} x {num_channels}, mean of channels, {size} x "
            f"{size} {resizing}, / 255"
        )

    def _features_and_logits(self, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        grey = tf.reduce_mean(tf.cast(images, tf.float32), axis=-1, keepdims=True)
        size = digits_training.IMAGE_SIZE
        if images.shape[1:3] != (size, size):
            grey = tf.image.resize(grey, [size, size], method="area")
        features, logits = digits_training.forward(self._weights, grey / 255.0)
        return features, logits


def prepare_digits() -> pathlib.Path:
    """Trains the digits classifier on first use, in a few seconds; returns its file.

    No TensorFlow op runs in this process: replicators create virtual devices, which
    must be done before the first op.

    The weights are stored with the embedded data, under a name that changes with the
    code and the TensorFlow version that train them. A different kind of machine rounds
    differently and gets different weights, with a different digest: to compare scores
    of two machines, copy the file.
    """
    path = cache_path()
    builders.write_once(
        path,
        lambda: _train(path),
        lock=path.with_suffix(".lock"),
        title="the digits classifier",
    )
    return path


def open_digits() -> DigitsExtractor:
    """Opens the digits classifier, and trains it first if needed."""
    path = prepare_digits()
    try:
        with np.load(path, allow_pickle=False) as stored:
            weights = {name: stored[name] for name in stored.files}
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(
            f"{str(path)!r} holds no weights of the digits classifier ({error}): "
            "delete it to train again"
        ) from error
    return DigitsExtractor(weights)


def cache_path() -> pathlib.Path:
    """Returns the path of the weights."""
    code = pathlib.Path(digits_training.__file__).read_bytes()
    tensorflow = importlib.metadata.version("tensorflow")
    key = hashlib.sha256(code + tensorflow.encode()).hexdigest()[:_KEY_LENGTH]
    return names.cache_dir() / "extractors" / f"digits-{key}.npz"


def _train(path: pathlib.Path) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    # Flags of TensorFlow and XLA change the bits; that process does not inherit ours.
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TF_", "XLA_"))
    }
    try:
        child_process.run_module(
            digits_training.__name__,
            str(temporary),
            title="training the digits classifier",
            most_sec=_MOST_SEC,
            variables=variables,
        )
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
