"""Call: one collective of a traced step, on one or several tensors."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf

    from replicator.collectives.kind import CollectiveKind
    from replicator.placement.topology import Topology


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """One collective call of a step.

    Attributes:
      index: Its place in the order of calls.
      kind: What it does.
      num_replicas: Replicas that take part.
      operands: One node per tensor, whose only output is the operand.
      markers: One node per tensor, which stands for the result.
      dtypes: Type of each operand.
      shapes: Static shape of each operand.
      needed_if: Node whose only output says whether this call communicates at all, a
        scalar bool; None if it always does.
    """

    index: int
    kind: CollectiveKind
    num_replicas: int
    operands: tuple[str, ...]
    markers: tuple[str, ...]
    dtypes: tuple[tf.DType, ...]
    shapes: tuple[tf.TensorShape, ...]
    needed_if: str | None = None

    @property
    def read(self) -> tuple[str, ...]:
        """The nodes whose outputs linking reads."""
        return (*self.operands, *((self.needed_if,) if self.needed_if else ()))

    @property
    def has_static_shapes(self) -> bool:
        """Whether TensorFlow's collective ops take the tensors as they are."""
        return all(
            shape.is_fully_defined() and shape.num_elements() > 0
            for shape in self.shapes
        )

    def is_summed_by_xla(self, topology: Topology) -> bool:
        """Whether XLA's all-reduce, which sums numbers only, takes the tensors."""
        return (
            topology.has_own_gpus
            and self.has_static_shapes
            and all(dtype.is_floating or dtype.is_integer for dtype in self.dtypes)
        )

    def result_shape(self, position: int) -> tf.TensorShape:
        """Static shape of the result for one tensor."""
        return self.kind.result_shape(self.shapes[position], self.num_replicas)
