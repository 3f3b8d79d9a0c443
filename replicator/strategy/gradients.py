"""The sums of gradients that optimizers ask of ``tf.distribute``.

In a step of ``repl.run`` they are left as they are: ``wrap_optimizer`` has averaged
them. In a step of ``strategy.run`` they are summed, since losses were divided by the
number of replicas. In the training step of a Keras model, a replica counts by its
examples, so that the last, partial batch of an epoch is one like all others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.collectives import reductions
from replicator.errors import StrategyError
from replicator.optimizer.gradients import times
from replicator.optimizer.wrapper import ReplicatedOptimizer
from replicator.step import context as context_lib
from replicator.validation.user_functions import name_of

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
        trainer_step: Callable[..., Any] | None = None,
        num_examples: tf.Tensor | None = None,
    ) -> None:
        """Prepares.

        Args:
          num_replicas: By what losses are divided; 1 in steps of ``repl.run``.
          trainer_step: The training step of a Keras model, if that is what runs.
          num_examples: Those of this replica, a scalar, if they weigh its gradients.
        """
        self._trainer_step = trainer_step
        self._num_replicas = num_replicas
        self._num_examples = num_examples
        self._is_divided = trainer_step is None
        self._weight: tf.Tensor | None = None

    def note_scaling(self) -> None:
        """Notes that the step has asked for the number of replicas.

        Keras does when it divides a loss. In the step of a Keras model that never asks,
        no loss is divided.
        """
        self._is_divided = True

    def of(self, grads: Any, optimizer: Any = None) -> Any:
        """Sums gradients over replicas, for an optimizer.

        Raises:
          StrategyError: The sum would not be the gradient of one device.
        """
        if not context_lib.are_gradients_divided() or self._num_replicas == 1:
            return grads
        self._check(optimizer)
        return reductions.all_sum(self._weighted(grads))

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
        factor = self._num_replicas if self._is_divided else 1
        grads = self._weighted(grads)
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
        """Gradients of replicas that count by their examples."""
        weight = self.weight()
        if weight is None:
            return grads
        return [times(grad, weight) for grad in grads]

    def _check(self, optimizer: Any) -> None:
        clips = [name for name in _CLIPPING if getattr(optimizer, name, None)]
        kind = type(optimizer).__name__
        if clips:
            raise StrategyError(
                f"{kind}({clips[0]}={getattr(optimizer, clips[0])!r}) clips the "
                "gradient of each replica before their sum, so an update is not that "
                f"of one device; write repl.wrap_optimizer({kind}(...)), which "
                "averages first"
            )
        if not self._is_divided:
            assert self._trainer_step is not None
            model = getattr(self._trainer_step, "__self__", None)
            kind = type(getattr(model, "optimizer", optimizer)).__name__
            raise StrategyError(
                f"{place_of(self._trainer_step)} computes a loss that is not divided "
                f"by the number of replicas, {self._num_replicas}, and {kind} sums "
                "over them; use self.compute_loss() or a keras.losses.Loss, write "
                "loss / tf.distribute.get_strategy().num_replicas_in_sync, or "
                f"repl.wrap_optimizer({kind}(...)), which averages"
            )


def place_of(function: Callable[..., Any]) -> str:
    """The name, file and line of a function, for messages."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
    return f"{name_of(function)}{where}"
