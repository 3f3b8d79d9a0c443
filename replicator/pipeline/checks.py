"""What a stage must not do, read from the graph that it was traced to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf.messages import trace_reason_of
from replicator.engine.graph.effects import READ_OPS
from replicator.errors import PipelineError
from replicator.step import tracing

if TYPE_CHECKING:
    from collections.abc import Sequence

_WRITES = ("Assign", "ResourceApply", "ResourceScatter", "ResourceSparseApply")
_CALLS = frozenset(
    {"Case", "If", "PartitionedCall", "Placeholder", "StatefulPartitionedCall", "While"}
)


def check_stage(index: int, concrete: Any) -> None:
    """Rejects a stage with effects, or that reads tensors of the step around it.

    In a traced step TensorFlow puts all that has effects into one order, so that one
    such operation in a stage would make the pipeline wait for every task of all others.
    """
    graph = concrete.graph
    for outer, inner in graph.captures:
        if outer.dtype != tf.resource and hasattr(outer, "graph"):
            uses = inner.consumers()
            where = tracing.shown([tracing.line_of(uses[0].traceback)]) if uses else ""
            raise PipelineError(
                f"stage {index} uses{where} a tensor of the step around it, whose "
                "gradient would be lost; pass it through the stages, from the batch on"
            )
    for operation in graph.get_operations():
        if operation.type not in _CALLS and _has_effects(operation.node_def):
            raise _with_effects(
                index, operation.type, tracing.line_of(operation.traceback)
            )
    for function in graph.as_graph_def().library.function:
        for node in function.node_def:
            if node.op not in _CALLS and _has_effects(node):
                raise _with_effects(index, node.op, "")


def check_owners(names: Sequence[str], owners: Sequence[Sequence[Any]]) -> None:
    """Rejects a variable that two stages train, or update."""
    found: dict[int, int] = {}
    for stage, variables in enumerate(owners):
        for variable in variables:
            other = found.setdefault(id(variable), stage)
            if other != stage:
                raise PipelineError(
                    f"variable {variable.name!r} is used by stages {other} and {stage} "
                    f"({names[other]}, {names[stage]}), but it is on one device: give "
                    "each stage its own, or put the layers that share it into one stage"
                )


def rejected(index: int, values: Any, error: Exception) -> PipelineError:
    """The error of a stage that does not take what the one before it returns."""
    text = ", ".join(
        f"{spec.dtype.name}{list(spec.shape)}" for spec in tf.nest.flatten(values)
    )
    before = f"stage {index - 1} returns" if index else "the micro-batch is"
    return PipelineError(
        f"stage {index} does not take what {before} ({text}): "
        f"{trace_reason_of(error)}; make the outputs of a stage the inputs of the next"
    )


def creates_variable(index: int) -> PipelineError:
    """The error of a stage that makes a variable while it is traced."""
    return PipelineError(
        f"stage {index} creates a variable, which would be on no device of the stage; "
        f"create it outside of the step, with logical_device({index}): call the layer "
        "once, such as stage(tf.zeros(shape)), which also makes those of layers in it"
    )


def check_built(index: int, stage: Any) -> None:
    """Rejects a layer that would make its variables in the trace of a micro-batch."""
    if getattr(stage, "built", True) is False:
        raise PipelineError(
            f"stage {index} ({stage.name}) has no variables yet; make them outside of "
            f"the step, with logical_device({index}): stage.build(input_shape)"
        )


def _has_effects(node: Any) -> bool:
    definition: Any = _tf_compat.op_def(node.op)
    is_stateful = definition is not None and definition.is_stateful
    return bool(is_stateful and node.op not in READ_OPS)


def _with_effects(index: int, op: str, line: str) -> PipelineError:
    where = tracing.shown([line])
    if op.startswith(_WRITES):
        return PipelineError(
            f"stage {index} changes a tf.Variable ({op}{where}), once for each "
            "micro-batch; keep it in a layer of Keras (self.add_weight), which is "
            "updated once from all micro-batches, or change it outside of the stages"
        )
    definition: Any = _tf_compat.op_def(op)
    if any(attr.name == "seed" for attr in definition.attr):
        return PipelineError(
            f"stage {index} draws random numbers by {op}{where}, which would put all "
            "tasks of the pipeline into one order; use keras.random, a layer of Keras, "
            "or tf.random.stateless_ functions"
        )
    return PipelineError(
        f"stage {index} runs {op}{where}, whose effect would put all tasks of the "
        "pipeline into one order; do that outside of the stages"
    )
