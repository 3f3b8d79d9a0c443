"""Logs of ``fit`` and ``evaluate``: what one device would say after the same batches.

The step of a Keras model returns what metrics say, and anything else. Each replica has
sums of its own, of the examples that it has seen: the mean of what their metrics say is
not what a metric of all would say, once replicas have seen unequal numbers of examples,
or where a metric is no mean at all. So metrics are asked of the sums of all replicas,
and what a step says of its gradients, such as their norm, of the averages. Any other
number is made of the whole batch, or is the mean over its examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.collectives import reductions
from replicator.strategy.derived import Derivation

if TYPE_CHECKING:
    from replicator.strategy.gradients import GradientSum
    from replicator.strategy.metrics import MetricUpdates
    from replicator.strategy.whole_batch import WholeBatch


def of_all(
    logs: Any, gradients: GradientSum, updates: MetricUpdates, whole: WholeBatch
) -> Any:
    """The logs of a replica as those of all replicas, the same on each.

    Args:
      logs: What the step of a Keras model returns.
      gradients: What became of its gradients.
      updates: What it has added to metrics.
      whole: What all replicas make of numbers.
    """
    leaves = [*map(_value, tf.nest.flatten(logs))]

    def is_source(tensor: tf.Tensor) -> bool:
        is_read = tensor.op.type == "ReadVariableOp"
        is_sum = is_read and tensor.op.inputs[0].op.name in updates.names
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
    changes = [updates.change(one) for one in read]
    parts = [
        one if by is None else one + by for one, by in zip(read, changes, strict=True)
    ]
    totals = iter(reductions.all_sum(parts)) if parts else iter(())
    joined = [gradients.means.get(one.ref()) for one in derived.sources]
    joined = [next(totals) if one is None else one for one in joined]
    made = whole.again([leaves[place] for place in own])
    rest = [leaves[place] for place, one in zip(own, made, strict=True) if one is None]
    means = iter(gradients.mean(rest) if rest else ())
    results = derived.again(joined)
    results += [next(means) if one is None else one for one in made]
    for place, result in zip([*of_sources, *own], results, strict=True):
        leaves[place] = result
    return tf.nest.pack_sequence_as(logs, leaves)


def _value(leaf: Any) -> Any:
    """The value of a variable, which a metric may return as it is."""
    inner = _tf_compat.unwrap(leaf)
    return tf.convert_to_tensor(inner) if isinstance(inner, tf.Variable) else leaf
