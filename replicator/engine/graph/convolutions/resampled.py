"""Finds convolutions of repeated pixels, and convolutions that are averaged."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator.engine.graph.convolutions import blocks, products, sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_BLOCK = [1, blocks.BLOCK, blocks.BLOCK, 1]
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
    sizes: sizes.Sizes  # Those of the user's convolution.
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
    return Resampled(
        node=pool.name,
        convolution=operation.name,
        sizes=known,
        fine=_text(image),
        kernel=_text(kernel),
        biased="" if biased is None else biased.name,
    )


def _of_repeated(convolution: Any) -> Resampled | None:
    """The convolution of repeated pixels."""
    image, kernel = convolution.inputs
    known = _fusible_sizes(convolution)
    coarse = None if known is None else blocks.repeated(image)
    if known is None or coarse is None:
        return None
    return Resampled(
        node=convolution.name,
        convolution=convolution.name,
        sizes=known,
        coarse=_text(coarse),
        kernel=_text(kernel),
        is_repeated=True,
    )


def _image_gradient(gradient: Any) -> Resampled | None:
    """The gradient of averages to the image, or of a convolution to what repeats."""
    _, kernel, above = gradient.inputs
    known = _fusible_sizes(gradient)
    if known is None:
        return None
    if _is_averaging(above.op, "AvgPoolGrad"):
        return Resampled(
            node=gradient.name,
            convolution=gradient.name,
            sizes=known,
            coarse=_text(above.op.inputs[1]),
            kernel=_text(kernel),
        )
    added = blocks.added(gradient.outputs[0])
    if added is None:
        return None
    return Resampled(
        node=added.op.name,
        convolution=gradient.name,
        sizes=known,
        fine=_text(above),
        kernel=_text(kernel),
        is_repeated=True,
        shape=tuple(added.shape),
    )


def _kernel_gradient(gradient: Any) -> Resampled | None:
    """The gradient to the kernel, under averages or of repeated pixels."""
    image, _, above = gradient.inputs
    known = _fusible_sizes(gradient)
    if known is None:
        return None
    is_repeated = not _is_averaging(above.op, "AvgPoolGrad")
    coarse = blocks.repeated(image) if is_repeated else above.op.inputs[1]
    if coarse is None:
        return None
    return Resampled(
        node=gradient.name,
        convolution=gradient.name,
        sizes=known,
        fine=_text(above if is_repeated else image),
        coarse=_text(coarse),
        is_repeated=is_repeated,
    )


def _sum_of_pixels(operation: Any) -> SumOfPixels | None:
    """All pixels of averages' gradients: four quarters of each are what is averaged."""
    if not _is_averaging(operation.inputs[0].op, "AvgPoolGrad"):
        return None
    if operation.type == "BiasAddGrad" and not sizes.has_last_channels(operation):
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
    is_of_rows = biased.type == "BiasAdd" and not sizes.has_last_channels(biased)
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
        sizes.has_last_channels(operation)
        and list(attributes["ksize"].list.i) == _BLOCK
        and list(attributes["strides"].list.i) == _BLOCK
        and fine.shape.is_fully_defined()
        and not any(size % blocks.BLOCK for size in fine.shape[1:3])
    )


def _fusible_sizes(operation: Any, user: Any = None) -> sizes.Sizes | None:
    """The sizes of a convolution, or a gradient, that may be one of two resolutions."""
    if operation is None or operation.type not in sizes.OPS or operation.control_inputs:
        return None
    if user is not None and user.device != operation.device:
        return None
    node = operation.node_def
    known = sizes.of(operation) if sizes.is_plain(node) else None
    if known is None or known.batch < 0:
        return None
    down, right = known.kernel
    is_fusible = (
        node.attr["T"].type == _FLOAT32
        and set(node.attr["strides"].list.i) == {1}
        and node.attr["padding"].s == b"SAME"
        and not any(size % blocks.BLOCK for size in known.image)
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
