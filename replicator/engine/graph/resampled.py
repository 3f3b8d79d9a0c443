"""Convolutions of repeated pixels, and convolutions that are averaged, on CPUs.

Generators repeat the pixels of an image and convolve the larger one; discriminators
convolve, and average blocks of the result. Both are linear, as their gradients are,
and each is one convolution between the two resolutions (Karras, Aila, Laine and
Lehtinen 2018 wrote their networks so): it has stride 2, and its kernel is the sum of
the user's moved by no and by one pixel in both directions. For each pixel of the
smaller image it multiplies 4 x 4 numbers in place of 4 times 3 x 3.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator.engine.graph import products
from replicator.engine.graph.products import Additions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


# A *block* is 2 x 2 pixels.
_SIDE = 2
_BLOCK = [1, _SIDE, _SIDE, 1]
_FLOAT32 = tf.float32.as_datatype_enum
_PIXEL_AXES = {1, 2}
# Of the larger images of a batch: with fewer, making the kernel costs more than is won.
_LEAST_PIXELS = 4096


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Resampled:
    """A node that is computed by a convolution between two resolutions.

    Two of the larger image, the smaller one and the kernel are given; what is computed
    is the third. An image may be a gradient.
    """

    node: str  # Its name.
    # The convolution, or the gradient of one, that it replaces, and its sizes. None for
    # a bias' gradient, which is the same sum of the smaller image.
    convolution: str = ""
    sizes: products.Sizes | None = None
    fine: str = ""  # The larger image; empty if that is computed.
    coarse: str = ""  # The smaller image; empty if that is computed.
    kernel: str = ""  # The user's kernel; empty if its gradient is computed.
    # Whether pixels are repeated before the user's convolution, and not averaged after
    # it.
    is_repeated: bool = False
    shape: tuple[int, ...] = ()  # Of the result, where that is not an image.
    biased: str = ""  # A node that adds a bias to the user's convolution, or empty.


def find(graph: Any) -> tuple[Resampled, ...]:
    """Finds them in a traced graph, where shapes and users of tensors are known."""
    found = (
        _FINDERS[operation.type](operation)
        for operation in graph.get_operations()
        if operation.type in _FINDERS and not operation.control_inputs
    )
    return tuple(filter(None, found))


def _resampled(
    convolution: Any, sizes: products.Sizes, node: Any = None, **others: Any
) -> Resampled:
    """Describes a node; fields may be given as tensors."""
    name = (convolution if node is None else node).name
    given: dict[str, Any] = {
        field: _text(value) if tf.is_tensor(value) else value
        for field, value in others.items()
    }
    return Resampled(node=name, convolution=convolution.name, sizes=sizes, **given)


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
    known = _fusible_sizes(operation, pool)
    users = [op for op in (operation, biased) if op is not None]
    are_used_once = all(len(op.outputs[0].consumers()) == 1 for op in users)
    if known is None or not _is_averaging(pool, "AvgPool") or not are_used_once:
        return None
    image, kernel = operation.inputs
    name = "" if biased is None else biased.name
    return _resampled(operation, known, pool, fine=image, kernel=kernel, biased=name)


def _of_repeated(convolution: Any) -> Resampled | None:
    """The convolution of repeated pixels."""
    image, kernel = convolution.inputs
    known = _fusible_sizes(convolution)
    coarse = None if known is None else _repeated(image)
    if known is None or coarse is None:
        return None
    return _resampled(
        convolution, known, coarse=coarse, kernel=kernel, is_repeated=True
    )


def _image_gradient(gradient: Any) -> Resampled | None:
    """The gradient of averages to the image, or of a convolution to what repeats."""
    _, kernel, above = gradient.inputs
    known = _fusible_sizes(gradient)
    if known is None:
        return None
    if _is_averaging(above.op, "AvgPoolGrad"):
        return _resampled(gradient, known, coarse=above.op.inputs[1], kernel=kernel)
    added = _find_added_blocks(gradient.outputs[0])
    if added is None:
        return None
    shape = tuple(added.shape)
    images = {"fine": above, "kernel": kernel, "is_repeated": True, "shape": shape}
    return _resampled(gradient, known, added.op, **images)


def _kernel_gradient(gradient: Any) -> Resampled | None:
    """The gradient to the kernel, under averages or of repeated pixels."""
    image, _, above = gradient.inputs
    known = _fusible_sizes(gradient)
    if known is None:
        return None
    if _is_averaging(above.op, "AvgPoolGrad"):
        return _resampled(gradient, known, fine=image, coarse=above.op.inputs[1])
    coarse = _repeated(image)
    if coarse is None:
        return None
    return _resampled(gradient, known, fine=above, coarse=coarse, is_repeated=True)


def _sum_of_pixels(operation: Any) -> Resampled | None:
    """All pixels of averages' gradients: four quarters of each are what is averaged."""
    if not _is_averaging(operation.inputs[0].op, "AvgPoolGrad"):
        return None
    if operation.type == "BiasAddGrad" and not products.has_last_channels(operation):
        return None
    if operation.type == "Sum":
        axes = tf.get_static_value(operation.inputs[1])
        if axes is None or not {int(axis) for axis in np.ravel(axes)} >= _PIXEL_AXES:
            return None
    return Resampled(
        node=operation.name, coarse=_text(operation.inputs[0].op.inputs[1])
    )


_FINDERS: Mapping[str, Callable[[Any], Resampled | None]] = {
    "AvgPool": _averaged,
    "Conv2D": _of_repeated,
    "Conv2DBackpropInput": _image_gradient,
    "Conv2DBackpropFilter": _kernel_gradient,
    "BiasAddGrad": _sum_of_pixels,
    "Sum": _sum_of_pixels,
}


def _convolution_under(biased: Any) -> Any:
    """What a bias that is the same for all pixels is added to; None if it differs."""
    is_of_rows = biased.type == "BiasAdd" and not products.has_last_channels(biased)
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
    attributes = operation.node_def.attr
    return (
        products.has_last_channels(operation)
        and list(attributes["ksize"].list.i) == _BLOCK
        and list(attributes["strides"].list.i) == _BLOCK
        and fine.shape.is_fully_defined()
        and not any(size % _SIDE for size in fine.shape[1:3])
    )


def _fusible_sizes(operation: Any, user: Any = None) -> products.Sizes | None:
    """The sizes of a convolution, or a gradient, that may be one of two resolutions."""
    if operation.type not in products.OPS or operation.control_inputs:
        return None
    if user is not None and user.device != operation.device:
        return None
    node = operation.node_def
    known = products.sizes_of(operation) if products.is_plain(node) else None
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
        and not products.is_faster(known, _FLOAT32)
    )
    return known if is_fusible else None


# There is an operation that repeats pixels, but most programs tile and reshape, in one
# of many ways, and their gradients reshape and sum. So numbers are sent through the
# operations as they were traced, and what comes out is compared.

# Repeating rows, then columns, takes six operations, and their gradients seven.
_MAX_OPS = 8
_RESHAPES = frozenset({"Reshape", "ExpandDims", "Squeeze"})
_REPEATS = _RESHAPES | {"Tile", "ResizeNearestNeighbor"}
_SUMS = _RESHAPES | {"Sum", "ResizeNearestNeighborGrad"}


def _repeated(tensor: Any) -> Any:
    """The tensor whose pixels are those of an image, each of them in a block; or None.

    The image has an even height and width.
    """
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
        found = _through(ops, tensor, source, numbers)
        if found is not None and np.array_equal(found, expected):
            return source
    return None


def _find_added_blocks(tensor: Any) -> Any:
    """The sums of all blocks of an image that nothing else uses; or None."""
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
        if len(users) != 1 or not _is_any(users[0], _SUMS):
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
        axes = tf.get_static_value(op.inputs[1])
        last = value.ndim - 1
        whole = (
            () if axes is None else {int(axis) % value.ndim for axis in np.ravel(axes)}
        )
        if axes is None or last in whole:  # channels are added
            return None
        return value.sum(tuple(whole), keepdims=op.get_attr("keep_dims"))
    is_repeat = op.type == "ResizeNearestNeighbor"
    fine, coarse = (shape, value.shape) if is_repeat else (value.shape, shape)
    if op.get_attr("align_corners") or not shape or _halved(fine) != coarse:
        return None
    return _repeat(value) if is_repeat else _sum(value)


def _reshape(value: Any, shape: tuple[int, ...]) -> Any:
    is_known = shape and math.prod(shape) == value.size
    return value.reshape(shape) if is_known else None


def _halved(shape: tuple[int, ...]) -> tuple[int, ...]:
    batch, height, width, channels = shape
    return (batch, height // _SIDE, width // _SIDE, channels)


def _repeat(image: Any) -> Any:
    return image.repeat(_SIDE, axis=1).repeat(_SIDE, axis=2)


def _sum(image: Any) -> Any:
    batch, height, width, channels = _halved(image.shape)
    return image.reshape(batch, height, _SIDE, width, _SIDE, channels).sum((2, 4))


_CONVOLUTION: Mapping[str, Any] = {"strides": _BLOCK, "padding": "SAME"}


def fuse(graph_def: Any, found: Sequence[Resampled]) -> None:
    """Computes nodes from the smaller image, in place."""
    nodes = {node.name: node for node in graph_def.node}
    additions = Additions(graph_def, "replicator_resampled")
    for one in found:
        if one.sizes is None:
            nodes[one.node].input[0] = one.coarse
        else:
            additions.beside = nodes[one.node]
            _convolve(one, one.sizes, nodes, additions)


def _convolve(
    one: Resampled, known: products.Sizes, nodes: Mapping[str, Any], to: Additions
) -> None:
    """Makes one node that of a convolution between two resolutions."""
    user_kernel = [*known.kernel, known.channels, known.result_channels]
    order = [0, 1, 3, 2] if one.is_repeated else [0, 1, 2, 3]
    height, width = known.image
    # As the image and the result of the new convolution have them.
    first, last = (user_kernel[place] for place in order[2:])
    moves = to.const(_moves(known.kernel, is_repeated=one.is_repeated))
    larger = [size + 1 for size in known.kernel]

    def swapped(kernel: str) -> str:
        """Channels in the order of the other convolution, if it is turned around."""
        is_swapped = one.is_repeated
        return to.add("Transpose", [kernel, to.const(order)]) if is_swapped else kernel

    coarse = one.coarse
    if one.coarse and one.is_repeated:  # in any shape
        shape = [known.batch, height // _SIDE, width // _SIDE, last]
        coarse = to.reshape(coarse, shape)
    if not one.kernel:
        # The gradient to the user's kernel, from the gradient to the other.
        sizes = to.const([*larger, first, last])
        inputs = [one.fine, sizes, coarse]
        gradient = to.add("Conv2DBackpropFilter", inputs, **_CONVOLUTION)
        flat = [math.prod(larger), first * last]
        gradient = to.reshape(swapped(gradient), flat)
        product = to.add("MatMul", [moves, gradient], transpose_a=True)
        to.replace("Reshape", [product, to.const(user_kernel)])
        return
    # The user's kernel as the one between the resolutions.
    flat = [math.prod(known.kernel), first * last]
    kernel = to.add("MatMul", [moves, to.reshape(one.kernel, flat)])
    kernel = swapped(to.reshape(kernel, [*larger, *user_kernel[2:]]))
    if coarse:
        sizes = to.const([known.batch, height, width, first])
        to.replace("Conv2DBackpropInput", [sizes, kernel, coarse], **_CONVOLUTION)
    elif not (one.is_repeated or one.biased):
        to.replace("Conv2D", [one.fine, kernel], **_CONVOLUTION)
    else:
        result = to.add("Conv2D", [one.fine, kernel], **_CONVOLUTION)
        if one.is_repeated:
            to.replace("Reshape", [result, to.const(list(one.shape))])
        else:
            node = nodes[one.node]
            node.CopyFrom(nodes[one.biased])
            node.name = one.node
            node.input[list(node.input).index(one.convolution)] = result


def _moves(kernel: tuple[int, int], *, is_repeated: bool) -> np.ndarray:
    """What makes the larger kernel of the smaller: ``[elements, elements]``."""
    # Adds a row of so many elements to itself, moved by one: ``[size + 1, size]``.
    down, right = (np.eye(n + 1, n) + np.eye(n + 1, n, -1) for n in kernel)
    if is_repeated:
        # The gradient of a convolution turns its kernel around.
        down, right = down[:, ::-1], right[:, ::-1]
    moves = np.kron(down, right)
    return (moves if is_repeated else moves / _SIDE**2).astype(np.float32)
