"""Convolutions as products of matrices, where that is faster on CPUs.

In every step oneDNN rearranges the kernel of a convolution, and of its two gradients,
since a variable changes in every step; for a product of matrices it does not. But the
product needs patches of the image as rows. Under a kernel of one pixel they are the
pixels, and where there are few of them, they are smaller than the kernel (record 0109).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator.engine.graph import patches
from replicator.engine.graph.body import make_const, make_node, producer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Only the traced graph knows shapes, and the optimizer keeps such attributes.
_SIZES = "_replicator_convolution"
_OPS = frozenset({"Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"})
_SHAPES = frozenset({"Const", "Shape", "ShapeN"})
# With bfloat16, the terms of a pixel's gradient would be rounded before they are added,
# where there are several.
_FLOAT32, _BFLOAT16 = tf.float32.as_datatype_enum, tf.bfloat16.as_datatype_enum
# Larger patches than a pixel are made where the kernel is so many times larger.
_LEAST_RATIO = 4
_RANK = 4


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Sizes:
    """Those of a convolution; the batch is -1 if it is not known."""

    batch: int
    image: tuple[int, int]
    channels: int
    kernel: tuple[int, int]
    result: tuple[int, int]
    result_channels: int

    def is_faster(self, dtype: int) -> bool:
        """Whether patches are cheaper than the rearranged kernel."""
        if self.kernel == (1, 1):
            return dtype in (_FLOAT32, _BFLOAT16)
        num_patches = self.batch * self.result[0] * self.result[1]
        is_small = 0 < num_patches * _LEAST_RATIO <= self.result_channels
        return is_small and dtype == _FLOAT32

    def to_list(self) -> list[int]:
        """As an attribute of a node."""
        return list(tf.nest.flatten(dataclasses.astuple(self)))

    @classmethod
    def from_list(cls, numbers: Sequence[int]) -> _Sizes:
        """Undoes ``to_list``."""
        batch, height, width, channels, down, right, rows, columns, last = numbers
        return cls(
            batch=batch,
            image=(height, width),
            channels=channels,
            kernel=(down, right),
            result=(rows, columns),
            result_channels=last,
        )


def mark(graph: Any, graph_def: Any) -> None:
    """Leaves its sizes on every convolution that may become a product, in place.

    Args:
      graph: The traced step.
      graph_def: The same, as a message.
    """
    for node in graph_def.node:
        if node.op in _OPS and _is_plain(node):
            sizes = _sizes(graph.get_operation_by_name(node.name))
            if sizes is not None and sizes.is_faster(node.attr["T"].type):
                node.attr[_SIZES].list.i.extend(sizes.to_list())


def multiply(graph_def: Any, keep: Iterable[str]) -> None:
    """Puts products of matrices in the place of marked convolutions, in place.

    Args:
      graph_def: An optimized ``GraphDef`` whose nodes run on CPUs. Nodes keep their
        names, and what the optimizer fused with something else stays as it is.
      keep: Names of tensors and nodes that must survive.
    """
    marked = [node for node in graph_def.node if _SIZES in node.attr]
    made: dict[tuple[Any, ...], str] = {}
    shapes: set[str] = set()
    for node in marked:
        if node.op in _OPS and _is_plain(node):
            shapes.update(_Rewriter(graph_def, node, made).rewrite())
    # Gradients of convolutions are given shapes, which products are not.
    shapes -= {producer(text) for node in graph_def.node for text in node.input}
    shapes -= set(map(producer, keep))
    kept = [n for n in graph_def.node if n.op not in _SHAPES or n.name not in shapes]
    if len(kept) < len(graph_def.node):
        del graph_def.node[:]
        graph_def.node.extend(kept)


class _Rewriter:
    """Makes one convolution, or one of its gradients, a product of matrices."""

    def __init__(
        self, graph_def: Any, node: Any, made: dict[tuple[Any, ...], str]
    ) -> None:
        """Takes what is to be rewritten.

        Args:
          graph_def: Gets the new nodes.
          node: The convolution.
          made: Nodes that others have made, by what they compute: the patches that a
            convolution and the gradient of its kernel multiply, for example.
        """
        self._graph_def = graph_def
        self._node = node
        self._made = made
        self._dtype = tf.as_dtype(node.attr["T"].type)
        self._sizes = _Sizes.from_list(node.attr[_SIZES].list.i)
        _, down, right, _ = node.attr["strides"].list.i
        self._under = patches.pixels(
            self._sizes.image,
            self._sizes.kernel,
            (down, right),
            is_padded=node.attr["padding"].s == b"SAME",
        )

    def rewrite(self) -> list[str]:
        """Returns the nodes that it no longer needs."""
        node, sizes = self._node, self._sizes
        waits = [text for text in node.input if text.startswith("^")]
        first, second, *others = node.input[: len(node.input) - len(waits)]
        last = sizes.result_channels
        kernel_shape = [self._under.shape[1] * sizes.channels, last]
        if node.op == "Conv2D":
            left, right = self._patches(first), self._reshape(second, kernel_shape)
            shape, unused = [-1, *sizes.result, last], []
        elif node.op == "Conv2DBackpropInput":
            left = self._reshape(others[0], [-1, last])
            right = self._reshape(second, kernel_shape)
            shape, unused = [-1, *sizes.image, sizes.channels], [producer(first)]
        else:
            left, right = self._patches(first), self._reshape(others[0], [-1, last])
            shape, unused = [*sizes.kernel, sizes.channels, last], [producer(second)]
        product = self._add(
            "MatMul",
            [left, right, *waits],
            transpose_a=node.op == "Conv2DBackpropFilter",
            transpose_b=node.op == "Conv2DBackpropInput",
        )
        if node.op == "Conv2DBackpropInput":
            product = self._sum_of_uses(product)
        inputs = [product, self._const(np.array(shape, np.int32))]
        node.CopyFrom(self._new(node.name, "Reshape", inputs, {"Tshape": tf.int32}))
        return unused

    def _patches(self, image: str) -> str:
        """A row for each place of the kernel, with what is under it."""
        sizes, num_pixels = self._sizes, self._num_pixels
        if not _is_range(self._under, num_pixels):
            image = self._reshape(image, [-1, num_pixels, sizes.channels])
            image = self._take(image, self._under, num_pixels)
        return self._reshape(image, [-1, self._under.shape[1] * sizes.channels])

    def _sum_of_uses(self, gradients: str) -> str:
        """The sum of all gradients of each pixel, from those of patches."""
        table = patches.uses(self._under, self._num_pixels)
        if _is_range(table, self._under.size):
            return gradients
        channels = self._sizes.channels
        rows = self._reshape(gradients, [-1, self._under.size, channels])
        taken = self._take(rows, table, self._under.size)
        if table.shape[1] == 1:
            return taken
        terms = self._reshape(taken, [-1, *table.shape, channels])
        return self._add("Sum", [terms, self._const(np.int32(2))], Tidx=tf.int32)

    @property
    def _num_pixels(self) -> int:
        return self._sizes.image[0] * self._sizes.image[1]

    def _take(self, rows: str, table: np.ndarray, count: int) -> str:
        """Rows by number, of each example; the number after the last is for zeros."""
        if table.max() == count:
            ends = np.array([[0, 0], [0, 1], [0, 0]], np.int32)
            rows = self._add("Pad", [rows, self._const(ends)], Tpaddings=tf.int32)
        inputs = [rows, self._const(table.ravel()), self._const(np.int32(1))]
        types = {"Tparams": self._dtype, "Tindices": tf.int32, "Taxis": tf.int32}
        return self._add("GatherV2", inputs, T=None, batch_dims=0, **types)

    def _reshape(self, tensor: str, shape: Sequence[int]) -> str:
        inputs = [tensor, self._const(np.array(shape, np.int32))]
        return self._add("Reshape", inputs, Tshape=tf.int32)

    def _const(self, value: Any) -> str:
        key = (self._node.device, value.shape, value.tobytes())
        if key not in self._made:
            name = f"replicator_convolution/const_{len(self._made)}"
            const = make_const(name, value, self._node.device)
            self._graph_def.node.append(const)
            self._made[key] = name
        return self._made[key]

    def _add(self, op: str, inputs: Sequence[str], **attrs: Any) -> str:
        key = (self._node.device, op, *inputs, *attrs.items())
        if key not in self._made:
            name = f"replicator_convolution/{op}_{len(self._made)}"
            self._graph_def.node.append(self._new(name, op, inputs, attrs))
            self._made[key] = name
        return self._made[key]

    def _new(
        self, name: str, op: str, inputs: Sequence[str], attrs: dict[str, Any]
    ) -> Any:
        attrs = {"T": self._dtype, **attrs}
        known = {name: value for name, value in attrs.items() if value is not None}
        return make_node(name, op, inputs, self._node.device, known)


def _is_plain(node: Any) -> bool:
    """Whether a convolution has the layout of CPUs, and no holes in its kernel."""
    over_batch, _, _, over_channels = node.attr["strides"].list.i
    return (
        node.attr["data_format"].s in (b"", b"NHWC")
        and node.attr["padding"].s in (b"SAME", b"VALID")
        and over_batch == over_channels == 1
        and all(one == 1 for one in node.attr["dilations"].list.i)
    )


def _sizes(operation: Any) -> _Sizes | None:
    """Those of a convolution or of its gradient, where all but the batch are known."""
    inputs, (output,) = [tensor.shape for tensor in operation.inputs], operation.outputs
    image, kernel, result = {
        "Conv2D": lambda: (inputs[0], inputs[1], output.shape),
        "Conv2DBackpropInput": lambda: (output.shape, inputs[1], inputs[2]),
        "Conv2DBackpropFilter": lambda: (inputs[0], output.shape, inputs[2]),
    }[operation.type]()
    if {image.rank, kernel.rank, result.rank} != {_RANK}:
        return None
    batch = next((n for n in (image[0], result[0]) if n is not None), -1)
    known = [*image[1:], *kernel, *result[1:]]
    if None in known or image[3] != kernel[2]:
        return None  # the last for a convolution in groups
    return _Sizes(
        batch=batch,
        image=tuple(image[1:3]),
        channels=image[3],
        kernel=tuple(kernel[:2]),
        result=tuple(result[1:3]),
        result_channels=kernel[3],
    )


def _is_range(table: np.ndarray, count: int) -> bool:
    return np.array_equal(table.ravel(), np.arange(count))
