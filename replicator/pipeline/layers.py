"""Stages of a chain of Keras layers, cut by what layers cost, or by hand."""

from __future__ import annotations

import functools
import itertools
import math
import numbers
import operator
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from replicator._tf.workers import trace_reason_of
from replicator.core.context import logical_device
from replicator.core.validation import format_value, is_integer
from replicator.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def balance_stages(costs: Sequence[float], num_stages: int) -> list[range]:
    """Cuts a chain of layers into stages so that the largest costs as little as it can.

    The slowest stage sets the pace of a pipeline (Huang et al. 2019, section 2.1).
    May be called anywhere.

    Args:
      costs: Of each layer, in order: FLOPs, or seconds that were measured.
      num_stages: K, at most as many as layers.

    Returns:
      The indices of the layers of each stage; none is empty.

    Raises:
      PipelineError: There are fewer layers than stages, or a cost is no number of at
        least 0.
    """
    if not isinstance(costs, (list, tuple)) or not costs:
        raise PipelineError(
            f"balance_stages(costs) got {format_value(costs)}; pass a list with the "
            "FLOPs or the seconds of each layer"
        )
    if not is_integer(num_stages, least=1) or num_stages > len(costs):
        raise PipelineError(
            f"num_stages={format_value(num_stages)} for {len(costs)} layers; use an "
            f"integer from 1 to {len(costs)}: every stage has a layer at least"
        )
    for cost in costs:
        is_number = isinstance(cost, numbers.Real) and not isinstance(cost, bool)
        if not (is_number and 0 <= cost < math.inf):
            raise PipelineError(
                f"costs has {format_value(cost)}; use FLOPs or seconds, finite and not "
                "below 0"
            )
    until = [0.0, *itertools.accumulate(costs)]

    @functools.cache
    def best(num_stages: int, end: int) -> tuple[float, tuple[int, ...]]:
        """The largest stage of the layers before one, and where stages begin."""
        if num_stages == 1:
            return until[end], (0,)
        cuts = []
        for start in range(num_stages - 1, end):
            largest, begins = best(num_stages - 1, start)
            cost = max(largest, until[end] - until[start])
            cuts.append((cost, (*begins, start)))
        return min(cuts, key=operator.itemgetter(0))

    _, begins = best(num_stages, len(costs))
    return _ranges(*begins, len(costs))


def _ranges(*bounds: int) -> list[range]:
    return [range(first, end) for first, end in itertools.pairwise(bounds)]


# Product -> its attribute for a transposed first operand.
_PRODUCTS = {"MatMul": "transpose_a"} | {
    f"BatchMatMul{version}": "adj_x" for version in ("", "V2", "V3")
}
# Convolution -> the dimensions of its filter of which each result is a sum.
_CONVOLUTIONS = {"Conv2D": -1, "Conv3D": -1, "DepthwiseConv2dNative": 2}


def _flops_of(operation: Any) -> int:
    """The operations of a product or convolution whose shapes are known, or 0."""
    kind = operation.type
    if kind == "Einsum":
        return 2 * _label_product(operation)
    if kind in _PRODUCTS:
        inner = -2 if operation.get_attr(_PRODUCTS[kind]) else -1
        num_terms = operation.inputs[0].shape[inner]
    elif kind in _CONVOLUTIONS:
        summed = operation.inputs[1].shape[: _CONVOLUTIONS[kind]]
        num_terms = summed.num_elements()
    else:
        return 0
    return 2 * (operation.outputs[0].shape.num_elements() or 0) * (num_terms or 0)


def _label_product(operation: Any) -> int:
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


class Stages(list[Any]):
    """Stages as ``Pipeline`` takes them, each a ``keras.Sequential``."""

    balance: str = ""  # A line that says which layers each stage has, and why.


def make_stages(
    makers: Sequence[Callable[[], Any]],
    example: Any,
    num_stages: int,
    *,
    balance: str | Sequence[int] = "flops",
) -> Stages:
    """Cuts a chain of Keras layers into stages, and makes stage k on logical device k.

    Call it in ``repl.context()``. The largest stage is as small as it can be, since it
    sets the pace of a pipeline (Huang et al. 2019, section 2.1).

    Args:
      makers: Functions without arguments, each of which returns a new layer; to find
        what layers cost, others are made, one at a time.
      example: ``tf.TensorSpec`` of the inputs of a micro-batch, [examples, ...].
      num_stages: K, at most as many as layers.
      balance: ``flops`` counts the products of each layer from its graph, without
        making its variables; a list has the number of layers of each stage.

    Returns:
      K models in a list, whose balance ``explain()`` prints.

    Raises:
      PipelineError: There are fewer layers than stages, or ``balance`` is none of
        these.
    """
    is_list = isinstance(makers, (list, tuple)) and bool(makers)
    if not is_list or not all(
        callable(maker) and not isinstance(maker, keras.layers.Layer)
        for maker in makers
    ):
        raise PipelineError(
            f"make_stages(makers) got {format_value(makers)}; pass a list of functions "
            "that each return a new Keras layer, such as lambda: keras.layers.Dense(8)"
        )
    if not isinstance(example, tf.TensorSpec) or not example.shape.is_fully_defined():
        raise PipelineError(
            f"make_stages(example) got {format_value(example)}; pass the tf.TensorSpec "
            "of a micro-batch, with its number of examples"
        )
    num_layers = len(makers)
    counts: Any = None if isinstance(balance, str) else balance
    if counts is None and balance != "flops":
        raise PipelineError(
            f"balance={format_value(balance)} is unknown; use 'flops', or a list with "
            "the number of layers of each stage"
        )
    if counts is not None:
        is_list = isinstance(counts, (list, tuple)) and all(
            is_integer(count, least=1) for count in counts
        )
        if not is_list or len(counts) != num_stages or sum(counts) != num_layers:
            raise PipelineError(
                f"balance={format_value(balance)} does not cut {num_layers} layers "
                f"into {num_stages} stages; use 'flops', or the number of layers of "
                f"each stage, {num_layers} in all"
            )
    costs, outputs = _costs(makers, example)
    if counts is None:
        parts = balance_stages(costs, num_stages)
    else:
        parts = _ranges(0, *itertools.accumulate(counts))
    stages = Stages()
    for index, part in enumerate(parts):
        spec = outputs[part.start]
        with logical_device(index):
            inputs = keras.Input(spec.shape[1:], dtype=spec.dtype.name)
            stages.append(keras.Sequential([inputs, *(makers[i]() for i in part)]))
    way = "flops" if counts is None else "hand"
    by_stage = (sum(costs[part.start : part.stop]) for part in parts)
    by_cost = ", ".join(f"{cost:,.0f} FLOPs forward" for cost in by_stage)
    layers = ", ".join(
        f"{part.start}" if len(part) == 1 else f"{part.start} to {part.stop - 1}"
        for part in parts
    )
    stages.balance = f"balance by {way}: layers {layers}; {by_cost}"
    # A list of functools.partial(stage, training=True) has none of its own.
    stages[0].balance_of_stages = stages.balance
    return stages


def _costs(
    makers: Sequence[Callable[[], Any]], example: Any
) -> tuple[list[float], list[Any]]:
    costs: list[float] = []
    inputs = [example]
    for maker in makers:
        traced = tf.function(functools.partial(_run, maker), autograph=False)
        try:
            concrete = traced.get_concrete_function(inputs[-1])
        except (TypeError, ValueError) as error:
            given = f"{inputs[-1].dtype.name}{list(inputs[-1].shape)}"
            raise PipelineError(
                f"layer {len(costs)} does not take {given}: {trace_reason_of(error)}; "
                "make the outputs of a layer the inputs of the next, and example those "
                "of the first"
            ) from error
        inputs.append(tf.TensorSpec.from_tensor(concrete.outputs[0]))
        # Those inside functions that the layer calls are not counted.
        costs.append(float(sum(map(_flops_of, concrete.graph.get_operations()))))
    return costs, inputs


def _run(maker: Callable[[], Any], values: Any) -> Any:
    # What a layer makes in this scope has no memory.
    with keras.StatelessScope(initialize_variables=False):
        return maker()(values)
