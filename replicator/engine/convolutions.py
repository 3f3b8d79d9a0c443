"""Convolutions on CPUs: as products of matrices, or of the smaller of two images.

In every step oneDNN rearranges the kernel of a convolution, and of its two gradients,
since a variable changes in every step; for a *product* of matrices it does not. But the
product needs patches of the image as rows. Under a kernel of one pixel they are the
pixels, and where there are few of them, they are smaller than the kernel.

Generators repeat the pixels of an image and convolve the larger one; discriminators
convolve, and average blocks of the result. Both are linear, as their gradients are,
and each is one convolution *between* the two resolutions (Karras, Aila, Laine and
Lehtinen 2018 wrote their networks so): it has stride 2, and its kernel is the sum of
the user's moved by no and by one pixel in both directions. For each pixel of the
smaller image it multiplies 4 x 4 numbers in place of 4 times 3 x 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from replicator._tf.compat import reachable
from replicator.engine.body import make_const, make_node, producer

if TYPE_CHECKING:
    from typing import TypeAlias

    # A node's name, and what makes it another one.
    Resampled: TypeAlias = tuple[str, Callable[["Additions"], None]]


_OPS = frozenset({"Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"})
# In a graph without any of them, nothing here has an effect.
CONCERNED = _OPS | {"AvgPoolGrad"}
_RANK = 4
_FLOAT32, _BFLOAT16 = tf.float32.as_datatype_enum, tf.bfloat16.as_datatype_enum


class _Sizes(NamedTuple):
    """The sizes of a convolution; the batch is -1 if it is not known."""

    batch: int = -1
    image: tuple[int, int] = (0, 0)
    channels: int = 0
    kernel: tuple[int, int] = (0, 0)
    result: tuple[int, int] = (0, 0)
    result_channels: int = 0


def _sizes_of(operation: Any) -> _Sizes | None:
    """The sizes of a convolution or its gradient, if all but the batch are known."""
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
    down, right, channels, last = kernel
    return _Sizes(
        batch, tuple(image[1:3]), channels, (down, right), tuple(result[1:3]), last
    )


def _has_last_channels(node: Any) -> bool:
    """Whether images are ``[batch, height, width, channels]``, as CPUs have them."""
    return node.attr["data_format"].s in (b"", b"NHWC")


def _is_plain(node: Any) -> bool:
    """Whether a convolution has the layout of CPUs, and no holes in its kernel."""
    over_batch, _, _, over_channels = node.attr["strides"].list.i
    return (
        _has_last_channels(node)
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
        """The name of a node; ``attrs`` as ``make_node`` takes them."""
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


# Products. Only the traced graph knows shapes, and the optimizer keeps such attributes.
_SIZES = "_replicator_convolution"
# Larger patches than a pixel are made where the kernel is so many times larger.
_LEAST_RATIO = 4


def _is_faster_as_product(sizes: _Sizes, dtype: int) -> bool:
    """Whether patches are cheaper than the rearranged kernel."""
    if sizes.kernel == (1, 1):
        return dtype in (_FLOAT32, _BFLOAT16)
    # With bfloat16, the terms of a pixel's gradient would be rounded before they are
    # added, where there are several.
    num_patches = sizes.batch * sizes.result[0] * sizes.result[1]
    is_small = 0 < num_patches * _LEAST_RATIO <= sizes.result_channels
    return is_small and dtype == _FLOAT32


def mark(graph: Any, graph_def: Any) -> bool:
    """Leaves its sizes on every convolution that may become a product, in place."""
    plain = (n for n in graph_def.node if n.op in _OPS and _is_plain(n))
    known = [(n, _sizes_of(graph.get_operation_by_name(n.name))) for n in plain]
    has_marked = False
    for node, sizes in known:
        if sizes is not None and _is_faster_as_product(sizes, node.attr["T"].type):
            node.attr[_SIZES].list.i.extend(tf.nest.flatten(sizes))
            has_marked = True
    return has_marked


def multiply(graph_def: Any, keep: Iterable[str]) -> Any:
    """Puts products of matrices in the place of marked convolutions of a graph."""
    marked = [node for node in graph_def.node if _SIZES in node.attr]
    # What several multiply, the patches of an image for example, is made once.
    additions = Additions(graph_def, "replicator_convolution")
    for node in marked:
        if node.op in _OPS and _is_plain(node):
            additions.beside = node
            _to_product(node, additions)
    # Gradients of convolutions are given shapes, which products are not.
    inputs = {node.name: node.input for node in graph_def.node}
    roots = map(producer, keep)
    used = {*reachable(roots, lambda name: map(producer, inputs[name]))}
    kept = [n for n in graph_def.node if n.name in used or n.op == "Placeholder"]
    del graph_def.node[:]
    graph_def.node.extend(kept)
    return graph_def


def _to_product(node: Any, additions: Additions) -> None:
    """Makes a convolution, or a gradient, a product."""
    # With the patch of each result as a row, a convolution is one product of matrices
    # (Chellapilla, Puri and Simard 2006).
    known = tf.nest.pack_sequence_as(_Sizes(), node.attr[_SIZES].list.i)
    _, *stride, _ = node.attr["strides"].list.i
    is_padded = node.attr["padding"].s == b"SAME"
    under = _pixels(known.image, known.kernel, stride, is_padded=is_padded)
    waits = [text for text in node.input if text.startswith("^")]
    first, second, *others = node.input[: len(node.input) - len(waits)]
    channels, last = known.channels, known.result_channels
    kernel_shape = [under.shape[1] * channels, last]
    if node.op == "Conv2D":
        left = _patches(first, known, under, additions)
        right = additions.reshape(second, kernel_shape)
        shape = [-1, *known.result, last]
    elif node.op == "Conv2DBackpropInput":
        left = additions.reshape(others[0], [-1, last])
        right = additions.reshape(second, kernel_shape)
        shape = [-1, *known.image, channels]
    else:
        left = _patches(first, known, under, additions)
        right = additions.reshape(others[0], [-1, last])
        shape = [*known.kernel, channels, last]
    product = additions.add(
        "MatMul",
        [left, right, *waits],
        transpose_a=node.op == "Conv2DBackpropFilter",
        transpose_b=node.op == "Conv2DBackpropInput",
    )
    if node.op == "Conv2DBackpropInput":
        product = _sum_of_uses(product, known, under, additions)
    additions.replace("Reshape", [product, additions.const(shape)])


def _pixels(
    image: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    *,
    is_padded: bool,
) -> np.ndarray:
    """Numbers the pixels under the kernel, for each place that it is moved to."""
    # [places, kernel]: what is under it in one direction; outside is padding.
    under = []
    for length, size, step in zip(image, kernel, stride, strict=True):
        places = -(-length // step) if is_padded else (length - size) // step + 1
        padding = max((places - 1) * step + size - length, 0) if is_padded else 0
        first = np.arange(places) * step - padding // 2
        under.append(first[:, None] + np.arange(size))
    rows, columns = under
    # [rows, columns, height of the kernel, width of it]
    down, right = rows[:, None, :, None], columns[None, :, None, :]
    is_inside = (down >= 0) & (down < image[0]) & (right >= 0) & (right < image[1])
    indices = np.where(is_inside, down * image[1] + right, image[0] * image[1])
    return indices.reshape(len(rows) * len(columns), -1).astype(np.int32)


def _patches(image: str, known: _Sizes, under: np.ndarray, additions: Additions) -> str:
    """A row for each place of the kernel, with what is under it."""
    num_pixels = math.prod(known.image)
    if not _is_range(under, num_pixels):
        image = additions.reshape(image, [-1, num_pixels, known.channels])
        image = _take(image, under, num_pixels, additions)
    return additions.reshape(image, [-1, under.shape[1] * known.channels])


def _sum_of_uses(
    gradients: str, known: _Sizes, under: np.ndarray, additions: Additions
) -> str:
    """The sum of all gradients of each pixel, from gradients of patches."""
    # By pixel, the elements of all patches that are it; those of the padding last.
    num_pixels, flat = math.prod(known.image), under.ravel()
    elements = np.argsort(flat, kind="stable")
    counts = np.bincount(flat, minlength=num_pixels + 1)
    first = np.cumsum(counts) - counts
    elements = elements[: first[num_pixels]]
    of_pixel = flat[elements]
    table = np.full((num_pixels, max(1, counts[:-1].max())), flat.size, np.int32)
    table[of_pixel, np.arange(elements.size) - first[of_pixel]] = elements
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


# Between two resolutions. A *block* is 2 x 2 pixels.
_SIDE = 2
_BLOCK = [1, _SIDE, _SIDE, 1]
_PIXEL_AXES = {1, 2}
# Of the larger images of a batch: with fewer, making the kernel costs more than is won.
_LEAST_PIXELS = 4096
_CONVOLUTION: Mapping[str, Any] = {"strides": _BLOCK, "padding": "SAME"}


def find(graph: Any) -> tuple[Resampled, ...]:
    """The nodes that are faster between two resolutions, and what rewrites each."""
    # Finds them in a traced graph, where shapes and users of tensors are known.
    # Gradients are found, too, and not derived: a step may ask for the larger image's
    # gradient.
    candidates = (
        _FINDERS[operation.type](operation)
        for operation in graph.get_operations()
        if operation.type in _FINDERS and not operation.control_inputs
    )
    return tuple(filter(None, candidates))


def fuse(graph_def: Any, rewrites: Iterable[Resampled]) -> Any:
    """Computes nodes of a graph from the smaller image."""
    nodes = {node.name: node for node in graph_def.node}
    additions = Additions(graph_def, "replicator_resampled")
    for name, rewrite in rewrites:
        additions.beside = nodes[name]
        rewrite(additions)
    return graph_def


# Two of the larger image, the smaller one and the user's kernel are given, by name;
# what is computed is the third. An image may be a gradient.
class _Between(NamedTuple):
    """A convolution between two resolutions."""

    sizes: _Sizes  # Of the user's convolution.
    # Whether pixels are repeated before that, and not averaged after it.
    is_repeated: bool

    def fine(self, to: Additions, coarse: str, kernel: str) -> None:
        sizes = to.const([self.sizes.batch, *self.sizes.image, self._channels[0]])
        inputs = [sizes, self._kernel(to, kernel), self._smaller(to, coarse)]
        to.replace("Conv2DBackpropInput", inputs, **_CONVOLUTION)

    def coarse(self, to: Additions, fine: str, kernel: str) -> str:
        return to.add("Conv2D", [fine, self._kernel(to, kernel)], **_CONVOLUTION)

    def kernel(self, to: Additions, fine: str, coarse: str) -> None:
        sizes = to.const([*self._elements, *self._channels])
        inputs = [fine, sizes, self._smaller(to, coarse)]
        gradient = to.add("Conv2DBackpropFilter", inputs, **_CONVOLUTION)
        flat = [math.prod(self._elements), math.prod(self._channels)]
        gradient = to.reshape(self._in_order(to, gradient), flat)
        product = to.add("MatMul", [self._moves(to), gradient], transpose_a=True)
        to.replace("Reshape", [product, to.const(self._shape)])

    def _kernel(self, to: Additions, kernel: str) -> str:
        flat = [math.prod(self.sizes.kernel), math.prod(self._channels)]
        moved = to.add("MatMul", [self._moves(to), to.reshape(kernel, flat)])
        return self._in_order(
            to, to.reshape(moved, [*self._elements, *self._shape[2:]])
        )

    def _smaller(self, to: Additions, coarse: str) -> str:
        if not self.is_repeated:
            return coarse
        height, width = self.sizes.image  # what is repeated may have any shape
        size = [height // _SIDE, width // _SIDE]
        return to.reshape(coarse, [self.sizes.batch, *size, self._channels[1]])

    def _in_order(self, to: Additions, kernel: str) -> str:
        """Channels in the order of the other convolution, if it is turned around."""
        if not self.is_repeated:
            return kernel
        return to.add("Transpose", [kernel, to.const([0, 1, 3, 2])])

    @property
    def _shape(self) -> list[int]:
        return [*self.sizes.kernel, self.sizes.channels, self.sizes.result_channels]

    @property
    def _channels(self) -> list[int]:
        """The channels of the larger image, then of the smaller one."""
        first, last = self._shape[2:]
        return [last, first] if self.is_repeated else [first, last]

    @property
    def _elements(self) -> list[int]:
        return [size + 1 for size in self.sizes.kernel]

    def _moves(self, to: Additions) -> str:
        """What makes the larger kernel of the smaller: ``[elements, elements]``."""
        # Adds a row of so many elements to itself, moved by one: ``[size + 1, size]``.
        added = (np.eye(n + 1, n) + np.eye(n + 1, n, -1) for n in self.sizes.kernel)
        down, right = added
        if self.is_repeated:
            # The gradient of a convolution turns its kernel around.
            down, right = down[:, ::-1], right[:, ::-1]
        moves = np.kron(down, right)
        moves = moves if self.is_repeated else moves / _SIDE**2
        return to.const(moves.astype(np.float32))


def _text(tensor: Any) -> str:
    """As the input of a node."""
    return tensor.name.removesuffix(":0")


def _averaged(pool: Any) -> Resampled | None:
    """The averages of a convolution, with or without a bias."""
    operation, biased = pool.inputs[0].op, None
    if operation.type in {"BiasAdd", "AddV2"}:
        biased, operation = operation, _convolution_under(operation)
    if operation is None or operation.type != "Conv2D":
        return None
    between = _between(operation)
    users = [op for op in (operation, biased) if op is not None]
    are_used_once = all(len(op.outputs[0].consumers()) == 1 for op in users)
    is_average = _is_averaging(pool, "AvgPool") and pool.device == operation.device
    if between is None or not is_average or not are_used_once:
        return None
    fine, kernel = map(_text, operation.inputs)
    convolution, bias = operation.name, biased and biased.node_def

    def rewrite(to: Additions) -> None:
        result = between.coarse(to, fine, kernel)
        if bias is None:
            to.replace("Identity", [result])
            return
        name = to.beside.name
        to.beside.CopyFrom(bias)
        to.beside.name = name
        to.beside.input[list(bias.input).index(convolution)] = result

    return pool.name, rewrite


def _repeated_rewrite(convolution: Any) -> Resampled | None:
    between = _between(convolution, is_repeated=True)
    source = None if between is None else _repeated(convolution.inputs[0])
    if between is None or source is None:
        return None
    coarse, kernel = _text(source), _text(convolution.inputs[1])
    return convolution.name, lambda to: between.fine(to, coarse, kernel)


def _image_gradient(gradient: Any) -> Resampled | None:
    """The gradient of averages to the image, or of a convolution to what repeats."""
    _, weights, above = gradient.inputs
    between = _between(gradient)
    if between is None:
        return None
    kernel = _text(weights)
    if _is_averaging(above.op, "AvgPoolGrad"):
        coarse = _text(above.op.inputs[1])
        return gradient.name, lambda to: between.fine(to, coarse, kernel)
    added = _find_added_blocks(gradient.outputs[0])
    if added is None:
        return None
    fine, shape, turned = (
        _text(above),
        list(added.shape),
        between._replace(is_repeated=True),
    )

    def rewrite(to: Additions) -> None:
        result = turned.coarse(to, fine, kernel)
        to.replace("Reshape", [result, to.const(shape)])

    return added.op.name, rewrite


def _kernel_gradient(gradient: Any) -> Resampled | None:
    """The gradient to the kernel, under averages or of repeated pixels."""
    image, _, above = gradient.inputs
    between = _between(gradient)
    if between is None:
        return None
    if _is_averaging(above.op, "AvgPoolGrad"):
        fine, coarse = _text(image), _text(above.op.inputs[1])
    else:
        source = _repeated(image)
        if source is None:
            return None
        between, fine, coarse = (
            between._replace(is_repeated=True),
            _text(above),
            _text(source),
        )
    return gradient.name, lambda to: between.kernel(to, fine, coarse)


def _sum_of_pixels(operation: Any) -> Resampled | None:
    """All pixels of averages' gradients: four quarters of each are what is averaged."""
    if not _is_averaging(operation.inputs[0].op, "AvgPoolGrad"):
        return None
    node = operation.node_def
    if operation.type == "BiasAddGrad" and not _has_last_channels(node):
        return None
    if operation.type == "Sum":
        axes = tf.get_static_value(operation.inputs[1])
        if axes is None or not {int(axis) for axis in np.ravel(axes)} >= _PIXEL_AXES:
            return None
    coarse = _text(operation.inputs[0].op.inputs[1])

    def rewrite(to: Additions) -> None:
        to.beside.input[0] = coarse

    return operation.name, rewrite


_FINDERS: Mapping[str, Callable[[Any], Resampled | None]] = {
    "AvgPool": _averaged,
    "Conv2D": _repeated_rewrite,
    "Conv2DBackpropInput": _image_gradient,
    "Conv2DBackpropFilter": _kernel_gradient,
    "BiasAddGrad": _sum_of_pixels,
    "Sum": _sum_of_pixels,
}


def _convolution_under(biased: Any) -> Any:
    """What a bias that is the same for all pixels is added to; None if it differs."""
    is_of_rows = biased.type == "BiasAdd" and not _has_last_channels(biased.node_def)
    if biased.control_inputs or is_of_rows:
        return None
    for image, bias in (biased.inputs, reversed(biased.inputs)):
        is_same = bias.shape.rank is not None and set(bias.shape[:-1]) <= {1}
        if image.op.type == "Conv2D" and is_same:
            return image.op
    return None


def _is_averaging(operation: Any, kind: str) -> bool:
    """Whether it averages blocks of an image, or is the gradient of that, by kind."""
    if operation.type != kind or operation.control_inputs:
        return False
    fine = operation.inputs[0] if kind == "AvgPool" else operation.outputs[0]
    node = operation.node_def
    return (
        _has_last_channels(node)
        and list(node.attr["ksize"].list.i) == _BLOCK
        and list(node.attr["strides"].list.i) == _BLOCK
        and fine.shape.is_fully_defined()
        and not any(size % _SIDE for size in fine.shape[1:3])
    )


def _between(operation: Any, *, is_repeated: bool = False) -> _Between | None:
    """What a convolution, or a gradient, is between two resolutions, if it may be."""
    node = operation.node_def
    if operation.control_inputs or not _is_plain(node):
        return None
    known = _sizes_of(operation)
    if known is None or known.batch < 0:
        return None
    down, right = known.kernel
    is_fusible = (
        node.attr["T"].type == _FLOAT32
        and set(node.attr["strides"].list.i) == {1}
        and node.attr["padding"].s == b"SAME"
        and not any(size % _SIDE for size in known.image)
        # An even kernel has more padding on one side, and one pixel saves nothing.
        and down % 2 == right % 2 == 1 < down * right
        and known.batch * known.image[0] * known.image[1] >= _LEAST_PIXELS
        and not _is_faster_as_product(known, _FLOAT32)
    )
    return _Between(known, is_repeated) if is_fusible else None


# There is an operation that repeats pixels, but most programs tile and reshape, in one
# of many ways, and their gradients reshape and sum. So numbers are sent through the
# operations as they were traced, and what comes out is compared. One channel is enough,
# since no operation here mixes channels: they are always last.

# Repeating rows, then columns, takes six operations, and their gradients seven.
_MAX_OPS = 8
_RESHAPES = frozenset({"Reshape", "ExpandDims", "Squeeze"})
_REPEATS = _RESHAPES | {"Tile", "ResizeNearestNeighbor"}
_SUMS = _RESHAPES | {"Sum", "ResizeNearestNeighborGrad"}


def _repeated(tensor: Any) -> Any:
    """The tensor of which an image repeats each pixel in a block; or None."""
    # The image has an even height and width.
    shape = _one_channel(tensor, tensor)
    if not shape:
        return None
    numbers = np.arange(math.prod(shape) // _SIDE**2)
    expected = _repeat(numbers.reshape(_halved(shape)))
    ops: list[Any] = []
    source = tensor
    while len(ops) < _MAX_OPS and _is_any(source.op, _REPEATS):
        ops.insert(0, source.op)
        source = source.op.inputs[0]
        value = _reshape(numbers, _one_channel(source, tensor))
        for op in ops:
            value = _result(op, value, tensor)
        if np.array_equal(value, expected):
            return source
    return None


def _find_added_blocks(tensor: Any) -> Any:
    """The sums of all blocks of an image that nothing else uses; or None."""
    shape = _one_channel(tensor, tensor)
    if not shape:
        return None
    # Sums of random numbers are equal where they are of the same pixels.
    value = np.random.default_rng(0).integers(1 << 40, size=shape)
    expected = _sum(value).ravel()
    result = tensor
    for _ in range(_MAX_OPS):
        users = result.consumers()
        if len(users) != 1 or not _is_any(users[0], _SUMS):
            return None
        value = _result(users[0], value, tensor)
        (result,) = users[0].outputs
        if value is not None and np.array_equal(value.ravel(), expected):
            return result
    return None


def _is_any(op: Any, types: frozenset[str]) -> bool:
    """Whether it is of a type, and waits for nothing but its inputs."""
    return op.type in types and not op.control_inputs


def _one_channel(tensor: Any, image: Any) -> tuple[int, ...]:
    """The shape of a tensor as if images had one channel; empty if it is not known."""
    shape, channels = tensor.shape, image.shape[-1]
    if not shape.is_fully_defined() or not shape.rank or shape[-1] != channels:
        return ()
    return (*shape[:-1], 1)


def _result(op: Any, value: Any, image: Any) -> Any:
    """What an operation makes of numbers; None if that is not known."""
    shape = _one_channel(op.outputs[0], image)
    if value is None or op.type in _RESHAPES:
        return _reshape(value, shape)
    if op.type == "Tile":
        # How often may be computed, but shapes are known.
        is_known = len(shape) == value.ndim
        return np.tile(value, np.array(shape) // value.shape) if is_known else None
    if op.type == "Sum":
        axes = tf.get_static_value(op.inputs[1])
        numbers: Any = [] if axes is None else np.ravel(axes)
        whole = {int(axis) % value.ndim for axis in numbers}
        if axes is None or value.ndim - 1 in whole:  # channels are added
            return None
        return value.sum(tuple(whole), keepdims=op.get_attr("keep_dims"))
    is_repeat = op.type == "ResizeNearestNeighbor"
    fine, coarse = (shape, value.shape) if is_repeat else (value.shape, shape)
    if op.get_attr("align_corners") or not shape or _halved(fine) != coarse:
        return None
    return _repeat(value) if is_repeat else _sum(value)


def _reshape(value: Any, shape: tuple[int, ...]) -> Any:
    is_known = value is not None and shape and math.prod(shape) == value.size
    return value.reshape(shape) if is_known else None


def _halved(shape: tuple[int, ...]) -> tuple[int, ...]:
    batch, height, width, channels = shape
    return (batch, height // _SIDE, width // _SIDE, channels)


def _repeat(image: Any) -> Any:
    return image.repeat(_SIDE, axis=1).repeat(_SIDE, axis=2)


def _sum(image: Any) -> Any:
    batch, height, width, channels = _halved(image.shape)
    return image.reshape(batch, height, _SIDE, width, _SIDE, channels).sum((2, 4))
