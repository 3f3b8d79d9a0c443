"""An embedding whose rows are spread over several variables."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf


class ShardedEmbedding(keras.layers.Layer):
    """A table of vectors that no single parameter server has to hold.

    Row r is row ``r // num_parts`` of part ``r % num_parts``, so rows that follow
    one another (frequent words, often) are spread evenly. Every part is an ordinary
    variable: backends with parameter servers place each on a server of its own, the
    others treat it like any weight, and so do optimizers and checkpoints. Gradients are
    ``tf.IndexedSlices`` of the rows that were looked up.

    May be called in replica context and outside.

    Attributes:
      num_rows: Vectors in all.
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
          num_rows: Vectors in all.
          num_columns: Length of a vector.
          num_parts: Variables; the number of parameter servers, or a multiple of it.
          initializer: Of each part.
          name: Of the layer.

        Raises:
          ValueError: No part, or one without a row.
        """
        super().__init__(name=name)
        if not 1 <= num_parts <= num_rows:
            raise ValueError(
                f"num_parts {num_parts!r} must be at least 1 and at most num_rows, "
                f"which is {num_rows!r}: every part holds a row"
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
          ValueError: ``ids`` are no integers.
          tf.errors.InvalidArgumentError: There is no such row; on CPUs.
        """
        ids = tf.convert_to_tensor(ids)
        if not ids.dtype.is_integer:
            raise ValueError(
                f"ShardedEmbedding needs integer ids, but got {ids.dtype.name!r}; pass "
                "row numbers"
            )
        count = len(self.parts)
        flat = tf.reshape(ids, [-1])
        part = tf.cast(flat % count, tf.int32)
        rows = tf.dynamic_partition(flat // count, part, count)
        places = tf.dynamic_partition(tf.range(tf.size(flat)), part, count)
        found = [
            tf.gather(variable.value, of_part)
            for variable, of_part in zip(self.parts, rows, strict=True)
        ]
        vectors = tf.dynamic_stitch(places, found)
        num_columns = self.parts[0].shape[-1]
        outputs = tf.reshape(vectors, tf.concat([tf.shape(ids), [num_columns]], 0))
        outputs.set_shape([*ids.shape, num_columns])
        return outputs

    def table(self) -> tf.Tensor:
        """Returns all vectors, [num_rows, num_columns], in the order of their rows."""
        return self(tf.range(self.num_rows))
