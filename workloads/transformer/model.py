"""A decoder-only Transformer, architecture only.

The model is a list of parts that follow one another: an embedding, blocks, and a head.
Between two parts are the vectors of all tokens of a batch, [sequences * length, width].
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

import replicator
from workloads.common import training
from workloads.data.text_files import NUM_TOKENS

from . import study

if TYPE_CHECKING:
    from .study import TransformerConfig


_EPSILON = 1e-6
_LONGEST_WAVE = 10_000.0


def dropped(values: tf.Tensor, rate: float, seed: tf.Tensor | None, layer: int) -> Any:
    """Returns values of which a share is zero: the same ones for the same seed."""
    if seed is None or not rate:
        return values
    own = seed + tf.constant([0, layer], tf.int32)
    drawn = tf.random.stateless_uniform(tf.shape(values), own)
    kept = tf.cast(drawn >= rate, values.dtype)
    return values * kept / tf.cast(1.0 - rate, values.dtype)


def waves(length: int, width: int) -> np.ndarray:
    """Returns the sinusoids of positions, [length, width] (Vaswani et al., 3.5)."""
    rates = _LONGEST_WAVE ** -(np.arange(0, width, 2) / width)
    angles = np.arange(length)[:, np.newaxis] * rates
    encoding = np.empty([length, width], np.float32)
    encoding[:, 0::2], encoding[:, 1::2] = np.sin(angles), np.cos(angles)
    return encoding


class Embedding(keras.layers.Layer):
    """Vectors of tokens and of their positions; the first part."""

    def __init__(self, config: TransformerConfig, seeds: Iterator[int]) -> None:
        super().__init__(name="embedding")
        self._config = config
        width = config.width
        self.tokens = keras.layers.Embedding(
            NUM_TOKENS,
            width,
            embeddings_initializer=keras.initializers.RandomNormal(
                stddev=width**-0.5, seed=next(seeds)
            ),
        )
        self.tokens.build(None)
        self._positions = waves(config.sequence_length, width)
        self.built = True

    def call(self, token: tf.Tensor, seed: tf.Tensor | None = None) -> tf.Tensor:
        """Returns [sequences * length, width] of [sequences, length], int64.

        Every token is replaced by the one before it, the first by zero: each token is
        predicted from those before it.
        """
        before = tf.concat([tf.zeros_like(token[:, :1]), token[:, :-1]], axis=1)
        vectors = self.tokens(before)
        scale = tf.cast(math.sqrt(self._config.width), vectors.dtype)
        vectors = vectors * scale + tf.cast(self._positions, vectors.dtype)
        flat = tf.reshape(vectors, [-1, self._config.width])
        return dropped(flat, self._config.dropout, seed, 0)


class Block(keras.layers.Layer):
    """Self-attention and a feed-forward network, each on normalised inputs."""

    def __init__(
        self, config: TransformerConfig, index: int, seeds: Iterator[int]
    ) -> None:
        super().__init__(name=f"block_{index}")
        self._config = config
        self._index = index
        width, hidden = config.width, config.feed_forward_width

        def dense(
            name: str,
            inputs: int,
            outputs: int,
            dimensions: tuple[str, str],
            **settings: Any,
        ) -> Any:
            layer = keras.layers.Dense(
                outputs,
                kernel_initializer=keras.initializers.GlorotUniform(seed=next(seeds)),
                name=name,
                **settings,
            )
            layer.build((None, inputs))
            replicator.named(layer.kernel, *dimensions)
            if layer.use_bias:
                replicator.named(layer.bias, dimensions[1])
            return layer

        self.attention_norm = _norm("attention_norm", width)
        self.projections = [
            dense(name, width, width, ("width", "heads"), use_bias=False)
            for name in ("query", "key", "value")
        ]
        self.projections.append(
            dense("output", width, width, ("heads", "width"), use_bias=False)
        )
        self.feed_forward_norm = _norm("feed_forward_norm", width)
        self.expand = dense(
            "expand", width, hidden, ("width", "hidden"), activation="relu"
        )
        self.contract = dense("contract", hidden, width, ("hidden", "width"))
        self._future = np.triu(
            np.full([config.sequence_length] * 2, -np.inf, np.float32), k=1
        )
        self.built = True

    def call(self, vectors: tf.Tensor, seed: tf.Tensor | None = None) -> tf.Tensor:
        rate, layer_index = self._config.dropout, 2 * self._index + 1
        attended = self._attend(self.attention_norm(vectors))
        vectors += dropped(attended, rate, seed, layer_index)
        hidden = self.expand(self.feed_forward_norm(vectors))
        return vectors + dropped(self.contract(hidden), rate, seed, layer_index + 1)

    def _attend(self, vectors: tf.Tensor) -> tf.Tensor:
        """Mixes the vectors of a sequence, each with those up to its own position."""
        config = self._config
        size = config.width // config.num_heads
        of_query, of_key, of_value, of_output = self.projections

        def heads(layer: Any) -> tf.Tensor:
            shape = [-1, config.sequence_length, config.num_heads, size]
            return tf.transpose(tf.reshape(layer(vectors), shape), [0, 2, 1, 3])

        scores = tf.matmul(heads(of_query), heads(of_key), transpose_b=True)
        # A softmax in 16 bits loses small probabilities.
        scores = tf.cast(scores, tf.float32) * size**-0.5 + self._future
        weights = tf.cast(tf.nn.softmax(scores), vectors.dtype)
        mixed = tf.matmul(weights, heads(of_value))
        return of_output(
            tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, config.width])
        )


class Head(keras.layers.Layer):
    """Logits of the tokens; the last part."""

    def __init__(self, config: TransformerConfig, seeds: Iterator[int]) -> None:
        super().__init__(name="head")
        self.norm = _norm("norm", config.width)
        self.logits = keras.layers.Dense(
            NUM_TOKENS,
            kernel_initializer=keras.initializers.GlorotUniform(seed=next(seeds)),
            name="logits",
        )
        self.logits.build((None, config.width))
        self.built = True

    def call(self, vectors: tf.Tensor, seed: tf.Tensor | None = None) -> tf.Tensor:
        del seed  # nothing is dropped here
        return tf.cast(self.logits(self.norm(vectors)), tf.float32)


class Transformer(keras.Model):
    """The whole model."""

    def __init__(self, config: TransformerConfig, *, seed: int) -> None:
        super().__init__(name="transformer")
        drawn = np.random.default_rng(seed)
        seeds = (int(drawn.integers(2**31)) for _ in itertools.count())
        makers: list[Callable[[Iterator[int]], Any]] = [
            functools.partial(Embedding, config),
            *(functools.partial(Block, config, i) for i in range(config.num_layers)),
            functools.partial(Head, config),
        ]
        num_stages = config.pipeline_stages
        cut = replicator.balance_stages(study.flops_by_part(config), num_stages)
        self.stages: list[list[Any]] = []
        with training.dtype_policy(config.compute_dtype):
            for stage, indices in enumerate(cut):
                # Not every backend can split a replica, and none has to for one stage.
                device = replicator.logical_device(stage) if num_stages > 1 else None
                with device or contextlib.nullcontext():
                    self.stages.append([makers[i](seeds) for i in indices])
        self.embedding, *self.blocks, self.head = itertools.chain(*self.stages)
        # Shapes are known from the constructors, so nothing is inferred.
        self.built = True

    def call(self, token: tf.Tensor, seed: tf.Tensor | None = None) -> tf.Tensor:
        vectors = token
        for part in (self.embedding, *self.blocks, self.head):
            vectors = part(vectors, seed)
        return vectors


class Stage:
    """Parts of the model that follow one another, as a pipeline takes them."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts
        self.name = ", ".join(part.name for part in parts)
        self.trainable_variables = [
            variable for part in parts for variable in part.trainable_variables
        ]

    def __call__(self, values: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        vectors, *seeds = values
        for part in self._parts:
            vectors = part(vectors, seeds[0][0] if seeds else None)
        return (vectors, *seeds)


def _norm(name: str, width: int) -> Any:
    layer = keras.layers.LayerNormalization(epsilon=_EPSILON, name=name)
    layer.build((None, width))
    return layer


@keras.saving.register_keras_serializable(package="replicator_harness")
@dataclasses.dataclass(kw_only=True, eq=False)
class InverseSquareRoot(training.Schedule):
    """``factor * width^-0.5 * min(step^-0.5, step * warmup^-1.5)`` (section 5.3)."""

    factor: float
    width: int
    lr_warmup_steps: int

    def __call__(self, step: Any) -> Any:
        count = tf.cast(step, tf.float32) + 1.0  # published: from 1
        scale, warmup = self.factor * self.width**-0.5, float(self.lr_warmup_steps)
        return scale * tf.minimum(count**-0.5, count * warmup**-1.5)
