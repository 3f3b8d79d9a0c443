"""Call: one collective of a traced step, on one or several tensors."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from replicator.collectives.operands import Operands

if TYPE_CHECKING:
    import tensorflow as tf

    from replicator.collectives.kind import CollectiveKind


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Collective(Operands):
    """One collective call of a step."""

    index: int  # Its place in the order of calls.
    kind: CollectiveKind  # What it does.
    num_replicas: int  # Replicas that take part.
    operands: tuple[str, ...]  # One node per tensor, whose only output is the operand.
    markers: tuple[str, ...]  # One node per tensor, which stands for the result.
    # Node whose only output says whether this call communicates at all, a scalar bool;
    # None if it always does.
    needed_if: str | None = None

    @property
    def read(self) -> tuple[str, ...]:
        """The nodes whose outputs linking reads."""
        return (*self.operands, *((self.needed_if,) if self.needed_if else ()))

    def result_shape(self, position: int) -> tf.TensorShape:
        """Static shape of the result for one tensor."""
        return self.kind.result_shape(self.shapes[position], self.num_replicas)
