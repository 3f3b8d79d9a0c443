"""Convolutions as products of matrices, where that is faster on CPUs.

In every step oneDNN rearranges the kernel of a convolution, and of its two gradients,
since a variable changes in every step; for a product of matrices it does not. But the
product needs patches of the image as rows. Under a kernel of one pixel they are the
pixels, and where there are few of them, they are smaller than the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator.engine.graph.body import make_node, producer
from replicator.engine.graph.convolutions import patches, sizes
from replicator.engine.graph.convolutions.additions import Additions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Only the traced graph knows shapes, and the optimizer keeps such attributes.
_SIZES = "_replicator_convolution"
_SHAPES = frozenset({"Const", "Shape", "ShapeN"})
# With bfloat16, the terms of a pixel's gradient would be rounded before they are added,
# where there are several.
_FLOAT32, _BFLOAT16 = tf.float32.as_datatype_enum, tf.bfloat16.as_datatype_enum
# Larger patches than a pixel are made where the kernel is so many times larger.
_LEAST_RATIO = 4


def is_faster(of: sizes.Sizes, dtype: int) -> bool:
    """Whether patches are cheaper than the rearranged kernel."""
    if of.kernel == (1, 1):
        return dtype in (_FLOAT32, _BFLOAT16)
    num_patches = of.batch * of.result[0] * of.result[1]
    is_small = 0 < num_patches * _LEAST_RATIO <= of.result_channels
    return is_small and dtype == _FLOAT32


def mark(graph: Any, graph_def: Any) -> None:
    """Leaves its sizes on every convolution that may become a product, in place."""
    plain = (n for n in graph_def.node if n.op in sizes.OPS and sizes.is_plain(n))
    known = [(n, sizes.of(graph.get_operation_by_name(n.name))) for n in plain]
    for node, found in known:
        if found is not None and is_faster(found, node.attr["T"].type):
            node.attr[_SIZES].list.i.extend(found.to_list())


def multiply(graph_def: Any, keep: Iterable[str]) -> None:
    """Puts products of matrices in the place of marked convolutions, in place."""
    marked = [node for node in graph_def.node if _SIZES in node.attr]
    # What several multiply, the patches of an image for example, is made once.
    additions = Additions(graph_def, "replicator_convolution")
    shapes: set[str] = set()
    for node in marked:
        if node.op in sizes.OPS and sizes.is_plain(node):
            shapes.update(_Product(node, additions).rewrite())
    # Gradients of convolutions are given shapes, which products are not.
    shapes -= {producer(text) for node in graph_def.node for text in node.input}
    shapes -= set(map(producer, keep))
    kept = [n for n in graph_def.node if n.op not in _SHAPES or n.name not in shapes]
    if len(kept) < len(graph_def.node):
        del graph_def.node[:]
        graph_def.node.extend(kept)


class _Product:
    """Makes one convolution, or one of its gradients, a product of matrices."""

    def __init__(self, node: Any, additions: Additions) -> None:
        """Takes the convolution, and what its other nodes are added by."""
        self._node = node
        self._additions = additions
        self._dtype = tf.as_dtype(node.attr["T"].type)
        self._sizes = sizes.Sizes.from_list(node.attr[_SIZES].list.i)
        _, down, right, _ = node.attr["strides"].list.i
        self._under = patches.pixels(
            self._sizes.image,
            self._sizes.kernel,
            (down, right),
            is_padded=node.attr["padding"].s == b"SAME",
        )

    def rewrite(self) -> list[str]:
        """Returns the nodes that it no longer needs."""
        node, known = self._node, self._sizes
        waits = [text for text in node.input if text.startswith("^")]
        first, second, *others = node.input[: len(node.input) - len(waits)]
        last = known.result_channels
        kernel_shape = [self._under.shape[1] * known.channels, last]
        if node.op == "Conv2D":
            left, right = self._patches(first), self._reshape(second, kernel_shape)
            shape, unused = [-1, *known.result, last], []
        elif node.op == "Conv2DBackpropInput":
            left = self._reshape(others[0], [-1, last])
            right = self._reshape(second, kernel_shape)
            shape, unused = [-1, *known.image, known.channels], [producer(first)]
        else:
            left, right = self._patches(first), self._reshape(others[0], [-1, last])
            shape, unused = [*known.kernel, known.channels, last], [producer(second)]
        product = self._add(
            "MatMul",
            [left, right, *waits],
            transpose_a=node.op == "Conv2DBackpropFilter",
            transpose_b=node.op == "Conv2DBackpropInput",
        )
        if node.op == "Conv2DBackpropInput":
            product = self._sum_of_uses(product)
        inputs = [product, self._const(np.array(shape, np.int32))]
        types = {"T": self._dtype, "Tshape": tf.int32}
        node.CopyFrom(make_node(node.name, "Reshape", inputs, node.device, types))
        return unused

    def _patches(self, image: str) -> str:
        """A row for each place of the kernel, with what is under it."""
        known, num_pixels = self._sizes, self._num_pixels
        if not _is_range(self._under, num_pixels):
            image = self._reshape(image, [-1, num_pixels, known.channels])
            image = self._take(image, self._under, num_pixels)
        return self._reshape(image, [-1, self._under.shape[1] * known.channels])

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
        device = self._node.device
        return self._additions.node("GatherV2", inputs, device, batch_dims=0, **types)

    def _reshape(self, tensor: str, shape: Sequence[int]) -> str:
        return self._additions.reshaped(tensor, shape, self._dtype, self._node.device)

    def _const(self, value: Any) -> str:
        return self._additions.const(value, self._node.device)

    def _add(self, op: str, inputs: Sequence[str], **attrs: Any) -> str:
        device = self._node.device
        return self._additions.node(op, inputs, device, T=self._dtype, **attrs)


def _is_range(table: np.ndarray, count: int) -> bool:
    return np.array_equal(table.ravel(), np.arange(count))
