"""What the products of a graph compute: two operations per multiply-add."""

from __future__ import annotations

import math
from typing import Any

_CONVOLUTIONS = ("Conv2D", "Conv3D")


def flops(graph: Any) -> int:
    """Returns the operations of all products and convolutions of a graph.

    Those inside functions that it calls are not counted, nor those whose shapes are not
    known before they run.
    """
    return sum(map(_of_operation, graph.get_operations()))


def _of_operation(operation: Any) -> int:
    kind = operation.type
    if kind == "Einsum":
        return 2 * _of_labels(operation)
    if kind == "MatMul":
        inner = -2 if operation.get_attr("transpose_a") else -1
        return _times(operation, operation.inputs[0].shape[inner])
    if kind.startswith("BatchMatMul"):
        inner = -2 if operation.get_attr("adj_x") else -1
        return _times(operation, operation.inputs[0].shape[inner])
    if kind in _CONVOLUTIONS:
        return _times(operation, operation.inputs[1].shape[:-1].num_elements())
    if kind == "DepthwiseConv2dNative":
        return _times(operation, operation.inputs[1].shape[:2].num_elements())
    return 0


def _times(operation: Any, num_terms: int | None) -> int:
    num_results = operation.outputs[0].shape.num_elements()
    return 2 * (num_results or 0) * (num_terms or 0)


def _of_labels(operation: Any) -> int:
    """The product of the sizes of all labels of an equation such as ``abc,cd->abd``."""
    terms = operation.get_attr("equation").decode().partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms, operation.inputs, strict=True):
        # Of an ellipsis, the dimensions are those that no label has.
        before, _, after = term.partition("...")
        rank = tensor.shape.rank or 0
        labels = [*before, *(f"...{i}" for i in range(rank - len(before + after)))]
        for label, size in zip([*labels, *after], tensor.shape, strict=False):
            sizes[label] = max(sizes.get(label, 1), size or 0)
    return math.prod(sizes.values())
