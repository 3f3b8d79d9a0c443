"""Logs of ``fit`` and ``evaluate``: what one device would say after the same batches.

The step of a Keras model returns what metrics say, and anything else. Each replica has
sums of its own, of the examples that it has seen: the mean of what their metrics say is
not what a metric of all would say, once replicas have seen unequal numbers of examples,
or where a metric is no mean at all. So metrics are asked of the sums of all replicas,
and what a step says of its gradients, such as their norm, of the averages. Any other
number is the mean over the examples of the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import handles as _tf_handles
from replicator.collectives import reductions
from replicator.strategy.derived import Derivation
from replicator.variables.kinds import Kind, declared_kind, is_summed

if TYPE_CHECKING:
    from replicator.strategy.gradients import GradientSum


def of_all(model: Any, logs: Any, gradients: GradientSum) -> Any:
    """The logs of a replica as those of all replicas, the same on each.

    Args:
      model: The Keras model whose step is traced.
      logs: What the step returns.
      gradients: What became of its gradients.
    """
    leaves = tf.nest.flatten(logs)
    sums = _sums(model)

    def is_source(tensor: tf.Tensor) -> bool:
        is_read = tensor.op.type == "ReadVariableOp"
        is_sum = is_read and tensor.op.inputs[0].op.name in sums
        return is_sum or tensor.ref() in gradients.means

    own, of_sources = [], []
    for place, leaf in enumerate(leaves):
        if not isinstance(leaf, tf.Tensor):
            continue
        found = Derivation([leaf], is_source)
        if found.sources and not found.has_effects:
            of_sources.append(place)
        elif leaf.dtype.is_floating:
            own.append(place)
    derived = Derivation([leaves[place] for place in of_sources], is_source)
    read = [one for one in derived.sources if one.ref() not in gradients.means]
    totals = iter(reductions.all_sum(read)) if read else iter(())
    joined = [gradients.means.get(one.ref()) for one in derived.sources]
    joined = [next(totals) if one is None else one for one in joined]
    means = gradients.mean([leaves[place] for place in own]) if own else []
    results = [*derived.again(joined), *means]
    for place, result in zip([*of_sources, *own], results, strict=True):
        leaves[place] = result
    return tf.nest.pack_sequence_as(logs, leaves)


def _sums(model: Any) -> set[str]:
    """The names in the step of the variables that metrics sum, in parts of replicas."""
    variables = [
        _tf_compat.unwrap(variable)
        for metric in model.metrics
        for variable in metric.variables
    ]
    handles = {
        id(_tf_handles.of(variable))
        for variable in variables
        if declared_kind(variable) is Kind.LOCAL and is_summed(variable)
    }
    captures = _tf_compat.current_graph().captures
    return {inner.op.name for outer, inner in captures if id(outer) in handles}
