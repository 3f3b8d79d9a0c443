"""The extractor that is always available: a small classifier of the embedded digits.

    python -m workloads.metrics.digits WEIGHTS_FILE

trains it, in a process of its own with one thread and no accelerator, so that the
weights do not depend on the threads, devices and random state of the calling process:
the same machine gives the same bits.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import os
import pathlib
import subprocess
import sys
import zipfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from workloads import child_environment
from workloads.data import names, sources
from workloads.metrics.evaluator import FeatureExtractor, digest_arrays

_MODULE = "workloads.metrics.digits"
_MOST_SEC = 600.0
_KEY_LENGTH = 16

NUM_FEATURES = 32
NUM_CLASSES = 10
IMAGE_SIZE = 8
SEED = 0
NUM_EPOCHS = 20
GLOBAL_BATCH_SIZE = 64
LEARNING_RATE = 4e-3
DROPOUT = 0.1
MOST_SHIFT = 1  # pixels
LEAK = 0.1  # with plain ReLU three in four features would always be zero
# Height, width, inputs, outputs of each kernel.
KERNELS = {
    "conv_0": (3, 3, 1, 32),
    "conv_1": (3, 3, 32, 64),
    "conv_2": (3, 3, 64, 64),
    "features": (2 * 2 * 64, NUM_FEATURES),
    "logits": (NUM_FEATURES, NUM_CLASSES),
}


def forward(weights: Any, images: Any, dropout_seed: Any = None) -> Any:
    values = images
    for index in range(3):
        kernel, bias = weights[f"conv_{index}/kernel"], weights[f"conv_{index}/bias"]
        outputs = tf.nn.conv2d(values, kernel, 1, "SAME") + bias
        values = tf.nn.leaky_relu(outputs, LEAK)
        if index:
            values = tf.nn.max_pool2d(values, 2, 2, "VALID")
    values = tf.reshape(values, [-1, KERNELS["features"][0]])
    outputs = values @ weights["features/kernel"] + weights["features/bias"]
    features = tf.nn.leaky_relu(outputs, LEAK)
    kept = features
    if dropout_seed is not None:
        kept = tf.nn.experimental.stateless_dropout(features, DROPOUT, dropout_seed)
    return features, kept @ weights["logits/kernel"] + weights["logits/bias"]


def initial_weights() -> dict[str, np.ndarray]:
    """Returns He-normal kernels and zero biases."""
    # The stream of RandomState never changes; that of newer generators can.
    random = np.random.RandomState(SEED)
    weights = {}
    for name, shape in KERNELS.items():
        stddev = np.sqrt(2.0 / np.prod(shape[:-1]))
        values = stddev * random.standard_normal(shape)
        weights[f"{name}/kernel"] = values.astype(np.float32)
        weights[f"{name}/bias"] = np.zeros(shape[-1], np.float32)
    return weights


def train(images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    weights = {name: tf.Variable(v) for name, v in initial_weights().items()}
    variables = list(weights.values())
    num_steps = NUM_EPOCHS * (len(images) // GLOBAL_BATCH_SIZE)
    optimizer = keras.optimizers.Adam(
        keras.optimizers.schedules.CosineDecay(LEARNING_RATE, num_steps)
    )
    optimizer.build(variables)

    @tf.function
    def step(batch: Any, batch_labels: Any, seed: Any) -> None:
        with tf.GradientTape() as tape:
            _, logits = forward(weights, batch, seed)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(batch_labels, logits)
            )
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    random = np.random.RandomState(SEED + 1)
    margin = ((0, 0), (MOST_SHIFT, MOST_SHIFT), (MOST_SHIFT, MOST_SHIFT), (0, 0))
    padded = np.pad(images.astype(np.float32) / 255.0, margin)
    for index in range(num_steps):
        batch_index = index % (len(images) // GLOBAL_BATCH_SIZE)
        if not batch_index:
            order = random.permutation(len(images))
        chosen = order[batch_index * GLOBAL_BATCH_SIZE :][:GLOBAL_BATCH_SIZE]
        shifts = random.randint(0, 2 * MOST_SHIFT + 1, size=(GLOBAL_BATCH_SIZE, 2))
        moved = [
            padded[example, y : y + IMAGE_SIZE, x : x + IMAGE_SIZE]
            for example, (y, x) in zip(chosen, shifts, strict=True)
        ]
        step(
            tf.constant(np.stack(moved)),
            tf.constant(labels[chosen]),
            tf.constant([SEED, index]),
        )
    trained = {name: variable.numpy() for name, variable in weights.items()}
    return with_unit_features(trained, images)


def with_unit_features(
    weights: dict[str, np.ndarray], images: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns weights of the same logits whose features have mean square 1.

    The kernel distance depends on the scale of features, which training does not fix.
    """
    features, _ = forward(weights, images.astype(np.float32) / 255.0)
    scale = np.sqrt(np.mean(np.square(features.numpy()), dtype=np.float64))
    scaled = dict(weights)
    for name, factor in (
        ("features/kernel", 1 / scale),
        ("features/bias", 1 / scale),
        ("logits/kernel", scale),
    ):
        scaled[name] = (weights[name] * factor).astype(np.float32)
    return scaled


def load_digits(split: str) -> tuple[np.ndarray, np.ndarray]:
    examples = sources.open_source("digits").splits[split]
    images = [tf.io.decode_png(encoded).numpy() for encoded in examples["image"]]
    return np.stack(images), examples["label"]


def prepare_digits() -> pathlib.Path:
    """Trains the digits classifier on first use, in a few seconds; returns its file.

    No op runs in this process, so that replicators can create virtual devices. Another
    kind of machine rounds differently: to compare scores of two, copy the file.
    """
    path = cache_path()
    if path.is_file():
        return path
    lock = path.with_suffix(".lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("a") as file:
            # Of several processes one trains, and the others wait; the kernel releases
            # the lock if it exits.
            fcntl.flock(file, fcntl.LOCK_EX)
            if not path.is_file():
                _train(path)
    except OSError as error:
        raise ValueError(
            f"the digits classifier cannot be prepared under {str(lock.parent)!r} "
            f"({error.strerror}): set REPLICATOR_DATA_DIR to a directory that can "
            "be written"
        ) from error
    return path


def open_digits() -> FeatureExtractor:
    """Opens the digits classifier, and trains it first if needed.

    Three convolutions and two dense layers, trained on the 1,438 training digits.
    Images are averaged over channels and areas to 8 x 8: a score says nothing about
    finer details.
    """
    path = prepare_digits()
    try:
        with np.load(path, allow_pickle=False) as stored:
            weights = {name: stored[name] for name in stored.files}
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(
            f"{str(path)!r} holds no weights of the digits classifier ({error}): "
            "delete it to train again"
        ) from error
    constants = {name: tf.constant(value) for name, value in weights.items()}
    size = (IMAGE_SIZE, IMAGE_SIZE)

    @tf.function
    def features_and_logits(images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        grey = tf.reduce_mean(tf.cast(images, tf.float32), axis=-1, keepdims=True)
        if images.shape[1:3] != size:
            grey = tf.image.resize(grey, size, method="area")
        features, logits = forward(constants, grey / 255.0)
        return features, logits

    def resizing(image_shape: tuple[int, ...]) -> str:
        how = "as stored" if image_shape[:2] == size else "resized by area"
        return f"mean of channels, {IMAGE_SIZE} x {IMAGE_SIZE} {how}, / 255"

    return FeatureExtractor(
        name="digits",
        digest=digest_arrays(weights),
        forward=features_and_logits,
        resizing=resizing,
    )


def cache_path() -> pathlib.Path:
    code = pathlib.Path(__file__).read_bytes()
    tensorflow = importlib.metadata.version("tensorflow")
    key = hashlib.sha256(code + tensorflow.encode()).hexdigest()[:_KEY_LENGTH]
    return names.cache_dir() / "extractors" / f"digits-{key}.npz"


def _train(path: pathlib.Path) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    # Flags of TensorFlow and XLA change the bits; that process does not inherit ours.
    variables = {
        name: value
        for name, value in child_environment().items()
        if not name.startswith(("TF_", "XLA_"))
    }
    title = "training the digits classifier"
    try:
        subprocess.run(
            [sys.executable, "-m", _MODULE, str(temporary)],
            env=variables,
            capture_output=True,
            text=True,
            timeout=_MOST_SEC,
            check=True,
        )
        temporary.replace(path)
    except subprocess.TimeoutExpired as error:
        raise ValueError(
            f"{title} took more than {_MOST_SEC} s, where about 10 are usual: is the "
            "machine overloaded? Run it again when it is not"
        ) from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise ValueError(
            f"{title} ended with exit code {error.returncode} ({last}): run "
            f"'-m {_MODULE}' with a path to see all of its output"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def main(path: str) -> None:
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.set_visible_devices([], "GPU")
    tf.config.experimental.enable_op_determinism()
    images, labels = load_digits("train")
    with pathlib.Path(path).open("wb") as file:
        np.savez(file, allow_pickle=False, **train(images, labels))


if __name__ == "__main__":
    main(sys.argv[1])
