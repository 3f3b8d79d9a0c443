"""wrap_optimizer: average gradients over replicas, then update.

What happens to gradients, in this order, whatever the options:

1. they travel (in 16 bits with ``compression``) and are averaged over replicas;
2. they are divided by the loss scale; where a dynamic one finds them not finite, the
   rest is skipped;
3. they are added up until ``accumulation_steps`` of them make an average (where they
   have far to travel, this comes first: see ``replicator.optimizer.accumulation``);
4. rows of sparse gradients that several examples or replicas touched are added up;
5. they are clipped by ``global_clipnorm``;
6. the Keras optimizer clips, decays and updates as it was told to.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.collectives import compression as compression_lib
from replicator.collectives import primitives as collectives
from replicator.errors import OptimizerOptionError
from replicator.optimizer import clipping, fused
from replicator.optimizer.accumulation import Accumulation, when
from replicator.optimizer.keras_spelling import KerasSpelling, check_is_not_wrapped
from replicator.optimizer.loss_scale import LossScale, times
from replicator.optimizer.options import OptimizerOptions
from replicator.optimizer.pairs import check_are_optimized, pairs_of, variables_of
from replicator.optimizer.sparse import sum_duplicates
from replicator.step import context as context_lib
from replicator.step import creation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from replicator.optimizer.sharded_update import ShardedUpdate


_OWN_ATTRIBUTES = frozenset(
    {
        "wrapped",
        "uses_fused_update",
        "options",
        "loss_scale",
        "accumulation",
        "_num_replicas",
        "_is_built",
        "_sharded_update",
        "_is_loss_scaled",
    }
)


class ReplicatedOptimizer(KerasSpelling, _tf_compat.TrackedAsWrapped):
    """A Keras optimizer whose ``apply_gradients`` is replicated.

    Gradients are averaged over replicas exactly once (sum / R), before the wrapped
    optimizer clips or scales them. Everything else (``learning_rate``, ``iterations``,
    ``variables``...) is the wrapped optimizer's. Checkpoints take it for that one,
    wherever it hangs: as an attribute of a ``tf.Module``, in a list, or by itself.

    Attributes:
      wrapped: The Keras optimizer; it owns the state and can be checkpointed.
      uses_fused_update: Whether TensorFlow's fused kernel does the update; None before
        the first ``apply_gradients``.
      options: What ``wrap_optimizer`` was asked for.
      loss_scale: The scale and its counters, or None.
      accumulation: The accumulated gradients, or None.
    """

    def __init__(
        self,
        optimizer: Any,
        *,
        num_replicas: int,
        options: OptimizerOptions | None = None,
        sharded_update: ShardedUpdate | None = None,
        accumulates_per_replica: bool = False,
    ) -> None:
        check_is_not_wrapped(optimizer)
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
        self.options = (options or OptimizerOptions()).check(optimizer)
        scale, steps = self.options.loss_scale, self.options.accumulation_steps
        self.loss_scale = None if scale is None else LossScale(scale)
        self.accumulation = (
            Accumulation(steps, is_per_replica=accumulates_per_replica)
            if steps > 1
            else None
        )
        self._sharded_update = sharded_update
        self._is_built = False
        self._is_loss_scaled = False

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
        """Makes the optimizer's state for ``variables``; optional, run does it.

        The state of options is made after that of the Keras optimizer and belongs to
        it, so one checkpoint of ``wrapped`` has all.

        Raises:
          TypeError: Something else than variables.
        """
        variables = variables_of(variables, "build")
        placing = (
            contextlib.nullcontext()
            if self._sharded_update is None
            else self._sharded_update.building(self.wrapped, variables)
        )
        accumulation = self.accumulation
        with tf.init_scope(), creation.allowed():
            with placing:
                if not self.wrapped.built:
                    self.wrapped.build(variables)
                    self.wrapped.built = True
                if accumulation is not None and not accumulation.is_per_replica:
                    accumulation.build(self.wrapped, variables)
            # Sums of their own are on all replicas, whoever updates.
            if accumulation is not None and accumulation.is_per_replica:
                accumulation.build(self.wrapped, variables)
            if self.loss_scale is not None:
                for variable in self.loss_scale.build():
                    _tf_compat.track_variable(self.wrapped, variable)
        self._is_built = True

    def scale_loss(self, loss: Any) -> Any:
        """Multiplies a loss by the loss scale, before its gradients are taken.

        With ``loss_scale``, every ``apply_gradients`` needs it. Without, this is Keras'
        own ``scale_loss``.

        Args:
          loss: A tensor.

        Returns:
          The scaled loss, in the type of the loss.
        """
        if self.loss_scale is None:
            return self.wrapped.scale_loss(loss)
        self._is_loss_scaled = True
        return self.loss_scale.scaled(loss)

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
          OptimizerOptionError: The loss was not scaled, though ``loss_scale`` is set.
          TypeError: Something else than pairs of gradient and variable.
          ValueError: There is no gradient, or one of another shape than its variable;
            a variable that the optimizer was not built with.
        """
        context_lib.require("apply_gradients")
        self._check_loss_scaled()
        pairs = [(g, v) for g, v in pairs_of(grads_and_vars) if g is not None]
        if not pairs:
            raise ValueError(
                "apply_gradients() got no gradient: every one is None, so no variable "
                "would be trained; check that the loss depends on the variables"
            )
        variables = [variable for _, variable in pairs]
        if not self._is_built:
            self.build(variables)
        self._update([grad for grad, _ in pairs], variables)
        return self.wrapped.iterations

    def _check_loss_scaled(self) -> None:
        """Refuses gradients of a loss that was not scaled in this trace."""
        if self.loss_scale is not None and not self._is_loss_scaled:
            raise OptimizerOptionError(
                f"loss_scale={self.options.loss_scale!r} divides the gradients, but "
                "the loss was not multiplied: take the gradients of "
                "optimizer.scale_loss(loss) in every step, before apply_gradients()"
            )
        self._is_loss_scaled = False

    def _update(self, grads: list[Any], variables: list[Any]) -> None:
        """Averages gradients over replicas and updates; see the top of this file."""
        if self.options.is_plain:
            self._reduce_and_apply(grads, variables)
            return

        def update(final: list[Any]) -> None:
            if self.options.global_clipnorm is not None:
                final = clipping.by_global_norm(final, self.options.global_clipnorm)
            self._apply(final, variables)

        if self.accumulation is not None:
            self._accumulate(grads, variables, update)
            return
        averaged = self._all_reduce(grads, "mean")
        is_finite = None
        if self.loss_scale is not None:
            is_finite = self.loss_scale.are_finite(averaged)
            if is_finite is not None:
                self.loss_scale.observe(is_finite)
            averaged = self.loss_scale.unscaled(averaged)
        when(is_finite, lambda: update(averaged))

    def _accumulate(
        self,
        grads: list[Any],
        variables: list[Any],
        update: Callable[[list[Any]], None],
    ) -> None:
        """Adds gradients up, and averages over replicas before or after."""
        assert self.accumulation is not None
        check_are_optimized(self.wrapped, variables)
        scale, is_per_replica = self.loss_scale, self.accumulation.is_per_replica
        if not is_per_replica:
            grads = self._all_reduce(grads, "mean")
        is_counted = None
        if scale is not None:
            is_counted = scale.are_finite(grads)
            if is_counted is not None and is_per_replica:
                is_counted = collectives.all_min(is_counted)
            grads = scale.unscaled(grads)

        def observe(totals: list[tf.Tensor]) -> tf.Tensor | None:
            if scale is None or is_counted is None:
                return None
            # What travelled in 16 bits may have become infinite on the way.
            is_finite = scale.are_finite(totals) if is_per_replica else is_counted
            scale.observe(tf.logical_and(is_finite, is_counted))
            return is_finite

        self.accumulation.apply(
            grads,
            variables,
            is_counted,
            combine=self._average_sums if is_per_replica else lambda sums, _: sums,
            observe=observe,
            update=update,
        )

    def _average_sums(
        self, sums: list[tf.Tensor], is_due: tf.Tensor
    ) -> list[tf.Tensor]:
        """Averages accumulated gradients over replicas, in calls that update."""
        context = context_lib.require("apply_gradients")
        wire_dtype = compression_lib.check(self.options.compression)
        if wire_dtype != tf.float16:  # the others have the exponents of float32
            return context.all_reduce_if(is_due, sums, "mean", wire_dtype)
        # As large as one call's gradients are, before the loss scale is taken away.
        factor = 1.0 / self.options.accumulation_steps
        if self.loss_scale is not None:
            factor *= self.loss_scale.value
        sent = [times(total, factor) for total in sums]
        averaged = context.all_reduce_if(is_due, sent, "mean", wire_dtype)
        return [times(total, 1.0 / factor) for total in averaged]

    def _all_reduce(self, grads: list[Any], op: str) -> list[Any]:
        compression = self.options.compression
        return list(collectives.all_reduce(grads, op, compression=compression))

    def _apply(self, averaged: list[Any], variables: list[Any]) -> None:
        """Updates by averaged gradients."""
        averaged = list(map(sum_duplicates, averaged))
        # A kernel wants a variable and its state on one device; a branch that updates
        # variables of several owners is emitted on one of them.
        is_split = self._sharded_update is not None and self.options.needs_branch
        fused_update = (
            None if is_split else fused.find(self.wrapped, averaged, variables)
        )
        self.uses_fused_update = fused_update is not None
        if fused_update is None or not fused_update.is_linear:
            check_are_optimized(self.wrapped, variables)
        if fused_update is not None:
            fused_update.apply(averaged, variables, 1)
        else:
            self.wrapped.apply(averaged, variables)

    def _reduce_and_apply(self, grads: list[Any], variables: list[Any]) -> None:
        """The short way without options: kernels that are linear take the sum."""
        fused_update = fused.find(self.wrapped, grads, variables)
        if fused_update is not None and fused_update.is_linear:
            self.uses_fused_update = True
            summed = self._all_reduce(grads, "sum")
            fused_update.apply(summed, variables, self._num_replicas)
            return
        self._apply(self._all_reduce(grads, "mean"), variables)


class _Clips(threading.local):
    def __init__(self) -> None:
        self.found: dict[str, float] = {}


_CLIPS = _Clips()


class StrategyOptimizer(ReplicatedOptimizer):
    """The same contract on the stock path of Keras under ``tf.distribute``.

    Keras sums gradients over the strategy's replicas inside ``apply``, so scaling them
    by 1/R first makes that sum the average: communication happens once, as in stock
    code. Keras clips before it sums; to clip the average, as the contract says, a
    clipping optimizer's gradients are averaged and clipped here.
    """

    def _update(self, grads: list[Any], variables: list[Any]) -> None:
        # Replicas are traced in threads that take turns at collectives, so this is read
        # before the first one: _apply of another thread takes the options away.
        _CLIPS.found = clipping.of_keras(self.wrapped)
        super()._update(grads, variables)

    def _apply(self, averaged: list[Any], variables: list[Any]) -> None:
        optimizer = self.wrapped
        check_are_optimized(optimizer, variables)
        clips = _CLIPS.found
        averaged = clipping.as_keras(averaged, clips)
        scaled = [times(grad, 1.0 / self._num_replicas) for grad in averaged]
        try:
            for name in clips:
                setattr(optimizer, name, None)
            optimizer.apply(scaled, variables)
        finally:
            for name, value in clips.items():
                setattr(optimizer, name, value)

    def _reduce_and_apply(self, grads: list[Any], variables: list[Any]) -> None:
        if _CLIPS.found or self.options.compression is not None:
            self._apply(self._all_reduce(grads, "mean"), variables)
            return
        check_are_optimized(self.wrapped, variables)
        scale = 1.0 / self._num_replicas
        self.wrapped.apply([times(grad, scale) for grad in grads], variables)
