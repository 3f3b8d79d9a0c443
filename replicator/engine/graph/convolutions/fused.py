"""Convolutions of repeated pixels, and averaged ones, in fewer multiplications.

Generators repeat the pixels of an image and convolve the larger one; discriminators
convolve, and average blocks of the result. Both are linear, as their gradients are, and
each is one convolution between the two resolutions (Karras, Aila, Laine and Lehtinen
2018 wrote their networks so): it has stride 2, and its kernel is the sum of the user's
moved by no and by one pixel in both directions. For each pixel of the smaller image it
multiplies 4 x 4 numbers in place of 4 times 3 x 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator.engine.graph.body import make_node
from replicator.engine.graph.convolutions.additions import Additions
from replicator.engine.graph.convolutions.blocks import BLOCK
from replicator.engine.graph.convolutions.resampled import SumOfPixels

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from replicator.engine.graph.convolutions.resampled import Resampled

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


class _BetweenResolutions:
    """Makes one node that of a convolution between two resolutions."""

    def __init__(
        self, one: Resampled, nodes: Mapping[str, Any], additions: Additions
    ) -> None:
        self._one = one
        self._nodes = nodes
        self._additions = additions
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
        one, nodes = self._one, self._nodes
        if one.fine and one.coarse:
            node = self._kernel_gradient()
        elif one.coarse:
            inputs = [self._ints(self._fine), self._moved_kernel(), self._image()]
            node = self._node("Conv2DBackpropInput", inputs, **_CONVOLUTION)
        else:
            inputs = [one.fine, self._moved_kernel()]
            if one.is_repeated:
                result = self._add("Conv2D", inputs, **_CONVOLUTION)
                shape = self._ints(one.shape)
                node = self._node("Reshape", [result, shape], Tshape=tf.int32)
            elif one.biased:
                result = self._add("Conv2D", inputs, **_CONVOLUTION)
                node = type(nodes[one.node])()
                node.CopyFrom(nodes[one.biased])
                node.name = one.node
                position = list(node.input).index(one.convolution)
                node.input[position] = result
            else:
                node = self._node("Conv2D", inputs, **_CONVOLUTION)
        nodes[one.node].CopyFrom(node)

    def _moved_kernel(self) -> str:
        """The user's kernel as the one between the resolutions."""
        rows, columns, channels, last = self._user_kernel
        kernel = self._reshaped(self._one.kernel, [rows * columns, channels * last])
        types = {"transpose_a": False, "transpose_b": False}
        product = self._add("MatMul", [self._moves(), kernel], **types)
        return self._swapped(
            self._reshaped(product, [*self._kernel[:2], channels, last])
        )

    def _kernel_gradient(self) -> Any:
        """The gradient to the user's kernel, from that to the other."""
        inputs = [self._one.fine, self._ints(self._kernel), self._image()]
        gradient = self._add("Conv2DBackpropFilter", inputs, **_CONVOLUTION)
        rows, columns, channels, last = self._kernel
        flat = [rows * columns, channels * last]
        gradient = self._reshaped(self._swapped(gradient), flat)
        types = {"transpose_a": True, "transpose_b": False}
        product = self._add("MatMul", [self._moves(), gradient], **types)
        shape = self._ints(self._user_kernel)
        return self._node("Reshape", [product, shape], Tshape=tf.int32)

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
        return self._additions.const(moves.astype(np.float32), self._device)

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
        return self._reshaped(self._one.coarse, self._coarse)

    @property
    def _user_kernel(self) -> list[int]:
        known = self._one.sizes
        return [*known.kernel, known.channels, known.result_channels]

    @property
    def _device(self) -> str:
        return self._nodes[self._one.node].device

    def _ints(self, values: Sequence[int]) -> str:
        return self._additions.const(np.array(values, np.int32), self._device)

    def _reshaped(self, tensor: str, shape: Sequence[int]) -> str:
        return self._additions.reshaped(tensor, shape, tf.float32, self._device)

    def _add(self, op: str, inputs: Sequence[str], **attrs: Any) -> str:
        return self._additions.node(op, inputs, self._device, T=tf.float32, **attrs)

    def _node(self, op: str, inputs: Sequence[str], **attrs: Any) -> Any:
        attrs = {"T": tf.float32, **attrs}
        return make_node(self._one.node, op, inputs, self._device, attrs)


def _moved(size: int) -> np.ndarray:
    """Adds a row of so many elements to itself, moved by one: ``[size + 1, size]``."""
    return np.eye(size + 1, size) + np.eye(size + 1, size, -1)
