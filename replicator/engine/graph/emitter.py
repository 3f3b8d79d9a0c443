"""Emits the nodes of small computations, one method each.

For code that builds graphs of ``NodeDef``s without Python graph objects, which
TensorFlow's own functions would need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator.core.devices import cpu_of
from replicator.engine.graph.body import Ref, make_const, make_node

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator.engine.graph.body import Tensor

    # (op, type of its data if it has one, device) -> device
    SupportedDevice = Callable[[str, tf.DType | None, str], str]


class Emitter:
    """Collects nodes.

    Attributes:
      nodes: ``NodeDef``s emitted so far.
    """

    def __init__(self, supported_device: SupportedDevice | None = None) -> None:
        self.nodes: list[Any] = []
        self._supported_device = supported_device

    def dims(self, name: str, ref: Tensor, dtype: tf.DType, device: str) -> Ref:
        """The shape as a vector."""
        attrs = {"T": dtype, "out_type": tf.int32}
        return self.add(name, "Shape", [ref], device, "output:0", attrs)

    def row(self, name: str, ref: Tensor, dtype: tf.DType, device: str) -> Ref:
        """Adds a first dimension of one."""
        axis = self.const(f"{name}/axis", np.int32(0), device)
        attrs = {"T": dtype, "Tdim": tf.int32}
        return self.add(name, "ExpandDims", [ref, axis], device, "output:0", attrs)

    def convert(
        self,
        name: str,
        ref: Tensor,
        how: str,
        source: tf.DType,
        target: tf.DType,
        device: str,
    ) -> Tensor:
        """Casts or bitcasts (``how``) where the types differ."""
        if source == target:
            return ref
        if how == "Cast":
            return self.cast(name, ref, source, target, cpu_of(device))
        attrs = {"T": source, "type": target}
        return self.add(name, "Bitcast", [ref], device, "output:0", attrs)

    def cast(
        self, name: str, ref: Tensor, source: tf.DType, target: tf.DType, device: str
    ) -> Tensor:
        """Casts where the types differ."""
        if source == target:
            return ref
        attrs = {"SrcT": source, "DstT": target}
        return self.add(name, "Cast", [ref], device, "y:0", attrs)

    def scale(
        self, name: str, ref: Tensor, factor: float, dtype: tf.DType, device: str
    ) -> Ref:
        """The product with a number."""
        value = np.array(factor, dtype.as_numpy_dtype)
        other = self.const(f"{name}/factor", value, device)
        return self.add(name, "Mul", [ref, other], device, "z:0", {"T": dtype})

    def concat(
        self, name: str, refs: Sequence[Tensor], dtype: tf.DType, device: str
    ) -> Ref:
        """Joins along the first dimension."""
        axis = self.const(f"{name}/dim", np.int32(0), device)
        return self.add(
            name,
            "ConcatV2",
            [*refs, axis],
            device,
            "output:0",
            {"N": len(refs), "T": dtype, "Tidx": tf.int32},
        )

    def pack(
        self,
        name: str,
        refs: Sequence[Tensor],
        shapes: Sequence[Sequence[int]],
        dtype: tf.DType,
        device: str,
    ) -> Tensor:
        """The elements of tensors of given shapes as one vector, to send them at once.

        Vectors are taken as they are: of ResNet-50, two in three gradients.
        """
        flat = None
        parts: list[Tensor] = []
        for index, (ref, shape) in enumerate(zip(refs, shapes, strict=True)):
            if len(shape) == 1:
                parts.append(ref)
                continue
            flat = flat or self.numbers(f"{name}/flat", [-1], device)
            part = f"{name}/part_{index}"
            parts.append(self.reshape(part, ref, flat, dtype, device))
        return parts[0] if len(parts) == 1 else self.concat(name, parts, dtype, device)

    def unpack(
        self,
        name: str,
        ref: Tensor,
        shapes: Sequence[Sequence[int]],
        dtype: tf.DType,
        device: str,
    ) -> list[Ref]:
        """The tensors of given shapes that ``pack`` made one vector of."""
        sizes = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
        parts = self.split(f"{name}/split", ref, sizes, dtype, device)
        dims: dict[tuple[int, ...], Ref] = {}  # one node for equal shapes
        for index, shape in enumerate(map(tuple, shapes)):
            if len(shape) == 1:
                continue
            if shape not in dims:
                dims[shape] = self.numbers(f"{name}/shape_{index}", shape, device)
            value = f"{name}/value_{index}"
            parts[index] = self.reshape(value, parts[index], dims[shape], dtype, device)
        return parts

    def split(
        self,
        name: str,
        ref: Tensor,
        sizes: Sequence[int],
        dtype: tf.DType,
        device: str,
    ) -> list[Ref]:
        """Parts of given sizes along the first dimension."""
        lengths = self.numbers(f"{name}/sizes", sizes, device)
        axis = self.const(f"{name}/dim", np.int32(0), device)
        attrs = {"num_split": len(sizes), "T": dtype, "Tlen": tf.int32}
        inputs = [ref, lengths, axis]
        first = self.add(name, "SplitV", inputs, device, "output:0", attrs)
        return [Ref(node=first.node, port=f"output:{i}") for i in range(len(sizes))]

    def reshape(
        self, name: str, ref: Tensor, shape: Ref, dtype: tf.DType, device: str
    ) -> Ref:
        """Changes the shape."""
        attrs = {"T": dtype, "Tshape": tf.int32}
        return self.add(name, "Reshape", [ref, shape], device, "output:0", attrs)

    def const(self, name: str, value: Any, device: str) -> Ref:
        """A constant from a NumPy value."""
        self.nodes.append(make_const(name, value, device))
        return Ref(node=name, port="output:0")

    def numbers(self, name: str, values: Sequence[int], device: str) -> Ref:
        """A constant vector of int32."""
        return self.const(name, np.array(values, np.int32), device)

    def add(
        self,
        name: str,
        op: str,
        inputs: Sequence[Tensor],
        device: str,
        port: str,
        attrs: dict[str, Any],
        controls: Sequence[str] = (),
    ) -> Ref:
        """Any node; ``port`` names its first output."""
        if self._supported_device is not None:
            device = self._supported_device(op, attrs.get("T"), device)
        self.nodes.append(make_node(name, op, inputs, device, attrs, controls))
        return Ref(node=name, port=port)
