"""wrap_optimizer: average gradients over replicas, then update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator import collectives, creation, fused
from replicator import context as context_lib

if TYPE_CHECKING:
    from collections.abc import Iterable


_OWN_ATTRIBUTES = frozenset({"wrapped", "uses_fused_update", "_num_replicas"})


class ReplicatedOptimizer:
    """A Keras optimizer whose ``apply_gradients`` is replicated.

    Gradients are averaged over replicas exactly once (sum / R), before the wrapped
    optimizer clips or scales them. Everything else (``learning_rate``, ``iterations``,
    ``variables``...) is the wrapped optimizer's.

    Attributes:
      wrapped: The Keras optimizer; it owns the state and can be checkpointed.
      uses_fused_update: Whether TensorFlow's fused kernel does the update; None before
        the first ``apply_gradients``.
    """

    def __init__(self, optimizer: Any, *, num_replicas: int) -> None:
        for needed in ("apply", "build", "iterations"):
            if not hasattr(optimizer, needed):
                raise TypeError(
                    f"wrap_optimizer needs a Keras 3 optimizer, but "
                    f"{type(optimizer).__name__!r} has no {needed!r}; pass for "
                    "example keras.optimizers.SGD(0.1, momentum=0.9)"
                )
        self.wrapped = optimizer
        self.uses_fused_update: bool | None = None
        self._num_replicas = num_replicas

    def __getattr__(self, name: str) -> Any:
        if name == "wrapped":  # not yet set while unpickling or copying
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    def __setattr__(self, name: str, value: Any) -> None:
        # `optimizer.learning_rate = 0.01` must reach the optimizer that does the work.
        if name in _OWN_ATTRIBUTES:
            object.__setattr__(self, name, value)
        else:
            setattr(self.wrapped, name, value)

    def build(self, variables: Iterable[Any]) -> None:
        """Makes the optimizer's state for ``variables``; optional, run does it."""
        self.wrapped.build(list(variables))
        self.wrapped.built = True

    @tf.autograph.experimental.do_not_convert  # as Keras' own updates
    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Any:
        """Averages the gradients over replicas and updates the variables.

        Call it in replica context (inside a step function).

        Args:
          grads_and_vars: Pairs of gradient (dense, ``tf.IndexedSlices`` or None) and
            variable.

        Returns:
          The wrapped optimizer's iteration counter.

        Raises:
          CollectiveContextError: Called outside a step function.
        """
        context_lib.require("apply_gradients")
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        if not pairs:
            raise ValueError(
                "apply_gradients() got no gradient: every one is None, so no variable "
                "would be trained; check that the loss depends on the variables"
            )
        variables = [variable for _, variable in pairs]
        if not self.wrapped.built:
            with tf.init_scope(), creation.allowed():
                self.build(variables)
        self._update([grad for grad, _ in pairs], variables)
        return self.wrapped.iterations

    def _update(self, grads: list[Any], variables: list[Any]) -> None:
        fused_update = fused.find(self.wrapped, grads, variables)
        self.uses_fused_update = fused_update is not None
        if fused_update is not None and fused_update.is_linear:
            summed = list(collectives.all_sum(grads))
            fused_update.apply(summed, variables, self._num_replicas)
            return
        averaged = list(collectives.all_mean(grads))
        if fused_update is not None:
            fused_update.apply(averaged, variables, 1)
        else:
            self.wrapped.apply(averaged, variables)


class StrategyOptimizer(ReplicatedOptimizer):
    """The same contract on the stock path of Keras under ``tf.distribute``.

    Keras sums gradients over the strategy's replicas inside ``apply``, so scaling them
    by 1/R first makes that sum the average: communication happens once, as in stock
    code. Keras clips before it sums; to clip the average, as the contract says, a
    clipping optimizer's gradients are averaged and clipped here.
    """

    def _update(self, grads: list[Any], variables: list[Any]) -> None:
        optimizer = self.wrapped
        clips = {n: getattr(optimizer, n) for n in _CLIPS if getattr(optimizer, n)}
        if clips:
            grads = _clip(list(collectives.all_mean(grads)), clips)
        scale = 1.0 / self._num_replicas
        scaled = [_scale(grad, scale) for grad in grads]
        try:
            for name in clips:
                setattr(optimizer, name, None)
            optimizer.apply(scaled, variables)
        finally:
            for name, value in clips.items():
                setattr(optimizer, name, value)


_CLIPS = ("clipnorm", "clipvalue", "global_clipnorm")


def _clip(grads: list[Any], clips: dict[str, float]) -> list[Any]:
    if "clipnorm" in clips:
        return [tf.clip_by_norm(grad, clips["clipnorm"]) for grad in grads]
    if "global_clipnorm" in clips:
        return list(tf.clip_by_global_norm(grads, clips["global_clipnorm"])[0])
    return [
        tf.clip_by_value(grad, -clips["clipvalue"], clips["clipvalue"])
        for grad in grads
    ]


def _scale(grad: Any, scale: float) -> Any:
    if isinstance(grad, tf.IndexedSlices):
        values = grad.values * tf.cast(scale, grad.values.dtype)
        return tf.IndexedSlices(values, grad.indices, grad.dense_shape)
    return grad * tf.cast(scale, grad.dtype)
