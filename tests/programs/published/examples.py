"""Small data that programs train on, and numbers that belong to an example."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

NUM_EXAMPLES = 16
BATCH = 8
WORDS = 12
LENGTH = 6
TEXTS = [
    "a good film with a fine story",
    "a poor film and a dull story",
    "the cast is fine and so is the plot",
    "the plot is dull and the end is poor",
] * (NUM_EXAMPLES // 4)


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def images(size: int = 8, channels: int = 1, seed: int = 0) -> Any:
    shape = NUM_EXAMPLES, size, size, channels
    return np.random.default_rng(seed).uniform(size=shape).astype(np.float32)


def labels(num_classes: int = 3) -> Any:
    generator = np.random.default_rng(1)
    return generator.integers(0, num_classes, NUM_EXAMPLES).astype(np.int32)


def tokens(seed: int = 0) -> Any:
    """16 rows of word numbers from 1; in every third, 0 fills up what is missing."""
    generator = np.random.default_rng(seed)
    words = generator.integers(1, WORDS, (NUM_EXAMPLES, LENGTH)).astype(np.int32)
    words[seed::3, 3:] = 0
    return words


def noise_of(values: Any, width: int) -> tf.Tensor:
    """What ``tf.random.normal`` gives in the published program, by example.

    A replica cannot draw what one device draws, so that these numbers look random but
    follow from the example.
    """
    integers = tf.cast(tf.convert_to_tensor(values) * 1000.0, tf.int32)
    axes = list(range(1, len(integers.shape)))
    keys = tf.cast(tf.reduce_sum(integers, axes) % 997, tf.float32)
    return tf.sin(keys[:, tf.newaxis] * tf.range(1.0, width + 1.0))


def results(model: Any, *more: Any) -> list[Any]:
    found: list[Any] = []
    for value in more:
        found += value.history.values() if hasattr(value, "history") else [value]
    return [*found, *(np.asarray(weight) for weight in model.get_weights())]


def batches(*arrays: Any) -> tf.data.Dataset:
    data = tf.data.Dataset.from_tensor_slices(arrays if len(arrays) > 1 else arrays[0])
    return data.batch(BATCH, drop_remainder=True)
