"""Stages of a chain of Keras layers, cut by what layers cost, or by hand."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from replicator._tf.messages import trace_reason_of
from replicator.errors import PipelineError
from replicator.pipeline import products
from replicator.pipeline.balance import balance_stages
from replicator.step.logical import logical_device
from replicator.validation.arguments import is_integer, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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
    if (
        not isinstance(makers, (list, tuple))
        or not makers
        or not all(
            callable(maker) and not isinstance(maker, keras.layers.Layer)
            for maker in makers
        )
    ):
        raise PipelineError(
            f"make_stages(makers) got {shown(makers)}; pass a list of functions that "
            "each return a new Keras layer, such as lambda: keras.layers.Dense(8)"
        )
    if not isinstance(example, tf.TensorSpec) or not example.shape.is_fully_defined():
        raise PipelineError(
            f"make_stages(example) got {shown(example)}; pass the tf.TensorSpec of a "
            "micro-batch, with its number of examples"
        )
    by_hand, way = None, "flops"
    if isinstance(balance, str) and balance != "flops":
        raise PipelineError(
            f"balance={shown(balance)} is unknown; use 'flops', or a list with the "
            "number of layers of each stage"
        )
    if not isinstance(balance, str):
        by_hand, way = _by_hand(balance, len(makers), num_stages), "hand"
    costs, outputs = _costs(makers, example)
    parts = balance_stages(costs, num_stages) if by_hand is None else by_hand
    stages = Stages()
    for index, part in enumerate(parts):
        spec = outputs[part.start]
        with logical_device(index):
            inputs = keras.Input(spec.shape[1:], dtype=spec.dtype.name)
            stages.append(keras.Sequential([inputs, *(makers[i]() for i in part)]))
    stages.balance = _described(way, parts, costs)
    # A list of functools.partial(stage, training=True) has none of its own.
    stages[0].balance_of_stages = stages.balance
    return stages


def _by_hand(balance: Any, num_layers: int, num_stages: int) -> list[range]:
    is_list = isinstance(balance, (list, tuple)) and all(
        is_integer(count, least=1) for count in balance
    )
    if not is_list or len(balance) != num_stages or sum(balance) != num_layers:
        raise PipelineError(
            f"balance={shown(balance)} does not cut {num_layers} layers into "
            f"{num_stages} stages; use 'flops', or the number of layers of each stage, "
            f"{num_layers} in all"
        )
    ends = [0, *itertools.accumulate(balance)]
    return [range(a, b) for a, b in itertools.pairwise(ends)]


def _costs(
    makers: Sequence[Callable[[], Any]], example: Any
) -> tuple[list[float], list[Any]]:
    """What each layer costs, and the inputs of each."""
    costs: list[float] = []
    inputs = [example]
    for maker in makers:
        traced = _traced(maker)
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
        costs.append(float(products.flops(concrete.graph)))
    return costs, inputs


def _traced(maker: Callable[[], Any]) -> Any:
    def run(values: Any) -> Any:
        # What a layer makes in this scope has no memory.
        with keras.StatelessScope(initialize_variables=False):
            return maker()(values)

    return tf.function(run, autograph=False)


def _described(way: str, parts: Sequence[range], costs: Sequence[float]) -> str:
    by_stage = [sum(costs[i] for i in part) for part in parts]
    found = ", ".join(f"{cost:,.0f} FLOPs forward" for cost in by_stage)
    layers = ", ".join(
        f"{part.start}" if len(part) == 1 else f"{part.start} to {part.stop - 1}"
        for part in parts
    )
    return f"balance by {way}: layers {layers}; {found}"
