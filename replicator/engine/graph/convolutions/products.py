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
        """What an attribute of a node says, in the order of the fields."""
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
    """Adds nodes, and each of them once: what computes the same is one node."""

    def __init__(self, graph_def: Any, prefix: str) -> None:
        """Takes what is added to."""
        self._graph_def = graph_def
        self._prefix = prefix
        self._names: dict[tuple[Any, ...], str] = {}

    def const(self, value: Any, device: str) -> str:
        """Returns the name of a constant from a NumPy value."""
        key = (device, str(value.dtype), value.shape, value.tobytes())
        if key not in self._names:
            name = f"{self._prefix}/const_{len(self._names)}"
            self._graph_def.node.append(make_const(name, value, device))
            self._names[key] = name
        return self._names[key]

    def node(self, op: str, inputs: Sequence[str], device: str, **attrs: Any) -> str:
        """Returns the name of a node; ``attrs`` as those of ``make_node``."""
        key = (device, op, *inputs, *map(str, attrs.items()))
        if key not in self._names:
            name = f"{self._prefix}/{op}_{len(self._names)}"
            self._graph_def.node.append(make_node(name, op, inputs, device, attrs))
            self._names[key] = name
        return self._names[key]


class Replacement:
    """What puts other nodes in the place of one: they are of its type and device."""

    def __init__(self, node: Any, additions: Additions) -> None:
        """Takes the node, and what the others are added by."""
        self._node = node
        self._additions = additions
        self._dtype = tf.as_dtype(node.attr["T"].type)

    def _const(self, value: Any) -> str:
        return self._additions.const(value, self._node.device)

    def _ints(self, values: Sequence[int]) -> str:
        return self._const(np.array(values, np.int32))

    def _reshape(self, tensor: str, shape: Sequence[int]) -> str:
        return self._add("Reshape", [tensor, self._ints(shape)], Tshape=tf.int32)

    def _add(self, op: str, inputs: Sequence[str], **attrs: Any) -> str:
        attrs = {"T": self._dtype, **attrs}
        return self._additions.node(op, inputs, self._node.device, **attrs)

    def _replace(self, op: str, inputs: Sequence[str], **attrs: Any) -> None:
        """Makes the node another one of the same name."""
        name, device = self._node.name, self._node.device
        attrs = {"T": self._dtype, **attrs}
        self._node.CopyFrom(make_node(name, op, inputs, device, attrs))


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
            shapes.update(_Product(node, additions).rewrite())
    # Gradients of convolutions are given shapes, which products are not.
    shapes -= {producer(text) for node in graph_def.node for text in node.input}
    shapes -= set(map(producer, keep))
    kept = [n for n in graph_def.node if n.op not in _SHAPES or n.name not in shapes]
    if len(kept) < len(graph_def.node):
        del graph_def.node[:]
        graph_def.node.extend(kept)


class _Product(Replacement):
    """Makes one convolution, or one of its gradients, a product of matrices."""

    def __init__(self, node: Any, additions: Additions) -> None:
        super().__init__(node, additions)
        self._sizes = Sizes.from_list(node.attr[_SIZES].list.i)
        _, down, right, _ = node.attr["strides"].list.i
        self._under = pixels(
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
        self._replace("Reshape", [product, self._ints(shape)], Tshape=tf.int32)
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
        table = uses_of_pixels(self._under, self._num_pixels)
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


def _is_range(table: np.ndarray, count: int) -> bool:
    return np.array_equal(table.ravel(), np.arange(count))


# A *block* is 2 x 2 pixels. There is an operation that repeats pixels, but most
# programs tile and reshape, in one of many ways, and their gradients reshape and sum.
# So numbers are sent through the operations as they were traced, and what comes out is
# compared.

BLOCK = 2
# Repeating rows, then columns, takes six operations, and their gradients seven.
_MAX_OPS = 8
_RESHAPES = frozenset({"Reshape", "ExpandDims", "Squeeze"})
_REPEATS = frozenset({"Tile", "ResizeNearestNeighbor"})
_SUMS = frozenset({"Sum", "ResizeNearestNeighborGrad"})


def repeated(tensor: Any) -> Any:
    """Finds the tensor whose pixels are those of an image, each of them in a block.

    Args:
      tensor: The image, ``[batch, height, width, channels]``, of an even height and
        width.
    """
    shape = _one_channel(tensor, tensor)
    if not shape:
        return None
    numbers = np.arange(math.prod(shape) // BLOCK**2)
    expected = _repeat(numbers.reshape(_halved(shape)))
    ops: list[Any] = []
    source = tensor
    while len(ops) < _MAX_OPS and _is_any(source.op, _RESHAPES | _REPEATS):
        ops.insert(0, source.op)
        source = source.op.inputs[0]
        found = _through(ops, tensor, source, numbers)
        if found is not None and np.array_equal(found, expected):
            return source
    return None


def find_added_blocks(tensor: Any) -> Any:
    """Finds the sums of all blocks of an image that nothing else uses."""
    shape = _one_channel(tensor, tensor)
    if not shape:
        return None
    # Sums of random numbers are equal where they are of the same pixels.
    numbers = np.random.default_rng(0).integers(1 << 40, size=shape)
    expected = _sum(numbers).ravel()
    ops: list[Any] = []
    result = tensor
    while len(ops) < _MAX_OPS:
        users = result.consumers()
        if len(users) != 1 or not _is_any(users[0], _RESHAPES | _SUMS):
            return None
        ops.append(users[0])
        (result,) = users[0].outputs
        found = _through(ops, tensor, tensor, numbers)
        if found is not None and np.array_equal(found.ravel(), expected):
            return result
    return None


def _is_any(op: Any, types: frozenset[str]) -> bool:
    """Whether it is of a type, and waits for nothing but its inputs."""
    return op.type in types and not op.control_inputs


def _one_channel(tensor: Any, image: Any) -> tuple[int, ...]:
    """The shape of a tensor as if images had one channel; empty if it is not known.

    That is enough, since no operation here mixes channels: they are always last.
    """
    shape, channels = tensor.shape, image.shape[-1]
    if not shape.is_fully_defined() or not shape.rank or shape[-1] != channels:
        return ()
    return (*shape[:-1], 1)


def _through(ops: Sequence[Any], image: Any, source: Any, numbers: Any) -> Any:
    """What operations in a row make of numbers; None if that is not known."""
    value = _reshape(numbers, _one_channel(source, image))
    for op in ops:
        if value is None:
            break
        value = _result(op, value, _one_channel(op.outputs[0], image))
    return value


def _result(op: Any, value: Any, shape: tuple[int, ...]) -> Any:
    if op.type in _RESHAPES:
        return _reshape(value, shape)
    if op.type == "Tile":
        # How often may be computed, but shapes are known.
        is_known = len(shape) == value.ndim
        return np.tile(value, np.array(shape) // value.shape) if is_known else None
    if op.type == "Sum":
        return _sum_over(op, value)
    is_repeat = op.type == "ResizeNearestNeighbor"
    fine, coarse = (shape, value.shape) if is_repeat else (value.shape, shape)
    if op.get_attr("align_corners") or not shape or _halved(fine) != coarse:
        return None
    return _repeat(value) if is_repeat else _sum(value)


def _sum_over(op: Any, value: Any) -> Any:
    axes = tf.get_static_value(op.inputs[1])
    if axes is None:
        return None
    axes = {int(axis) % value.ndim for axis in np.ravel(axes)}
    if value.ndim - 1 in axes:
        return None  # channels are added
    return value.sum(tuple(axes), keepdims=op.get_attr("keep_dims"))


def _reshape(value: Any, shape: tuple[int, ...]) -> Any:
    is_known = shape and math.prod(shape) == value.size
    return value.reshape(shape) if is_known else None


def _halved(shape: tuple[int, ...]) -> tuple[int, ...]:
    batch, height, width, channels = shape
    return (batch, height // BLOCK, width // BLOCK, channels)


def _repeat(image: Any) -> Any:
    return image.repeat(BLOCK, axis=1).repeat(BLOCK, axis=2)


def _sum(image: Any) -> Any:
    batch, height, width, channels = _halved(image.shape)
    return image.reshape(batch, height, BLOCK, width, BLOCK, channels).sum((2, 4))
