"""Packs: the copies that a replica has of several variables, as parts of one vector.

A network has two statistics per batch norm, and each replica has copies of them. With a
variable each, R replicas of ResNet-50 have 106 x R variables, and their handles, reads
and writes are a third of the first step of 32 replicas. Steps read a pack
once and write it once (``engine/graph/packed.py``).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import handles as _tf_handles
from replicator.step import creation
from replicator.variables.kinds import is_averaged, is_summed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.variables.table import Entry


class Pack:
    """One vector per replica.

    Attributes:
      vectors: A ``tf.Variable`` ``[sum(sizes)]`` per replica, on its device.
      sizes: Elements of each variable, in the order of the vector.
    """

    def __init__(self, vectors: Sequence[Any], sizes: Sequence[int]) -> None:
        self.vectors = tuple(vectors)
        self.sizes = tuple(sizes)
        self.offsets = tuple(itertools.accumulate((0, *sizes[:-1])))
        self._unpacked: dict[int, tuple[Any, ...]] = {}

    def copies(self, index: int) -> tuple[PackedCopy, ...]:
        """The copies of one variable, by replica."""
        return tuple(
            PackedCopy(self, index, replica) for replica in range(len(self.vectors))
        )

    def unpacked(self, index: int) -> tuple[Any, ...]:
        """Variables, by replica, for steps that cannot use a part; see ``Unpacked``."""
        if index not in self._unpacked:
            made = []
            for copy in self.copies(index):
                name = copy.vector.name.partition(":")[0]
                with tf.device(copy.device):
                    made.append(creation.own_variable(copy.value(), name=name))
            self._unpacked[index] = tuple(made)
        return self._unpacked[index]


class PackedCopy:
    """The copy that one replica has of one variable; has no handle.

    Attributes:
      pack: What it is a part of.
      index: Of the variable in the pack.
      vector: The variable that holds it.
      part: Its place there.
    """

    def __init__(self, pack: Pack, index: int, replica: int) -> None:
        self.pack = pack
        self.index = index
        self.vector = pack.vectors[replica]
        self.part = pack.offsets[index], pack.sizes[index]

    @property
    def shape(self) -> tf.TensorShape:
        """That of the variable."""
        return tf.TensorShape([self.pack.sizes[self.index]])

    @property
    def dtype(self) -> tf.DType:
        """That of the variable."""
        return self.vector.dtype

    @property
    def device(self) -> str:
        """Where it is."""
        return str(self.vector.device)

    def value(self) -> tf.Tensor:
        """Its value, as an op of the graph that is being built, or eagerly."""
        return read(_tf_handles.of(self.vector), self.dtype, self.part)

    def numpy(self) -> Any:
        """Its value, eagerly."""
        return self.value().numpy()

    def assign(self, value: Any) -> None:
        """Sets it, in a graph or eagerly."""
        value = tf.convert_to_tensor(value, self.dtype)
        assign(_tf_handles.of(self.vector), value, self.part)


def groups(variables: Sequence[Any]) -> list[list[Any]]:
    """Local variables that a pack can hold: vectors, read alike outside steps."""
    found: dict[Any, list[Any]] = {}
    for variable in variables:
        shape, dtype = variable.shape, variable.dtype
        is_vector = shape.rank == 1 and shape.is_fully_defined() and shape[0] > 0
        if is_vector and dtype.is_floating:
            key = is_averaged(variable), is_summed(variable), dtype, variable.device
            found.setdefault(key, []).append(variable)
    return [members for members in found.values() if len(members) > 1]


def pack_of(entry: Entry) -> Pack | None:
    """The pack that holds the copies of a variable; None if each is a variable."""
    first = entry.copies[0]
    return first.pack if isinstance(first, PackedCopy) else None


def stored(copy: Any) -> Any:
    """The ``tf.Variable`` that a copy is, or is a part of."""
    return copy.vector if isinstance(copy, PackedCopy) else copy


# Offset, which may be a tensor, and number of elements.
_Part = tuple[Any, int]


def read(handle: tf.Tensor, dtype: tf.DType, part: _Part | None = None) -> tf.Tensor:
    """Emits the read of a variable, or of a part of a vector."""
    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
    if part is None:
        return value
    offset, size = part
    return tf.slice(value, [offset], [size])


def assign(
    handle: tf.Tensor, value: tf.Tensor, part: _Part | None = None
) -> tf.Operation:
    """Emits the write of a variable, or of a part of a vector.

    Other parts may be written meanwhile.
    """
    if part is None:
        return tf.raw_ops.AssignVariableOp(resource=handle, value=value)
    offset, size = part
    return tf.raw_ops.ResourceStridedSliceAssign(
        ref=handle, begin=[offset], end=[offset + size], strides=[1], value=value
    )


class Unpacked:
    """Packed copies that one program uses as variables: set before, read after it.

    A step may use a variable in ways that a pack does not have, such as in a branch.
    """

    def __init__(self, pairs: Sequence[tuple[PackedCopy, Any]]) -> None:
        """Takes copies, and the variables that stand for them."""
        self._pairs = pairs

    def load(self) -> None:
        """Emits what comes before the program."""
        with _tf_handles.own():
            for copy, variable in self._pairs:
                variable.assign(copy.value(), read_value=False)

    def store(self) -> None:
        """Emits what comes after it."""
        with _tf_handles.own():
            for copy, variable in self._pairs:
                copy.assign(variable.value())
