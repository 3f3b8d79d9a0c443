"""Stages: one part of a model, traced once for a micro-batch and called for each.

TensorFlow makes the backward function of a traced function, with what it needs of the
forward pass as outputs of the forward call. So a task is one node of the step's graph,
and the graph has M x K x 2 of them, however large the stages are.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import distribute as _tf_distribute
from replicator._tf import stage_losses, stage_seeds
from replicator._tf.messages import trace_reason_of
from replicator._tf.stage_seeds import StageSeeds
from replicator.errors import (
    CollectiveControlFlowError,
    CreateVariableInStepError,
    PipelineError,
    ReplicatorError,
)
from replicator.optimizer import loss_scale
from replicator.pipeline import checks
from replicator.pipeline import updates as updates_lib
from replicator.step.logical import FUNCTION_PREFIX
from replicator.validation.arguments import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_KERAS_CREATES = "attempting to create a variable"


class Stage:
    """One stage in the trace of one step.

    Attributes:
      index: Its place in the pipeline, and its logical device.
      variables: What it trains, as ``tf.Variable``. Of Keras' flag of a layer, and not
        that of the ``tf.Variable``, depends what that is.
      casts: Variables that it reads in another type, as mixed precision does.
      updated: Variables of Keras that it assigns, such as averages of batch norm.
      scales: Functions that have scaled the loss.
    """

    def __init__(
        self,
        index: int,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        *,
        recompute: bool,
        loss_fn: Callable[..., Any] | None = None,
    ) -> None:
        """Traces the stage."""
        self.index = index
        self.updated: list[Any] = []
        self.casts: dict[tuple[int, str], Any] = {}
        self.scales: list[Any] = []
        self._read: dict[int, Any] = {}
        self._layer = layer_of(function)
        self._function = _tf_distribute.converted_inside(function)
        self._loss_fn = loss_fn and _tf_distribute.converted_inside(loss_fn)
        self._recompute = recompute
        self._specs = tf.nest.map_structure(_spec, list(arguments))
        seeds = StageSeeds()
        self._forward = self._trace(seeds)
        self.generators = seeds.generators
        self.variables = self._trained(self._forward.graph.variables)
        if self.generators or self.casts:  # again: these are arguments now
            self._forward = self._trace(self.generators)
        checks.check_stage(index, self._forward)
        self._backward: Any = None
        self._weights: list[tf.Tensor] = []

    def cast_weights(self) -> None:
        """Casts what is read in another type, once for all micro-batches of a step."""
        self._weights = [
            tf.cast(_tf_compat.unwrap(variable), wanted)
            for (_, wanted), variable in self.casts.items()
        ]

    def draw_seeds(self) -> list[tf.Tensor]:
        """Draws what one micro-batch needs, in the step and not in the stage."""
        return [generator.next() for generator in self.generators]

    def forward(self, arguments: Sequence[Any], seeds: Sequence[Any]) -> Pass:
        """Emits the forward pass of one micro-batch."""
        flat = floating(arguments)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            if not self._recompute:
                tape.watch([*flat, *self._weights, *self.variables])
            outputs, updates = self._forward(
                list(arguments), list(seeds), self._weights
            )
        return Pass(tape, flat, outputs, updates, arguments, seeds)

    def backward(
        self, made: Pass, gradients: Sequence[Any] | None
    ) -> tuple[list[Any], list[Any]]:
        """Emits the backward pass of one micro-batch."""
        if self._recompute:
            return self._recomputed(made, gradients)
        outputs = floating(made.outputs)
        sources = [*made.sources, *self.variables, *self._weights]
        found = _gradients(made.tape, outputs, sources, gradients)
        return found[: len(made.sources)], found[len(made.sources) :]

    def _recomputed(
        self, made: Pass, gradients: Sequence[Any] | None
    ) -> tuple[list[Any], list[Any]]:
        outputs = floating(made.outputs)
        given = [
            tf.zeros_like(output) if one is None else one
            for output, one in zip(outputs, gradients or [], strict=True)
        ]
        if self._backward is None:
            self._backward = self._trace_backward(given)
        found = self._backward(
            list(made.arguments), list(made.seeds), self._weights, given
        )
        return found[: len(made.sources)], found[len(made.sources) :]

    def _trace(self, seeds: Any) -> Any:
        """Traces the forward pass; draws are recorded, or given as arguments."""
        is_first = isinstance(seeds, StageSeeds)

        def run(arguments: list[Any], given: list[Any], weights: list[Any]) -> Any:
            # What calls the function says where it runs.
            used = seeds if is_first else StageSeeds(given)
            read = updates_lib.noted(dict(zip(self.casts, weights, strict=True)))
            with tf.device(None), used.installed(), read as updates:
                outputs = self._outputs(arguments)
            if updates.refused:
                raise PipelineError(f"stage {self.index} {updates.refused[0]}")
            self.updated, self._read = updates.variables, updates.read
            if is_first:
                first_casts.update(updates.casts)
            return outputs, [tf.convert_to_tensor(x) for x in updates.values]

        run.__name__ = f"{FUNCTION_PREFIX}_{self.index}"
        first_casts: dict[tuple[int, str], Any] = {}
        specs = [] if is_first else list(map(stage_seeds.spec, seeds))
        try:
            made = _to_function(run, self._specs, specs, self._weight_specs())
        except CollectiveControlFlowError as error:
            name = trace_reason_of(error).partition(" ")[0]
            raise PipelineError(
                f"stage {self.index} calls {name}, or an optimizer that does, but a "
                "stage works on one micro-batch of one replica, at a time of its own; "
                "communicate, and apply gradients, before or after the pipeline"
            ) from None
        except CreateVariableInStepError:
            raise checks.creates_variable(self.index) from None
        except ReplicatorError:
            raise
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            if _KERAS_CREATES in str(error):
                raise checks.creates_variable(self.index) from None
            raise checks.rejected(self.index, self._specs[0][0], error) from error
        self.casts = self.casts or first_casts
        return made

    def _outputs(self, arguments: list[Any]) -> Any:
        """What the stage returns, with its masks; of the last one, a list with a loss.

        The loss may make what an optimizer needs, such as a scale of the loss. One that
        is a mean over what is valid comes with the share of what is.
        """
        outputs = self._function(updates_lib.masked(arguments[0]))
        if self._loss_fn is None:
            return updates_lib.with_masks(outputs)
        with stage_losses.noted() as means, loss_scale.noted() as self.scales:
            loss: Any = tf.convert_to_tensor(self._loss_fn(outputs, arguments[1]))
        if loss.shape.rank != 0 or not loss.dtype.is_floating:
            raise PipelineError(
                f"loss_fn returned {shown(loss)}, but the loss of a micro-batch is a "
                "floating-point scalar; return the mean over its examples"
            )
        if not means:
            return [loss]
        if len(means) > 1 or not stage_losses.is_multiple(loss, means[0][0]):
            raise PipelineError(
                "loss_fn adds to a loss of Keras that is a mean over what a mask or "
                "sample weights leave valid, which is another share of each "
                "micro-batch; return that loss alone, or create it with reduction=None "
                "and return the mean of what it returns"
            )
        return [loss, means[0][1]]

    def _trained(self, variables: Sequence[Any]) -> list[Any]:
        """Those of variables that Keras, or the stage, does not keep as they are."""
        held = {id(_tf_compat.unwrap(v)) for v in getattr(self._layer, "variables", ())}
        trained = {id(_tf_compat.unwrap(v)) for v in self.held()}
        return [
            variable
            for variable in variables
            if self._read.get(id(variable), variable).trainable
            and (id(variable) in trained or id(variable) not in held)
        ]

    def held(self) -> list[Any]:
        """What a layer or a module trains, whether the stage uses it or not."""
        return list(getattr(self._layer, "trainable_variables", ()))

    def named(self, variable: Any) -> Any:
        """The object by which the user holds a variable, such as that of Keras."""
        held = {id(_tf_compat.unwrap(v)): v for v in self.held()}
        return (self._read | held).get(id(variable), variable)

    def _weight_specs(self) -> list[tf.TensorSpec]:
        return [
            tf.TensorSpec(_tf_compat.unwrap(variable).shape, wanted)
            for (_, wanted), variable in self.casts.items()
        ]

    def _trace_backward(self, gradients: Sequence[Any]) -> Any:
        def run(
            arguments: list[Any],
            seeds: list[Any],
            weights: list[Any],
            given: list[Any],
        ) -> Any:
            read = updates_lib.noted(dict(zip(self.casts, weights, strict=True)))
            of = [*floating(arguments), *self.variables, *weights]
            with tf.device(None), tf.GradientTape() as tape:
                tape.watch(of)
                with StageSeeds(seeds).installed(), read:
                    outputs = floating(self._outputs(arguments))
            with tf.device(None):
                found = _gradients(tape, outputs, of, given)
                return list(map(dense, found))

        run.__name__ = f"{FUNCTION_PREFIX}_{self.index}_again"
        seeds = list(map(stage_seeds.spec, self.generators))
        return _to_function(
            run,
            self._specs,
            seeds,
            self._weight_specs(),
            tf.nest.map_structure(_spec, list(gradients)),
        )


class Pass:
    """A forward pass, kept until its backward pass has been emitted."""

    def __init__(
        self,
        tape: Any,
        sources: Any,
        outputs: Any,
        updates: Any,
        arguments: Any,
        seeds: Any,
    ) -> None:
        self.tape = tape
        self.sources = sources
        self.outputs = outputs
        self.updates = updates
        self.arguments = arguments
        self.seeds = seeds


def _to_function(run: Callable[..., Any], *specs: Any) -> Any:
    # Calls stay calls until the engine has optimized the function, once for all of them
    # and all replicas; it takes the attribute away then, and inlines.
    traced = tf.function(
        run, autograph=False, experimental_attributes={"_noinline": True}
    )
    return traced.get_concrete_function(*specs)


def _spec(tensor: Any) -> tf.TensorSpec:
    return tf.TensorSpec(tensor.shape, tensor.dtype)


def floating(nest: Any) -> list[tf.Tensor]:
    """The tensors of a nest that have gradients."""
    return [tensor for tensor in tf.nest.flatten(nest) if tensor.dtype.is_floating]


def dense(gradient: Any) -> Any:
    """A gradient as a tensor: sums of many micro-batches are not sparse."""
    return None if gradient is None else tf.convert_to_tensor(gradient)


def _gradients(tape: Any, outputs: Any, sources: Any, given: Any) -> list[Any]:
    """Gradients of those outputs that have one: None would count as ones."""
    if given is not None:
        pairs = [(o, g) for o, g in zip(outputs, given, strict=True) if g is not None]
        outputs, given = [o for o, _ in pairs], [g for _, g in pairs]
    found = tape.gradient(outputs, sources, output_gradients=given)
    return list(found)


def operations(tensors: Any) -> list[Any]:
    """The operations that made tensors, each once."""
    found = {}
    for tensor in tf.nest.flatten(tensors):
        if tensor is not None:
            values = getattr(tensor, "values", tensor)
            found[values.op.name] = values.op
    return list(found.values())


def layer_of(stage: Any) -> Any:
    """The layer of a stage, also in ``functools.partial(layer, training=True)``."""
    while isinstance(stage, functools.partial):
        stage = stage.func
    return stage
