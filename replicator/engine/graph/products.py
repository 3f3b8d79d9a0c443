"""Convolutions as products of matrices, where that is faster on CPUs.

In every step oneDNN rearranges the kernel of a convolution, and of its two gradients,
since a variable changes in every step; for a product of matrices it does not. But the
product needs patches of the image as rows. Under a kernel of one pixel they are the
pixels, and where there are few of them, they are smaller than the kernel.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from replicator.engine.graph.body import make_const, make_node, producer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


OPS = frozenset({"Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"})
_RANK = 4


class Sizes(NamedTuple):
    """The sizes of a convolution; the batch is -1 if it is not known."""

    batch: int
    image: tuple[int, int]
    channels: int
    kernel: tuple[int, int]
    result: tuple[int, int]
    result_channels: int

    @classmethod
    def from_list(cls, numbers: Sequence[int]) -> Sizes:
        batch, height, width, channels, down, right, rows, columns, last = numbers
        image, kernel, result = (height, width), (down, right), (rows, columns)
        return cls(batch, image, channels, kernel, result, last)


def sizes_of(operation: Any) -> Sizes | None:
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
    # The last for a convolution in groups; of nothing, there are no matrices.
    if None in known or 0 in known or image[3] != kernel[2]:
        return None
    return Sizes(
        batch=batch,
        image=tuple(image[1:3]),
        channels=image[3],
        kernel=tuple(kernel[:2]),
        result=tuple(result[1:3]),
        result_channels=kernel[3],
    )


def has_last_channels(operation: Any) -> bool:
    """Whether images are ``[batch, height, width, channels]``, as CPUs have them."""
    return operation.node_def.attr["data_format"].s in (b"", b"NHWC")


def is_plain(node: Any) -> bool:
    """Whether a convolution has the layout of CPUs, and no holes in its kernel."""
    over_batch, _, _, over_channels = node.attr["strides"].list.i
    return (
        node.attr["data_format"].s in (b"", b"NHWC")
        and node.attr["padding"].s in (b"SAME", b"VALID")
        and over_batch == over_channels == 1
        and all(one == 1 for one in node.attr["dilations"].list.i)
    )


class Additions:
    """Adds nodes beside another one, of its type and device; equal ones are one."""

    def __init__(self, graph_def: Any, prefix: str) -> None:
        self.beside: Any = None
        self._graph_def = graph_def
        self._prefix = prefix
        self._names: dict[bytes, str] = {}

    def const(self, value: Any) -> str:
        """The name of a constant from a NumPy value; lists are int32."""
        array = np.array(value, np.int32) if isinstance(value, list) else value
        return self._name(make_const("", array, self.beside.device))

    def reshape(self, tensor: str, shape: list[int]) -> str:
        return self.add("Reshape", [tensor, self.const(shape)])

    def add(self, op: str, inputs: Sequence[str], **attrs: Any) -> str:
        """The name of a node; ``attrs`` as those of ``make_node``."""
        attrs = attrs if op == "GatherV2" else {"T": self.dtype, **attrs}
        return self._name(make_node("", op, inputs, self.beside.device, attrs))

    def replace(self, op: str, inputs: Sequence[str], **attrs: Any) -> None:
        """Makes the node another one of the same name."""
        name, device = self.beside.name, self.beside.device
        attrs = {"T": self.dtype, **attrs}
        self.beside.CopyFrom(make_node(name, op, inputs, device, attrs))

    @property
    def dtype(self) -> tf.DType:
        return tf.as_dtype(self.beside.attr["T"].type)

    def _name(self, node: Any) -> str:
        key = node.SerializeToString(deterministic=True)
        if key not in self._names:
            node.name = f"{self._prefix}/{node.op}_{len(self._names)}"
            self._graph_def.node.append(node)
            self._names[key] = node.name
        return self._names[key]


# Chellapilla, Puri and Simard 2006: with the patch of each result as a row, a
# convolution is one product of matrices.


def pixels(
    image: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    *,
    is_padded: bool,
) -> np.ndarray:
    """Numbers the pixels under the kernel, for each place that it is moved to."""
    rows, columns = (
        _under(*sizes, is_padded=is_padded)
        for sizes in zip(image, kernel, stride, strict=True)
    )
    # [rows, columns, height of the kernel, width of it]
    down, right = rows[:, None, :, None], columns[None, :, None, :]
    is_inside = (down >= 0) & (down < image[0]) & (right >= 0) & (right < image[1])
    found = np.where(is_inside, down * image[1] + right, image[0] * image[1])
    return found.reshape(len(rows) * len(columns), -1).astype(np.int32)


def uses_of_pixels(patches: np.ndarray, num_pixels: int) -> np.ndarray:
    """Numbers the elements of all patches that are one pixel, for each pixel."""
    flat = patches.ravel()
    elements = np.argsort(flat, kind="stable")  # by pixel, those of the padding last
    counts = np.bincount(flat, minlength=num_pixels + 1)
    first = np.cumsum(counts) - counts
    elements = elements[: first[num_pixels]]
    of_pixel = flat[elements]
    table = np.full((num_pixels, max(1, counts[:-1].max())), flat.size, np.int32)
    table[of_pixel, np.arange(elements.size) - first[of_pixel]] = elements
    return table


def _under(size: int, kernel: int, stride: int, *, is_padded: bool) -> np.ndarray:
    """``[places, kernel]``: what is under it in one direction; outside is padding."""
    places = -(-size // stride) if is_padded else (size - kernel) // stride + 1
    padding = max((places - 1) * stride + kernel - size, 0) if is_padded else 0
    first = np.arange(places) * stride - padding // 2
    return first[:, None] + np.arange(kernel)


# Only the traced graph knows shapes, and the optimizer keeps such attributes.
_SIZES = "_replicator_convolution"
_SHAPES = frozenset({"Const", "Shape", "ShapeN"})
# With bfloat16, the terms of a pixel's gradient would be rounded before they are added,
# where there are several.
_FLOAT32, _BFLOAT16 = tf.float32.as_datatype_enum, tf.bfloat16.as_datatype_enum
# Larger patches than a pixel are made where the kernel is so many times larger.
_LEAST_RATIO = 4


def is_faster(of: Sizes, dtype: int) -> bool:
    """Whether patches are cheaper than the rearranged kernel."""
    if of.kernel == (1, 1):
        return dtype in (_FLOAT32, _BFLOAT16)
    num_patches = of.batch * of.result[0] * of.result[1]
    is_small = 0 < num_patches * _LEAST_RATIO <= of.result_channels
    return is_small and dtype == _FLOAT32


def mark(graph: Any, graph_def: Any) -> None:
    """Leaves its sizes on every convolution that may become a product, in place."""
    plain = (n for n in graph_def.node if n.op in OPS and is_plain(n))
    known = [(n, sizes_of(graph.get_operation_by_name(n.name))) for n in plain]
    for node, found in known:
        if found is not None and is_faster(found, node.attr["T"].type):
            node.attr[_SIZES].list.i.extend(tf.nest.flatten(found))


def multiply(graph_def: Any, keep: Iterable[str]) -> None:
    """Puts products of matrices in the place of marked convolutions, in place."""
    marked = [node for node in graph_def.node if _SIZES in node.attr]
    # What several multiply, the patches of an image for example, is made once.
    additions = Additions(graph_def, "replicator_convolution")
    shapes: set[str] = set()
    for node in marked:
        if node.op in OPS and is_plain(node):
            additions.beside = node
            shapes.update(_to_product(node, additions))
    # Gradients of convolutions are given shapes, which products are not.
    shapes -= {producer(text) for node in graph_def.node for text in node.input}
    shapes -= set(map(producer, keep))
    kept = [n for n in graph_def.node if n.op not in _SHAPES or n.name not in shapes]
    if len(kept) < len(graph_def.node):
        del graph_def.node[:]
        graph_def.node.extend(kept)


def _to_product(node: Any, additions: Additions) -> list[str]:
    """Makes a convolution, or a gradient, a product; the nodes it no longer needs."""
    known = Sizes.from_list(node.attr[_SIZES].list.i)
    _, down, right, _ = node.attr["strides"].list.i
    is_padded = node.attr["padding"].s == b"SAME"
    under = pixels(known.image, known.kernel, (down, right), is_padded=is_padded)
    waits = [text for text in node.input if text.startswith("^")]
    first, second, *others = node.input[: len(node.input) - len(waits)]
    channels, last = known.channels, known.result_channels
    kernel_shape = [under.shape[1] * channels, last]
    if node.op == "Conv2D":
        left, right = _patches(first, known, under, additions), second
        right = additions.reshape(right, kernel_shape)
        shape, unused = [-1, *known.result, last], []
    elif node.op == "Conv2DBackpropInput":
        left = additions.reshape(others[0], [-1, last])
        right = additions.reshape(second, kernel_shape)
        shape, unused = [-1, *known.image, channels], [producer(first)]
    else:
        left = _patches(first, known, under, additions)
        right = additions.reshape(others[0], [-1, last])
        shape, unused = [*known.kernel, channels, last], [producer(second)]
    product = additions.add(
        "MatMul",
        [left, right, *waits],
        transpose_a=node.op == "Conv2DBackpropFilter",
        transpose_b=node.op == "Conv2DBackpropInput",
    )
    if node.op == "Conv2DBackpropInput":
        product = _sum_of_uses(product, known, under, additions)
    additions.replace("Reshape", [product, additions.const(shape)])
    return unused


def _patches(image: str, known: Sizes, under: np.ndarray, additions: Additions) -> str:
    """A row for each place of the kernel, with what is under it."""
    num_pixels = math.prod(known.image)
    if not _is_range(under, num_pixels):
        image = additions.reshape(image, [-1, num_pixels, known.channels])
        image = _take(image, under, num_pixels, additions)
    return additions.reshape(image, [-1, under.shape[1] * known.channels])


def _sum_of_uses(
    gradients: str, known: Sizes, under: np.ndarray, additions: Additions
) -> str:
    """The sum of all gradients of each pixel, from those of patches."""
    table = uses_of_pixels(under, math.prod(known.image))
    if _is_range(table, under.size):
        return gradients
    rows = additions.reshape(gradients, [-1, under.size, known.channels])
    taken = _take(rows, table, under.size, additions)
    if table.shape[1] == 1:
        return taken
    terms = additions.reshape(taken, [-1, *table.shape, known.channels])
    return additions.add("Sum", [terms, additions.const(np.int32(2))])


def _take(rows: str, table: np.ndarray, count: int, additions: Additions) -> str:
    """Rows by number, of each example; the number after the last is for zeros."""
    if table.max() == count:
        ends = additions.const([[0, 0], [0, 1], [0, 0]])
        rows = additions.add("Pad", [rows, ends])
    numbers, axis = additions.const(table.ravel()), additions.const(np.int32(1))
    types = {"Tparams": additions.dtype, "Tindices": tf.int32, "Taxis": tf.int32}
    return additions.add("GatherV2", [rows, numbers, axis], **types)


def _is_range(table: np.ndarray, count: int) -> bool:
    return np.array_equal(table.ravel(), np.arange(count))
