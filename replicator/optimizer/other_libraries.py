"""wrap_optimizer of tf_keras, Sonnet and tf.compat.v1: their update of the average."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from replicator._tf.keras_parts import OptimizerProxy
from replicator.collectives import reductions
from replicator.core import context, validation
from replicator.errors import OptimizerOptionError
from replicator.optimizer import stages, wrapper
from replicator.optimizer.options import CLIPS, OptimizerOptions

# By the name that optimizers and legacy optimizers both know.
_OF_TF_KERAS = {"experimental_aggregate_gradients": False}
# By the class of an optimizer: the options with which it applies averages as they are.
_APPLIES: dict[str, dict[str, Any]] = {
    "tf_keras.src.optimizers.optimizer.Optimizer": _OF_TF_KERAS,
    "tf_keras.src.optimizers.legacy.optimizer_v2.OptimizerV2": _OF_TF_KERAS,
    "sonnet.src.base.Optimizer": {},
    "tensorflow.python.training.optimizer.Optimizer": {},
}


class AveragingOptimizer(OptimizerProxy):
    """An optimizer of another library that averages gradients over replicas first.

    It passes for an instance of the class of the optimizer inside, has its attributes,
    and is saved as that one.
    """

    def __init__(
        self, optimizer: Any, options: OptimizerOptions, applies: dict[str, Any]
    ) -> None:
        options.check(optimizer)
        for name in ("accumulation_steps", "sharded_update", "loss_scale"):
            if options.is_set(name):
                raise OptimizerOptionError(
                    f"{name}={getattr(options, name)!r} works with optimizers of Keras "
                    f"3, but got a {type(optimizer).__name__!r} of "
                    f"{type(optimizer).__module__.partition('.')[0]}; use "
                    f"keras.optimizers, or {name}={getattr(OptimizerOptions(), name)!r}"
                )
        self.options = options  # ``compression`` and ``global_clipnorm``.
        self.owner: validation.ReplicatorId | None = None
        self._applies = applies
        self.wrapped = optimizer  # the optimizer inside; the last: see __setattr__

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[Any, Any]], name: str | None = None
    ) -> Any:
        """Averages the gradients over replicas, and updates as the optimizer inside."""
        del name
        context.check_in_replica("apply_gradients")
        wrapper.check_user(self, context.held("maker"), is_portable=True)
        pairs = wrapper.pairs_of(grads_and_vars)
        given = [pair for pair in pairs if pair[0] is not None]
        grads, variables = map(list, zip(*given, strict=True))
        stages.check_not_clipped(grads)
        averaged = reductions.all_reduce(
            context.unscale(grads), "mean", compression=self.options.compression
        )
        limit = self.options.global_clipnorm
        if limit is not None:
            averaged = stages.clip_by_global_norm(averaged, limit)
        with context.gradients_divided(None):  # summed no more
            if hasattr(self.wrapped, "apply_gradients"):
                averages = zip(averaged, variables, strict=True)
                return self.wrapped.apply_gradients(averages, **self._applies)
            return self.wrapped.apply(averaged, variables)  # of Sonnet

    def apply(self, updates: Iterable[Any], parameters: Iterable[Any]) -> Any:
        """Does what ``apply_gradients`` does, in the spelling of Sonnet."""
        return self.apply_gradients(zip(updates, parameters, strict=True))

    def minimize(self, loss: Any, var_list: Any, tape: Any = None) -> Any:
        """Computes the gradients of a loss, and does what ``apply_gradients`` does."""
        if callable(loss):
            tape = tf.GradientTape()
            with tape:
                loss = loss()
        if tape is None:
            raise TypeError(
                "minimize() got a loss without the tape that has recorded it; write "
                "optimizer.minimize(loss, variables, tape=tape)"
            )
        variables = list(var_list() if callable(var_list) else var_list)
        return self.apply_gradients(
            zip(tape.gradient(loss, variables), variables, strict=True)
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {type(self.wrapped).__name__}>"


def wrapped(optimizer: Any, options: OptimizerOptions) -> Any:
    """Wraps an optimizer of tf_keras, Sonnet or ``tf.compat.v1``; None for others."""
    if type(optimizer) is AveragingOptimizer:
        raise TypeError(
            f"wrap_optimizer got an optimizer that is already wrapped, {optimizer!r}; "
            "use it as it is"
        )
    kinds = (f"{kind.__module__}.{kind.__name__}" for kind in type(optimizer).__mro__)
    applies = next((_APPLIES[kind] for kind in kinds if kind in _APPLIES), None)
    return None if applies is None else AveragingOptimizer(optimizer, options, applies)


class StrategyOptimizer(wrapper.ReplicatedOptimizer):
    """The same contract on the stock path of Keras under ``tf.distribute``.

    Keras sums gradients over the strategy's replicas inside ``apply``, so scaling them
    by 1/R first makes that sum the average: communication happens once, as in stock
    code. Keras clips before it sums; to clip the average, as the contract says, a
    clipping optimizer's gradients are averaged and clipped here.
    """

    def _update(self, grads: list[Any], variables: list[Any]) -> None:
        # Replicas are traced in threads that take turns at collectives. This is read
        # before the first one, because _apply of another thread unsets the options.
        limits = ((name, getattr(self.wrapped, name, None)) for name in CLIPS)
        clips = {name: limit for name, limit in limits if limit}
        with context.holding("clips", clips):
            super()._update(grads, variables)

    def _apply(self, grads: list[Any], variables: list[Any]) -> None:
        optimizer = self.wrapped
        wrapper.check_are_optimized(optimizer, variables)
        clips = context.held("clips")
        if "clipnorm" in clips:
            grads = [tf.clip_by_norm(grad, clips["clipnorm"]) for grad in grads]
        elif "global_clipnorm" in clips:
            grads, _ = tf.clip_by_global_norm(grads, clips["global_clipnorm"])
        elif "clipvalue" in clips:
            limit = clips["clipvalue"]
            grads = [tf.clip_by_value(grad, -limit, limit) for grad in grads]
        count = context.require("apply_gradients").num_replicas_in_sync
        scaled = [stages.scaled_gradient(grad, 1.0 / count) for grad in grads]
        try:
            for name in clips:
                setattr(optimizer, name, None)
            optimizer.apply(scaled, variables)
        finally:
            for name, value in clips.items():
                setattr(optimizer, name, value)

    def _reduce_and_apply(self, grads: list[Any], variables: list[Any]) -> None:
        if context.held("clips") or self.options.compression is not None:
            grads = self._all_reduce(grads, "mean", variables)
        self._apply(grads, variables)
