"""Sizes of convolutions, which are known while the step is traced."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Sequence

OPS = frozenset({"Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter"})
_RANK = 4


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """Those of a convolution; the batch is -1 if it is not known."""

    batch: int
    image: tuple[int, int]
    channels: int
    kernel: tuple[int, int]
    result: tuple[int, int]
    result_channels: int

    def to_list(self) -> list[int]:
        """As an attribute of a node."""
        return list(tf.nest.flatten(dataclasses.astuple(self)))

    @classmethod
    def from_list(cls, numbers: Sequence[int]) -> Sizes:
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


def of(operation: Any) -> Sizes | None:
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
