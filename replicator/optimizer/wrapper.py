"""wrap_optimizer: averages gradients over replicas, then updates.

Gradients go through these stages, in this order, for all options:

1. they are averaged over replicas (sent in 16 bits with ``compression``);
2. they are divided by the loss scale; if a dynamic scale finds that they are not
   finite, the rest is skipped;
3. they are accumulated until ``accumulation_steps`` calls make an average (if replicas
   have separate memories, this comes first: see ``replicator.optimizer.stages``);
4. rows of sparse gradients that several examples or replicas touched are summed;
5. they are clipped by ``global_clipnorm``;
6. the Keras optimizer clips, decays and updates according to its own options.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import distribute as _tf_distribute
from replicator._tf.keras_parts import OptimizerProxy
from replicator.catalog import PARAMETERS
from replicator.collectives import reductions
from replicator.core import context, validation
from replicator.core.step import tensor_of
from replicator.core.validation import format_value, listed
from replicator.errors import OptimizerOptionError
from replicator.optimizer import stages
from replicator.optimizer.options import OptimizerOptions

if TYPE_CHECKING:
    from replicator.variables.table import Ownership


def pairs_of(grads_and_vars: Any) -> list[tuple[Any, Any]]:
    said = (
        "apply_gradients() takes pairs of gradient and variable; write "
        "optimizer.apply_gradients(zip(grads, variables)), or "
        "optimizer.apply(grads, variables)"
    )
    pairs = listed(grads_and_vars, said)
    for pair in pairs:
        if not (isinstance(pair, (tuple, list)) and len(pair) == 2):  # noqa: PLR2004
            raise TypeError(f"{said}, but got {format_value(pair)} instead of a pair")
    pairs = [
        (grad if grad is None else _gradient_of(grad, variable), variable)
        for grad, variable in pairs
    ]
    if all(grad is None for grad, _ in pairs):
        raise ValueError(
            "apply_gradients() got no gradient: all of them are None, so no "
            "variable would be trained; check that the loss depends on the "
            "variables"
        )
    return pairs


def check_user(
    optimizer: Any, user: validation.ReplicatorId | None, *, is_portable: bool
) -> None:
    what = f"the wrapped optimizer {type(optimizer.wrapped).__name__!r}"
    remedy = "use what wrap_optimizer() of this one returns"
    validation.check_owner(optimizer, user, what, remedy, is_portable=is_portable)


def check_are_optimized(optimizer: Any, variables: list[Any]) -> None:
    for variable in variables:
        if _tf_compat.slot_index(optimizer, variable) is None:
            raise ValueError(
                f"apply_gradients() got the variable {variable.name!r}, but the "
                "optimizer was built with others and has no state for it; call "
                "optimizer.build(variables) with all of them before the first step, "
                "or create an optimizer for each set of variables"
            )


def _gradient_of(grad: Any, variable: Any) -> Any:
    """Returns the gradient of a variable as a tensor; slices stay slices."""
    if not _tf_compat.is_variable(variable):
        raise TypeError(
            f"apply_gradients() got {format_value(variable)} instead of a variable; "
            "pass tf.Variable or Keras variables, such as model.trainable_variables"
        )
    if not isinstance(grad, tf.IndexedSlices):
        grad = tensor_of(grad, f"the gradient of {variable.name!r} must be a tensor")
    shape, expected = grad.shape, tf.TensorShape(variable.shape)
    if isinstance(grad, tf.IndexedSlices):
        row = tf.convert_to_tensor(grad.values).shape[1:]
        rows = tf.TensorShape([None]).concatenate(row)
        shape = rows.merge_with(shape) if rows.is_compatible_with(shape) else shape
    if not shape.is_compatible_with(expected):
        raise ValueError(
            f"the gradient of {variable.name!r} has shape {shape}, but the "
            f"variable has shape {expected}; pass them in the "
            "same order, such as zip(tape.gradient(loss, variables), variables)"
        )
    return grad


class ReplicatedOptimizer(OptimizerProxy):
    """A Keras optimizer whose ``apply_gradients`` is replicated.

    Every method that updates averages gradients over replicas exactly once (sum / R),
    before the wrapped optimizer clips or scales them, or raises an error. Everything
    else (its class, ``learning_rate``, ``variables``...) is that of the wrapped
    optimizer, and Keras' files and checkpoints save it as that one, wherever it is: in
    ``compile``, an attribute of a ``tf.Module``, in a list, or by itself.

    Attributes:
      wrapped: The Keras optimizer; it owns the state and can be checkpointed.
      uses_fused_update: Whether TensorFlow's fused kernel does the update; None before
        the first ``apply_gradients``.
      options: The options of ``wrap_optimizer``.
      loss_scale: The scale and its counters, or None.
      accumulation: The accumulated gradients, or None.
    """

    def __init__(
        self,
        optimizer: Any,
        *,
        options: OptimizerOptions | None = None,
        ownership: Ownership | None = None,
        accumulates_per_replica: bool = False,
    ) -> None:
        if isinstance(optimizer, ReplicatedOptimizer):
            raise TypeError(
                "wrap_optimizer got an optimizer that is already wrapped, "
                f"{optimizer!r}; use it as it is, or wrap a new Keras optimizer"
            )
        for needed in ("apply", "build", "iterations"):
            if not hasattr(optimizer, needed):
                raise TypeError(
                    f"wrap_optimizer needs a Keras 3 optimizer, but "
                    f"{type(optimizer).__name__!r} has no {needed!r}; pass for "
                    "example keras.optimizers.SGD(0.1, momentum=0.9), or keep "
                    "an optimizer of another kind unwrapped and pass averages to it: "
                    "apply_gradients(zip(replicator.all_mean(grads), variables))"
                )
        self.uses_fused_update: bool | None = None
        self.options = (options or OptimizerOptions()).check(optimizer)
        scale, steps = self.options.loss_scale, self.options.accumulation_steps
        self.loss_scale = None if scale is None else stages.LossScale(scale)
        self.accumulation = (
            stages.Accumulation(steps, is_per_replica=accumulates_per_replica)
            if steps > 1
            else None
        )
        # The state that options add to that of the Keras optimizer.
        self.options_state = stages.OptionsState(self.loss_scale, self.accumulation)
        self._ownership = ownership  # who updates what; None without sharded_update
        self._shards_gradients = ownership is not None and self.options.shards_gradients
        self._is_built = False
        self.owner: validation.ReplicatorId | None = None
        self._is_loss_scaled = False
        self.wrapped = optimizer  # the last: from here on, see __setattr__

    def __dir__(self) -> Iterable[str]:
        # Keras saves what it finds here, and would save `wrapped` a second time.
        names = {*vars(self), *dir(type(self)), *dir(self.wrapped)}
        return sorted(names - {"wrapped"})

    @property
    def built(self) -> bool:
        """Whether all state exists, that of options included; Keras asks."""
        return self._is_built and self.wrapped.built

    def save_own_variables(self, store: Any) -> None:
        """Writes the state of the optimizer inside, as Keras without replicas."""
        for index, variable in enumerate(self._plain_variables()):
            store[str(index)] = variable.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Reads what Keras has saved, with or without replicas."""
        variables = self._plain_variables()
        if len(store.keys()) != len(variables):
            self.wrapped.load_own_variables(store)  # which says that it cannot
            return
        for index, variable in enumerate(variables):
            variable.assign(store[str(index)])

    def _plain_variables(self) -> list[Any]:
        """The state that the optimizer inside would have by itself."""
        ownership = self._ownership
        if ownership is not None and any(
            ownership.is_elsewhere(_tf_compat.unwrap(variable))
            for variable in self.wrapped.variables
        ):
            raise OptimizerOptionError(
                "Keras cannot save or load an optimizer whose state "
                "sharded_update=True keeps in several processes; use "
                "repl.make_checkpoint_manager()"
            )
        own = {id(entry.variable) for entry in self.options_state.entries.values()}
        return [v for v in self.wrapped.variables if id(v) not in own]

    def build(self, variables: Iterable[Any]) -> None:
        """Creates the optimizer's state for ``variables``; optional, ``run`` does it.

        The state of options is created after that of the Keras optimizer and belongs to
        it, so a checkpoint of ``wrapped`` contains everything.

        Raises:
          TypeError: Some are not variables.
        """
        said = "build() takes a list of variables, such as model.trainable_variables"
        variables = listed(variables, said)
        for variable in variables:
            if not _tf_compat.is_variable(variable):
                raise TypeError(f"{said}, but got {format_value(variable)} among them")
        placing = (
            contextlib.nullcontext()
            if self._ownership is None
            else stages.building(
                self._ownership,
                self.wrapped,
                variables,
                shards_parameters=self.options.level == PARAMETERS,
            )
        )
        accumulation = self.accumulation
        own_strategy = _tf_distribute.strategy_of(self.wrapped)
        with tf.init_scope(), context.allowed(), own_strategy:
            with placing:
                if not self.wrapped.built:
                    self.wrapped.build(variables)
                    self.wrapped.built = True
                if accumulation is not None and not accumulation.is_per_replica:
                    accumulation.build(self.wrapped, variables)
            # Per-replica sums are on all replicas, whichever replica updates.
            if accumulation is not None and accumulation.is_per_replica:
                accumulation.build(self.wrapped, variables)
            if self.loss_scale is not None:
                self.loss_scale.build()
                for entry in self.loss_scale.state.values():
                    _tf_compat.track_variable(self.wrapped, entry.variable)
        self._is_built = True

    def scale_loss(self, loss: Any) -> Any:
        """Multiplies a loss by the loss scale, before its gradients are computed.

        With ``loss_scale``, every ``apply_gradients`` needs it. Without, it is Keras'
        own ``scale_loss``.

        Args:
          loss: A tensor.

        Returns:
          The scaled loss, in the type of the loss.
        """
        scale = self.wrapped.scale_loss
        if self.loss_scale is not None:
            self._is_loss_scaled, scale = True, self.loss_scale.scaled
        if (noted := context.held("scales")) is not None:
            noted.append(scale)
        return scale(loss)

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
          OptimizerOptionError: ``loss_scale`` is set, but the loss was not scaled.
          TypeError: Not pairs of gradient and variable.
          ValueError: There is no gradient, or its shape differs from its variable's;
            the optimizer was not built with a variable.
        """
        context.check_in_replica("apply_gradients")
        self.check_owner(context.held("maker"))
        if self.loss_scale is not None and not self._is_loss_scaled:
            raise OptimizerOptionError(
                f"loss_scale={self.options.loss_scale!r} divides the gradients, but "
                "the loss was not multiplied by it; compute the gradients of "
                "optimizer.scale_loss(loss) in every step, before apply_gradients()"
            )
        self._is_loss_scaled = False
        pairs = pairs_of(grads_and_vars)
        given = [pair for pair in pairs if pair[0] is not None]
        if not self._is_built:  # for all: any may get its first gradient later
            self.build([variable for _, variable in pairs])
        grads = [grad for grad, _ in given]
        stages.check_not_clipped(grads)
        grads = context.unscale(grads)
        own_strategy = _tf_distribute.strategy_of(self.wrapped)
        with context.gradients_divided(None), own_strategy:  # summed no more
            self._update(grads, [variable for _, variable in given])
        return self.wrapped.iterations

    @tf.autograph.experimental.do_not_convert  # as Keras' own updates
    def apply(self, grads: Iterable[Any], trainable_variables: Any = None) -> Any:
        """Does what ``apply_gradients`` does, with the interface of Keras 3.

        Args:
          grads: One gradient per variable.
          trainable_variables: The variables; by default those that the optimizer was
            built with.

        Returns:
          The wrapped optimizer's iteration counter.

        Raises:
          CollectiveContextError, OptimizerOptionError: As by ``apply_gradients``.
          TypeError: Pairs, as ``apply_gradients`` takes them.
          ValueError: There is no gradient, or not one per variable.
        """
        context.check_in_replica("apply")
        if trainable_variables is None:
            trainable_variables = _tf_compat.optimized_variables(self.wrapped)
        if trainable_variables is None:
            raise ValueError(
                "apply() got gradients but no variables, and the optimizer was not "
                "built with any; write optimizer.apply(grads, variables)"
            )
        said = "apply() takes a list of gradients and a list of variables"
        grads, variables = listed(grads, said), listed(trainable_variables, said)
        if any(isinstance(grad, tuple) for grad in grads):
            raise TypeError(
                "apply() got pairs of gradient and variable; write "
                "optimizer.apply(grads, variables), or "
                "optimizer.apply_gradients(zip(grads, variables))"
            )
        if len(grads) != len(variables):
            raise ValueError(
                f"apply() got {len(grads)} gradients for {len(variables)} variables; "
                "pass one per variable, in the same order, such as "
                "tape.gradient(loss, variables)"
            )
        return self.apply_gradients(zip(grads, variables, strict=True))

    def stateless_apply(self, *_arguments: Any, **_options: Any) -> Any:
        """Always raises: Keras would update without the gradients of other replicas."""
        raise OptimizerOptionError(
            "stateless_apply() of a wrapped optimizer would skip the average over "
            "replicas; write optimizer.apply(grads, variables) in the step function"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {type(self.wrapped).__name__}>"

    def check_owner(self, user: validation.ReplicatorId | None) -> None:
        """Rejects a replicator whose wrapped optimizers update in another way."""
        # Where they update alike, the number of replicas is that of the step.
        check_user(self, user, is_portable=self._ownership is None)

    def _update(self, grads: list[Any], variables: list[Any]) -> None:
        accumulation, scale = self.accumulation, self.loss_scale
        is_plain = accumulation is None and scale is None
        if is_plain and self.options.global_clipnorm is None:
            self._reduce_and_apply(grads, variables)
            return
        is_per_replica = accumulation is not None and accumulation.is_per_replica
        if not is_per_replica:
            grads = self._all_reduce(grads, "mean", variables)
        is_finite = None
        if scale is not None:
            is_finite = scale.are_finite(grads)
            if is_finite is not None and is_per_replica:
                is_finite = reductions.all_min(is_finite)
            # First: ``observe`` changes the scale that these gradients have.
            grads = scale.unscaled(grads)
        if accumulation is not None:
            self._accumulate(accumulation, grads, variables, is_finite)
            return
        if scale is not None and is_finite is not None:
            scale.observe(is_finite)
        self._update_if(is_finite, lambda: grads, variables)

    def _update_if(
        self,
        condition: tf.Tensor | None,
        averages: Callable[[], list[Any]],
        variables: list[Any],
    ) -> None:
        limit = self.options.global_clipnorm

        def clipped(grads: list[Any]) -> list[Any]:
            return grads if limit is None else stages.clip_by_global_norm(grads, limit)

        if condition is None or not self._shards_gradients:
            stages.when(condition, lambda: self._apply(clipped(averages()), variables))
            return
        averaged = stages.kept_by_owners(averages(), variables)
        averaged = list(map(stages.sum_duplicates, clipped(averaged)))
        fused_update = stages.find_fused(self.wrapped, averaged, variables)
        if fused_update is None:
            raise OptimizerOptionError(
                f"sharded_update={self.options.sharded_update!r} with updates that are "
                "skipped (accumulation_steps, loss_scale='dynamic') needs an update by "
                "kernels (keras.optimizers.SGD or Adam without options such as "
                f"weight_decay), which {type(self.wrapped).__name__} here has not; use "
                "sharded_update='state', or update in every call"
            )
        check_are_optimized(self.wrapped, variables)
        self.uses_fused_update = True
        prepared = fused_update.prepare(1)
        # A branch is one node of the graph, which one owner runs: one for each.
        for group in self._groups(variables):
            grads, mine = ([every[p] for p in group] for every in (averaged, variables))
            update = functools.partial(fused_update.update, grads, mine, prepared)
            stages.when(condition, update)
        stages.when(condition, fused_update.count)

    def _groups(self, variables: list[Any]) -> list[list[int]]:
        """Positions of variables that one branch may change: those of one owner."""
        groups: dict[Any, list[int]] = {}
        for index, variable in enumerate(map(_tf_compat.unwrap, variables)):
            ownership = self._ownership if self._shards_gradients else None
            owner = None if ownership is None else ownership.owner(variable)
            groups.setdefault(owner, []).append(index)
        return list(groups.values())

    def _accumulate(
        self,
        accumulation: stages.Accumulation,
        grads: list[Any],
        variables: list[Any],
        is_counted: tf.Tensor | None,
    ) -> None:
        """Adds gradients up, and updates in calls that make an average."""
        check_are_optimized(self.wrapped, variables)
        scale, groups = self.loss_scale, self._groups(variables)
        sums, count, is_due = accumulation.add(grads, variables, is_counted, groups)
        if accumulation.is_per_replica:
            factor = 1.0 if scale is None else scale.value
            sums = stages.average_sums(
                sums, is_due, options=self.options, factor=factor
            )
        if scale is not None and is_counted is not None:
            is_usable = is_counted
            if accumulation.is_per_replica:
                # Values that were sent in 16 bits may have overflowed to infinity.
                is_usable = tf.logical_and(scale.are_finite(sums), is_counted)
            scale.observe(is_usable)
            is_due = tf.logical_and(is_due, is_usable)

        def averages() -> list[tf.Tensor]:
            share = 1.0 / tf.cast(count, tf.float64)
            return [total * tf.cast(share, total.dtype) for total in sums]

        # Two branches, because sums may differ between replicas, but the update not.
        self._update_if(is_due, averages, variables)
        accumulation.start_over(is_due, count, variables, groups)

    def _all_reduce(self, grads: list[Any], op: str, variables: list[Any]) -> list[Any]:
        compression = self.options.compression
        reduced = list(reductions.all_reduce(grads, op, compression=compression))
        is_kept = self._shards_gradients
        return stages.kept_by_owners(reduced, variables) if is_kept else reduced

    def _reduce_and_apply(self, grads: list[Any], variables: list[Any]) -> None:
        """The fast path without options: kernels that are linear take the sum."""
        fused_update = self._find_fused(grads, variables)
        if fused_update is None or not fused_update.is_linear:
            self._apply(self._all_reduce(grads, "mean", variables), variables)
            return
        self.uses_fused_update = True
        summed = self._all_reduce(grads, "sum", variables)
        count = context.require("apply_gradients").num_replicas_in_sync
        self._apply_fused(fused_update, summed, variables, count)

    def _apply(self, averaged: list[Any], variables: list[Any]) -> None:
        averaged = list(map(stages.sum_duplicates, averaged))
        fused_update = self._find_fused(averaged, variables)
        self.uses_fused_update = fused_update is not None
        if fused_update is None or not fused_update.is_linear:
            check_are_optimized(self.wrapped, variables)
        if fused_update is None:
            self._apply_keras(averaged, variables)
        else:
            self._apply_fused(fused_update, averaged, variables, 1)

    def _find_fused(
        self, grads: list[Any], variables: list[Any]
    ) -> stages.FusedUpdate | None:
        # A kernel needs a variable and its state on one device; a branch that updates
        # variables of several owners is emitted on one of them.
        is_split = self._ownership is not None and self.options.needs_branch
        return None if is_split else stages.find_fused(self.wrapped, grads, variables)

    def _apply_fused(
        self,
        fused_update: stages.FusedUpdate,
        grads: list[Any],
        variables: list[Any],
        num_summed: int,
    ) -> None:
        """Updates by kernels, which take averages or sums of so many gradients."""
        fused_update.update(grads, variables, fused_update.prepare(num_summed))
        fused_update.count()

    def _apply_keras(self, averaged: list[Any], variables: list[Any]) -> None:
        self.wrapped.apply(averaged, variables)


class LocalOptimizer(ReplicatedOptimizer):
    """For measuring controls: the mean is the own gradient, without an operation."""

    def _reduce_and_apply(self, grads: list[Any], variables: list[Any]) -> None:
        self._apply(self._all_reduce(grads, "mean", variables), variables)
