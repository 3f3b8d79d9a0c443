"""The sums of gradients that optimizers ask of ``tf.distribute``.

In a step of ``repl.run`` they are left as they are: ``wrap_optimizer`` has averaged
them. In a step of ``strategy.run`` they are summed, since losses were divided by the
number of replicas. In the step of a Keras model nothing divides losses, whether Keras
computes them or the step does, and gradients are averaged. A replica counts by its
examples there, so that the last, partial batch of an epoch is one like all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.collectives import reductions
from replicator.errors import StrategyError
from replicator.optimizer.gradients import times
from replicator.optimizer.wrapper import ReplicatedOptimizer
from replicator.step import context as context_lib

if TYPE_CHECKING:
    from collections.abc import Callable

_CLIPPING = ("clipnorm", "global_clipnorm", "clipvalue")
_LIBRARIES = ("keras", "tf_keras")


class GradientSum:
    """What becomes of the sums of gradients in one step."""

    def __init__(
        self,
        num_replicas: int = 1,
        *,
        is_of_model: bool = False,
        num_examples: tf.Tensor | None = None,
    ) -> None:
        """Prepares.

        Args:
          num_replicas: Those that the optimizer joins; 1 in steps of ``repl.run``.
          is_of_model: Whether the step is that of a Keras model.
          num_examples: Those of this replica, a scalar, if they weigh its gradients.
        """
        self._num_replicas = num_replicas
        self._is_of_model = is_of_model
        self._num_examples = num_examples
        self._weight: tf.Tensor | None = None

    @property
    def divisor(self) -> int:
        """By what losses are to be divided."""
        return 1 if self._is_of_model else self._num_replicas

    def of(self, grads: Any, optimizer: Any = None) -> Any:
        """Joins gradients over replicas, for an optimizer.

        Raises:
          StrategyError: The result would not be the gradient of one device.
        """
        if not context_lib.are_gradients_divided() or self._num_replicas == 1:
            return grads
        _check_does_not_clip(optimizer)
        if self._is_of_model:
            return reductions.all_mean(self._weighted(grads))
        return reductions.all_sum(grads)

    def mean(self, value: tf.Tensor) -> tf.Tensor:
        """The mean over all examples of what is one over those of each replica."""
        return reductions.all_mean(self._weighted([value])[0])

    def of_scaler(self, grads: Any, scaler: Any) -> Any:
        """Sums gradients before Keras' ``LossScaleOptimizer`` asks if they are finite.

        Raises:
          StrategyError: The optimizer inside would average in a branch.
        """
        inner = scaler.inner_optimizer
        if isinstance(inner, ReplicatedOptimizer):
            kind = type(inner.wrapped).__name__
            raise StrategyError(
                f"compile() put a wrapped {kind} into Keras' LossScaleOptimizer, as "
                "the model computes in float16; write compile(repl.wrap_optimizer("
                f'{kind}(...), loss_scale="dynamic"), ..., auto_scale_loss=False)'
            )
        given = [grad for grad in grads if grad is not None]
        rest = iter(self.of(given, inner))
        return [None if grad is None else next(rest) for grad in grads]

    def undivided(self, grads: list[Any]) -> list[Any]:
        """Multiplies gradients, so that their mean is the sum; see ``of``."""
        grads = self._weighted(grads)
        factor = self.divisor
        return grads if factor == 1 else [times(grad, factor) for grad in grads]

    def of_merge(self, merge_fn: Callable[..., Any]) -> Callable[[Any], Any]:
        """How a function that ``merge_call`` runs sums over replicas."""
        owner = getattr(merge_fn, "__self__", None)
        library = str(getattr(merge_fn, "__module__", "")).partition(".")[0]
        is_optimizer = isinstance(owner, tf.compat.v1.train.Optimizer)
        return self.of if is_optimizer or library in _LIBRARIES else reductions.all_sum

    def weight(self) -> tf.Tensor | None:
        """By what gradients of this replica are multiplied; None if by 1 on all.

        Gradients that pass collectives of the model meet those of other replicas, which
        have weights of their own.
        """
        if self._num_examples is None or self._num_replicas == 1:
            return None
        if self._weight is None:
            own = tf.cast(self._num_examples, tf.float32)
            total = reductions.all_sum(own)
            # Exactly 1 where all have as many.
            whole = own * float(self._num_replicas)
            self._weight = tf.math.divide_no_nan(whole, total)
        return self._weight

    def _weighted(self, grads: Any) -> Any:
        """Gradients of replicas that count by their examples.

        Of a replica that has none, a mean is not a number, and counts nothing.
        """
        weight = self.weight()
        if weight is None:
            return grads
        return [_counted(grad, weight) for grad in grads]


def _counted(grad: Any, weight: tf.Tensor) -> Any:
    """A gradient times a weight; a mean over no examples, no number, is not counted."""
    if isinstance(grad, tf.IndexedSlices):
        values = _counted(grad.values, weight)
        return tf.IndexedSlices(values, grad.indices, grad.dense_shape)
    return tf.math.multiply_no_nan(grad, tf.cast(weight, grad.dtype))


def _check_does_not_clip(optimizer: Any) -> None:
    clips = [name for name in _CLIPPING if getattr(optimizer, name, None)]
    if clips:
        kind = type(optimizer).__name__
        raise StrategyError(
            f"{kind}({clips[0]}={getattr(optimizer, clips[0])!r}) clips the "
            "gradient of each replica before they are joined, so an update is not "
            f"that of one device; write repl.wrap_optimizer({kind}(...)), which "
            "averages first"
        )
