"""Finds convolutions of repeated pixels, and convolutions that are averaged."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator.engine.graph.convolutions import products
from replicator.engine.graph.convolutions.products import BLOCK, Additions, Replacement

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


_BLOCK = [1, products.BLOCK, products.BLOCK, 1]
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
    convolution: str  # The convolution, or the gradient of one, that it replaces.
    sizes: products.Sizes  # Those of the user's convolution.
    fine: str = ""  # The larger image; empty if that is computed.
    coarse: str = ""  # The smaller image; empty if that is computed.
    kernel: str = ""  # The user's kernel; empty if its gradient is computed.
    # Whether pixels are repeated before the user's convolution, and not averaged after
    # it.
    is_repeated: bool = False
    shape: tuple[int, ...] = ()  # Of the result, where that is not an image.
    biased: str = ""  # A node that adds a bias to the user's convolution, or empty.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SumOfPixels:
    """A bias' gradient, which is the same from the smaller image."""

    node: str  # Its name.
    coarse: str  # The smaller image.


def find(graph: Any) -> tuple[Resampled | SumOfPixels, ...]:
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


def _averaged(pool: Any) -> Resampled | None:
    """The averages of a convolution, with or without a bias."""
    operation, biased = pool.inputs[0].op, None
    if operation.type in {"BiasAdd", "AddV2"}:
        biased, operation = operation, _convolution_under(operation)
    if operation is None or operation.type != "Conv2D":
        return None
    known = _fusible_sizes(operation, pool)
    users = [op for op in (operation, biased) if op is not None]
    is_averaging = _is_averaging(pool, "AvgPool")
    if known is None or not is_averaging or not all(map(_is_used_once, users)):
        return None
    image, kernel = operation.inputs
    name = "" if biased is None else biased.name
    return _resampled(operation, known, pool, fine=image, kernel=kernel, biased=name)


def _of_repeated(convolution: Any) -> Resampled | None:
    """The convolution of repeated pixels."""
    image, kernel = convolution.inputs
    known = _fusible_sizes(convolution)
    coarse = None if known is None else products.repeated(image)
    if known is None or coarse is None:
        return None
    images = {"coarse": coarse, "kernel": kernel, "is_repeated": True}
    return _resampled(convolution, known, **images)


def _image_gradient(gradient: Any) -> Resampled | None:
    """The gradient of averages to the image, or of a convolution to what repeats."""
    _, kernel, above = gradient.inputs
    known = _fusible_sizes(gradient)
    if known is None:
        return None
    if _is_averaging(above.op, "AvgPoolGrad"):
        return _resampled(gradient, known, coarse=above.op.inputs[1], kernel=kernel)
    added = products.find_added_blocks(gradient.outputs[0])
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
    coarse = products.repeated(image)
    if coarse is None:
        return None
    return _resampled(gradient, known, fine=above, coarse=coarse, is_repeated=True)


def _sum_of_pixels(operation: Any) -> SumOfPixels | None:
    """All pixels of averages' gradients: four quarters of each are what is averaged."""
    if not _is_averaging(operation.inputs[0].op, "AvgPoolGrad"):
        return None
    if operation.type == "BiasAddGrad" and not products.has_last_channels(operation):
        return None
    if operation.type == "Sum":
        axes = tf.get_static_value(operation.inputs[1])
        if axes is None or not {int(axis) for axis in np.ravel(axes)} >= _PIXEL_AXES:
            return None
    above = operation.inputs[0].op.inputs[1]
    return SumOfPixels(node=operation.name, coarse=_text(above))


_FINDERS: Mapping[str, Callable[[Any], Resampled | SumOfPixels | None]] = {
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
        and not any(size % products.BLOCK for size in fine.shape[1:3])
    )


def _fusible_sizes(operation: Any, user: Any = None) -> products.Sizes | None:
    """The sizes of a convolution, or a gradient, that may be one of two resolutions."""
    if (
        operation is None
        or operation.type not in products.OPS
        or operation.control_inputs
    ):
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
        and not any(size % products.BLOCK for size in known.image)
        # An even kernel has more padding on one side, and one pixel saves nothing.
        and down % 2 == right % 2 == 1 < down * right
        and known.batch * known.image[0] * known.image[1] >= _LEAST_PIXELS
        and not products.is_faster(known, _FLOAT32)
    )
    return known if is_fusible else None


def _is_used_once(operation: Any) -> bool:
    return len(operation.outputs[0].consumers()) == 1


def _text(tensor: Any) -> str:
    """As the input of a node."""
    return tensor.name.removesuffix(":0")


# Generators repeat the pixels of an image and convolve the larger one; discriminators
# convolve, and average blocks of the result. Both are linear, as their gradients are,
# and each is one convolution between the two resolutions (Karras, Aila, Laine and
# Lehtinen 2018 wrote their networks so): it has stride 2, and its kernel is the sum of
# the user's moved by no and by one pixel in both directions. For each pixel of the
# smaller image it multiplies 4 x 4 numbers in place of 4 times 3 x 3.

_CONVOLUTION: Mapping[str, Any] = {"strides": [1, BLOCK, BLOCK, 1], "padding": "SAME"}


def fuse(graph_def: Any, found: Sequence[Resampled | SumOfPixels]) -> None:
    """Computes nodes from the smaller image, in place."""
    nodes = {node.name: node for node in graph_def.node}
    additions = Additions(graph_def, "replicator_resampled")
    for one in found:
        if isinstance(one, SumOfPixels):
            nodes[one.node].input[0] = one.coarse
        else:
            _BetweenResolutions(one, nodes, additions).rewrite()


class _BetweenResolutions(Replacement):
    """Makes one node that of a convolution between two resolutions."""

    def __init__(
        self, one: Resampled, nodes: Mapping[str, Any], additions: Additions
    ) -> None:
        super().__init__(nodes[one.node], additions)
        self._one = one
        self._nodes = nodes
        self._dtype = tf.float32
        known = one.sizes
        # As the image and the result of the new convolution have them.
        channels = [known.channels, known.result_channels]
        channels = channels[::-1] if one.is_repeated else channels
        height, width = known.image
        self._fine = [known.batch, height, width, channels[0]]
        self._coarse = [known.batch, height // BLOCK, width // BLOCK, channels[1]]
        self._kernel = [*(size + 1 for size in known.kernel), *channels]

    def rewrite(self) -> None:
        """Changes the node."""
        one = self._one
        if one.fine and one.coarse:
            self._to_kernel_gradient()
        elif one.coarse:
            inputs = [self._ints(self._fine), self._moved_kernel(), self._image()]
            self._replace("Conv2DBackpropInput", inputs, **_CONVOLUTION)
        elif not (one.is_repeated or one.biased):
            self._replace("Conv2D", [one.fine, self._moved_kernel()], **_CONVOLUTION)
        else:
            inputs = [one.fine, self._moved_kernel()]
            result = self._add("Conv2D", inputs, **_CONVOLUTION)
            if one.is_repeated:
                shape = self._ints(one.shape)
                self._replace("Reshape", [result, shape], Tshape=tf.int32)
            else:
                self._node.CopyFrom(self._nodes[one.biased])
                self._node.name = one.node
                position = list(self._node.input).index(one.convolution)
                self._node.input[position] = result

    def _moved_kernel(self) -> str:
        """The user's kernel as the one between the resolutions."""
        rows, columns, channels, last = self._user_kernel
        kernel = self._reshape(self._one.kernel, [rows * columns, channels * last])
        types = {"transpose_a": False, "transpose_b": False}
        product = self._add("MatMul", [self._moves(), kernel], **types)
        return self._swapped(
            self._reshape(product, [*self._kernel[:2], channels, last])
        )

    def _to_kernel_gradient(self) -> None:
        """The gradient to the user's kernel, from the gradient to the other."""
        inputs = [self._one.fine, self._ints(self._kernel), self._image()]
        gradient = self._add("Conv2DBackpropFilter", inputs, **_CONVOLUTION)
        rows, columns, channels, last = self._kernel
        flat = [rows * columns, channels * last]
        gradient = self._reshape(self._swapped(gradient), flat)
        types = {"transpose_a": True, "transpose_b": False}
        product = self._add("MatMul", [self._moves(), gradient], **types)
        shape = self._ints(self._user_kernel)
        self._replace("Reshape", [product, shape], Tshape=tf.int32)

    def _moves(self) -> str:
        """What makes the larger kernel of the smaller: ``[elements, elements]``."""
        rows, columns, *_ = self._user_kernel
        down, right = _moved(rows), _moved(columns)
        if self._one.is_repeated:
            # The gradient of a convolution turns its kernel around.
            down, right = down[:, ::-1], right[:, ::-1]
        moves = np.kron(down, right)
        if not self._one.is_repeated:
            moves = moves / BLOCK**2
        return self._const(moves.astype(np.float32))

    def _swapped(self, kernel: str) -> str:
        """Channels in the order of the other convolution, where it is turned around."""
        if not self._one.is_repeated:
            return kernel
        order = self._ints([0, 1, 3, 2])
        return self._add("Transpose", [kernel, order], Tperm=tf.int32)

    def _image(self) -> str:
        """The smaller image, which repeated pixels may be taken from in any shape."""
        if not self._one.is_repeated:
            return self._one.coarse
        return self._reshape(self._one.coarse, self._coarse)

    @property
    def _user_kernel(self) -> list[int]:
        known = self._one.sizes
        return [*known.kernel, known.channels, known.result_channels]


def _moved(size: int) -> np.ndarray:
    """Adds a row of so many elements to itself, moved by one: ``[size + 1, size]``."""
    return np.eye(size + 1, size) + np.eye(size + 1, size, -1)
