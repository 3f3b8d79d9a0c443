"""Layers whose computation spans replicas."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from replicator.collectives import reductions
from replicator.core import context
from replicator.core.validation import INT32_MAX, format_value, is_integer, is_one_of

_FORMS = ("shifted", "two_pass")


class CrossReplicaBatchNormalization(keras.layers.BatchNormalization):
    """Batch normalization with the statistics of the whole global batch.

    Buchlovsky et al. 2019, section on primitives; Ioffe & Szegedy 2015. Training on R
    replicas gives the outputs, gradients and moving statistics of
    ``keras.layers.BatchNormalization`` on one replica with the concatenated batch.
    Outside of steps, and with ``training=False``, nothing is communicated.

    With a shift s and d = x - s, the ``shifted`` form computes with one all-reduce

        m1 = mean(d),  m2 = mean(d^2),  mean = s + m1,  variance = max(m2 - m1^2, 0).

    s is the moving mean: identical on all replicas, and constant for gradients. Its
    error in the variance is about u * (variance + 2 * m1^2) times a small constant (u =
    2^-24 for float32), so once the moving mean is close, it is as accurate as the
    ``two_pass`` form, which has no cancellation and costs a second all-reduce:

        mean = all_mean(mean(x)),  variance = all_mean(mean((x - mean)^2)).

    Statistics of float16 and bfloat16 are computed in float32. Every value of the
    global batch counts equally, also where replicas have different numbers of them or
    none; where the trace does not know the numbers, the all-reduce adds them up too.

    Attributes:
      variance_form: ``shifted`` or ``two_pass``.
    """

    def __init__(self, *, variance_form: str = "shifted", **options: Any) -> None:
        """Makes the layer.

        Args:
          variance_form: ``shifted`` (one all-reduce) or ``two_pass`` (two).
          **options: Options of ``keras.layers.BatchNormalization``.

        Raises:
          ValueError: Unknown ``variance_form``, ``synchronized=True`` or
            ``renorm=True``.
        """
        if not is_one_of(variance_form, _FORMS):
            raise ValueError(
                f"variance_form {format_value(variance_form)} is unknown; use "
                "'shifted' (one all-reduce) or 'two_pass' (two, no cancellation)"
            )
        if options.get("synchronized"):
            raise ValueError(
                "synchronized=True makes Keras communicate too, through "
                "tf.distribute; leave it out: this layer always communicates"
            )
        if options.get("renorm"):
            raise ValueError(
                "renorm=True corrects the statistics of small batches, but this layer "
                "uses those of the global batch; leave it out"
            )
        super().__init__(**options)
        self.variance_form = variance_form

    def _moments(self, values: tf.Tensor, mask: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance of the global batch, one number per channel each."""
        # Of Keras' layer, which asks for them when it trains, with floats of 32 bits at
        # least, and moves its statistics by them.
        if not context.in_replica_context():
            return super()._moments(values, mask)
        if mask is not None:
            raise ValueError(
                "CrossReplicaBatchNormalization got a mask, with which replicas could "
                "count different numbers of values; normalize without a mask"
            )
        rank = len(values.shape)
        axes = [index for index in range(rank) if index != self.axis % rank]
        # Where the trace knows how many values there are, all replicas have as many.
        count = math.prod(values.shape[axis] or 0 for axis in axes)
        num_replicas = context.require("all_mean").num_replicas_in_sync

        def means(*parts: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
            """Averages over all values of all replicas, and how many there are."""
            sums = [tf.reduce_sum(part, axes) for part in parts]
            if count:
                sums = reductions.all_sum(sums)
                total = tf.constant(count * num_replicas, values.dtype)
            else:
                sizes = tf.reduce_prod(tf.gather(tf.shape(values), axes))
                own = tf.cast(sizes, values.dtype)
                *sums, total = reductions.all_sum([*sums, own])
                total = tf.stop_gradient(total)
            return [tf.math.divide_no_nan(part, total) for part in sums], total

        def kept(statistic: tf.Tensor, moving: Any, total: tf.Tensor) -> tf.Tensor:
            """The moving statistic in a step in which no replica has a value."""
            before = tf.cast(moving.value, statistic.dtype)
            return statistic if count else tf.where(total > 0, statistic, before)

        if self.variance_form == "two_pass":
            (mean,), total = means(values)
            (variance,), _ = means((values - self._on_axis(mean, rank)) ** 2)
        else:
            shift = tf.cast(self.moving_mean.value, values.dtype)
            distance = values - self._on_axis(shift, rank)
            (first, second), total = means(distance, distance**2)
            mean = shift + first
            variance = tf.maximum(second - first**2, tf.zeros_like(first))
        return (
            kept(mean, self.moving_mean, total),
            kept(variance, self.moving_variance, total),
        )

    def _on_axis(self, vector: tf.Tensor, rank: int) -> tf.Tensor:
        """Gives a vector over channels the rank of the values."""
        shape = [1] * rank
        shape[self.axis % rank] = -1
        return tf.reshape(vector, shape)

    def get_config(self) -> dict[str, Any]:
        """The configuration from which Keras recreates the layer."""
        config = super().get_config()
        # Keras' own synchronization is what this layer replaces.
        config.pop("synchronized", None)
        return {**config, "variance_form": self.variance_form}


class ShardedEmbedding(keras.layers.Layer):
    """An embedding table that is too large for a single parameter server.

    Row r is row ``r // num_parts`` of part ``r % num_parts``, so consecutive rows
    (often the frequent words) are distributed evenly. Every part is an ordinary
    variable: backends with parameter servers place each part on a different server;
    other backends, optimizers and checkpoints treat it like any weight. Gradients are
    ``tf.IndexedSlices``, one row per id in each part; zeros for ids of other parts.

    It can be called in replica context and outside.

    Attributes:
      num_rows: Total number of vectors.
      parts: The variables, [rows of the part, num_columns].
    """

    def __init__(
        self,
        num_rows: int,
        num_columns: int,
        *,
        num_parts: int,
        initializer: Any = "uniform",
        name: str | None = None,
    ) -> None:
        """Makes the variables.

        Args:
          num_rows: Total number of vectors.
          num_columns: Length of a vector.
          num_parts: Number of variables; the number of parameter servers, or a multiple
            of it.
          initializer: Initializer of each part.
          name: Name of the layer.

        Raises:
          ValueError: A size that is not a positive integer; a part without a row.
        """
        super().__init__(name=name)
        for argument, size in (
            ("num_rows", num_rows),
            ("num_columns", num_columns),
            ("num_parts", num_parts),
        ):
            if not is_integer(size, least=1, most=INT32_MAX):
                raise ValueError(
                    f"{argument} {format_value(size)} must be an integer of at least 1 "
                    f"and at most {INT32_MAX}"
                )
        if not 1 <= num_parts <= num_rows:
            raise ValueError(
                f"num_parts {num_parts!r} must be at least 1 and at most num_rows, "
                f"which is {num_rows!r}: every part needs at least one row"
            )
        self.num_rows = num_rows
        self.parts = [
            self.add_weight(
                name=f"part_{index}",
                shape=(-(-(num_rows - index) // num_parts), num_columns),
                initializer=initializer,
            )
            for index in range(num_parts)
        ]
        self.built = True

    def call(self, ids: Any) -> tf.Tensor:
        """Returns the rows of ``ids``.

        Args:
          ids: Integers from 0 to ``num_rows - 1``, of any shape.

        Returns:
          The shape of ``ids``, and ``num_columns``.

        Raises:
          ValueError: ``ids`` are not integers.
          tf.errors.InvalidArgumentError: There is no such row; on CPUs.
        """
        ids = tf.convert_to_tensor(ids)
        if not ids.dtype.is_integer:
            raise ValueError(
                f"ShardedEmbedding needs integer ids, but got {ids.dtype.name!r}; pass "
                "row numbers"
            )
        count = len(self.parts)
        outputs = None
        for index, variable in enumerate(self.parts):
            # Every part gathers the same number of rows, so that its gradient has the
            # same size on all replicas; rows of other parts are zero.
            is_here = ids % count == index
            rows = tf.where(is_here, ids // count, tf.zeros_like(ids))
            embedded = tf.gather(variable.value, rows)
            embedded = tf.where(is_here[..., None], embedded, tf.zeros_like(embedded))
            outputs = embedded if outputs is None else outputs + embedded
        return outputs

    def table(self) -> tf.Tensor:
        """Returns all vectors, [num_rows, num_columns], in the order of their rows."""
        return self(tf.range(self.num_rows))
