"""Operands: types and static shapes of the tensors of one collective call."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Operands:
    """What is known of the operands of a call.

    Attributes:
      dtypes: Type of each operand.
      shapes: Static shape of each operand.
    """

    dtypes: tuple[tf.DType, ...]
    shapes: tuple[tf.TensorShape, ...]

    @property
    def have_static_shapes(self) -> bool:
        """Whether TensorFlow's collective ops take the tensors as they are."""
        return all(
            shape.is_fully_defined() and shape.num_elements() > 0
            for shape in self.shapes
        )
