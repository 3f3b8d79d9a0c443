"""An embedding whose rows are distributed over several variables."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from replicator.validation.arguments import INT32_MAX, is_integer, shown


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
        sizes = {
            "num_rows": num_rows,
            "num_columns": num_columns,
            "num_parts": num_parts,
        }
        for argument, size in sizes.items():
            if not is_integer(size, least=1, most=INT32_MAX):
                raise ValueError(
                    f"{argument} {shown(size)} must be an integer of at least 1 and at "
                    f"most {INT32_MAX}"
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
            found = tf.gather(variable.value, rows)
            found = tf.where(is_here[..., None], found, tf.zeros_like(found))
            outputs = found if outputs is None else outputs + found
        return outputs

    def table(self) -> tf.Tensor:
        """Returns all vectors, [num_rows, num_columns], in the order of their rows."""
        return self(tf.range(self.num_rows))
