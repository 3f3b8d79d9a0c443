"""Stages: one part of a model, traced once for a micro-batch and called for each.

TensorFlow makes the backward function of a traced function, with what it needs of the
forward pass as outputs of the forward call. So a task is one node of the step's graph,
and the graph has M x K x 2 of them, however large the stages are.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from replicator import errors
from replicator._tf import compat as _tf_compat
from replicator._tf import distribute as _tf_distribute
from replicator._tf import keras_parts
from replicator._tf.workers import trace_reason_of
from replicator.core import step
from replicator.core.context import FUNCTION_PREFIX, TASK_NAME, holding, task_name
from replicator.core.validation import format_value
from replicator.engine.dataflow import READ_OPS, Origins

if TYPE_CHECKING:
    from replicator.pipeline.pipeline import Task


_WRITES = ("Assign", "ResourceApply", "ResourceScatter", "ResourceSparseApply")
_CALLS = frozenset(
    {"Case", "If", "PartitionedCall", "Placeholder", "StatefulPartitionedCall", "While"}
)


def check_stage(index: int, concrete: Any) -> None:
    """Rejects a stage with effects, or that reads tensors of the step around it."""
    # In a traced step TensorFlow puts all that has effects into one order, so that one
    # such operation in a stage would make the pipeline wait for every task of all
    # others.
    graph = concrete.graph
    for outer, inner in graph.captures:
        if outer.dtype != tf.resource and hasattr(outer, "graph"):
            uses = inner.consumers()
            where = step.at_lines([step.line_of(uses[0].traceback)]) if uses else ""
            raise errors.PipelineError(
                f"stage {index} uses{where} a tensor of the step around it, whose "
                "gradient would be lost; pass it through the stages, from the batch on"
            )
    own = ((operation.type, operation) for operation in graph.get_operations())
    functions = graph.as_graph_def().library.function
    called = ((node.op, None) for function in functions for node in function.node_def)
    for op, made in itertools.chain(own, called):
        definition: Any = _tf_compat.op_def(op)
        is_stateful = definition is not None and definition.is_stateful
        if is_stateful and op not in _CALLS | READ_OPS:
            line = step.line_of(getattr(made, "traceback", None))
            raise _with_effects(index, op, step.at_lines([line]))


def creates_variable(index: int) -> errors.PipelineError:
    return errors.PipelineError(
        f"stage {index} creates a variable, which would be on no device of the stage; "
        f"create it outside of the step, with logical_device({index}): call the layer "
        "once, such as stage(tf.zeros(shape)), which also makes those of layers in it"
    )


def _with_effects(index: int, op: str, where: str) -> errors.PipelineError:
    if op.startswith(_WRITES):
        return errors.PipelineError(
            f"stage {index} changes a tf.Variable ({op}{where}), once for each "
            "micro-batch; keep it in a layer of Keras (self.add_weight), which is "
            "updated once from all micro-batches, or change it outside of the stages"
        )
    definition: Any = _tf_compat.op_def(op)
    if any(attr.name == "seed" for attr in definition.attr):
        return errors.PipelineError(
            f"stage {index} draws random numbers by {op}{where}, which would put all "
            "tasks of the pipeline into one order; use keras.random, a layer of Keras, "
            "or tf.random.stateless_ functions"
        )
    return errors.PipelineError(
        f"stage {index} runs {op}{where}, whose effect would put all tasks of the "
        "pipeline into one order; do that outside of the stages"
    )


_KERAS_CREATES = "attempting to create a variable"


class Stage:
    """One stage in the trace of one step."""

    def __init__(
        self,
        index: int,
        function: Callable[..., Any],
        arguments: Sequence[Any],
        *,
        recompute: bool,
        loss_fn: Callable[..., Any] | None = None,
    ) -> None:
        self.index = index  # Its place in the pipeline, and its logical device.
        # Variables of Keras that it assigns, such as averages of batch norm.
        self.updated: list[Any] = []
        # Variables that it reads in another type, as mixed precision does.
        self.casts: dict[tuple[int, str], Any] = {}
        self.variables: list[Any] = []  # That it reads and trains.
        self.scales: list[Any] = []  # Functions that have scaled the loss.
        self.assigned: list[Any] = []  # By micro-batch, what is to be assigned.
        # Over micro-batches, gradients of ``variables`` and then of ``casts``.
        self.sums: list[Any] = []
        self.penalty: Any = None  # What regularizers add to the loss.
        self.penalties: dict[int, Any] = {}  # Its gradients, by id of ``tf.Variable``.
        self._read: dict[int, Any] = {}
        self._layer = layer_of(function)
        self._function = _tf_distribute.converted_inside(function)
        self._loss_fn = loss_fn and _tf_distribute.converted_inside(loss_fn)
        self._recompute = recompute
        self._specs = tf.nest.map_structure(_spec, list(arguments))
        self.generators: list[Any] = []  # The generator of each draw.
        self._forward = self._trace(is_first=True)
        # What it trains, by Keras' flag of a layer, not that of the ``tf.Variable``.
        self.variables = self._trained(self._forward.graph.variables)
        if self.generators or self.casts:  # again: these are arguments now
            self._forward = self._trace(is_first=False)
        check_stage(index, self._forward)
        self._backward: Any = None
        self._weights: list[tf.Tensor] = []
        self._seeds: list[list[tf.Tensor]] = []  # By micro-batch.
        # By micro-batch that has no backward pass yet: tape, arguments and outputs.
        self._passes: dict[int, tuple[Any, list[Any], Any]] = {}
        self._last: list[Any] = []  # The operations at the end of its last task so far.

    def prepare(self, num_microbatches: int) -> None:
        """Casts weights and draws seeds, once for all micro-batches of a step."""
        self._seeds = [
            [generator.next() for generator in self.generators]
            for _ in range(num_microbatches)
        ]
        self._weights = [
            tf.cast(_tf_compat.unwrap(variable), wanted)
            for (_, wanted), variable in self.casts.items()
        ]

    def forward(self, arguments: list[Any], microbatch: int) -> Any:
        """Emits a forward pass, after what the stage did before; its outputs."""
        tape = tf.GradientTape(watch_accessed_variables=False)
        with tf.control_dependencies(self._last), tape:
            if not self._recompute:
                tape.watch([*floating(arguments), *self._weights, *self.variables])
            seeds = self._seeds[microbatch]
            outputs, updates = self._forward(arguments, seeds, self._weights)
        self._passes[microbatch] = tape, arguments, outputs
        self.assigned.append(updates)
        self._last = _operations(outputs)
        return outputs

    def backward(self, gradients: Sequence[Any], microbatch: int) -> list[Any]:
        """Emits a backward pass, and adds its gradients up; those of its inputs."""
        tape, arguments, results = self._passes.pop(microbatch)
        outputs, sources = floating(results), floating(arguments)
        with tf.control_dependencies(self._last):
            if self._recompute:
                given = [
                    tf.zeros_like(output) if one is None else one
                    for output, one in zip(outputs, gradients, strict=True)
                ]
                if self._backward is None:
                    self._backward = self._trace_backward(given)
                seeds = self._seeds[microbatch]
                found = self._backward(arguments, seeds, self._weights, given)
            else:
                watched = [*sources, *self.variables, *self._weights]
                found = _gradients(tape, outputs, watched, gradients)
        self._last = _operations(found) or self._last
        new = [widened(dense(gradient)) for gradient in found[len(sources) :]]
        # A running sum: at the end there would be M gradients of the whole model.
        with tf.name_scope("sum"):
            before = self.sums or [None] * len(new)
            self.sums = [add(a, b) for a, b in zip(before, new, strict=True)]
        # Targets are arguments of the last stage too.
        return list(found[: len(floating(arguments[0]))])

    def _run(
        self, arguments: list[Any], seeds: list[Any] | None, weights: Sequence[Any]
    ) -> tuple[Any, Updates]:
        read = Updates(dict(zip(self.casts, weights, strict=True)))
        self.generators = []
        # What calls the function says where it runs.
        with tf.device(None), keras_parts.drawing(self.generators, seeds), read:
            return self._outputs(arguments), read

    def _trace(self, *, is_first: bool) -> Any:
        """Traces the forward pass; draws are recorded, or given as arguments."""

        def run(arguments: list[Any], seeds: list[Any], weights: list[Any]) -> Any:
            given = None if is_first else seeds
            outputs, updates = self._run(arguments, given, weights)
            if updates.refused:
                raise errors.PipelineError(f"stage {self.index} {updates.refused[0]}")
            self.updated, self._read = [*updates.updated.values()], updates.read
            if is_first:
                first_casts.update(updates.casts)
            values = map(updates.state_mapping.__getitem__, updates.updated)
            return outputs, [*map(tf.convert_to_tensor, values)]

        run.__name__ = f"{FUNCTION_PREFIX}_{self.index}"
        first_casts: dict[tuple[int, str], Any] = {}
        specs = list(map(keras_parts.generator_spec, self.generators))
        try:
            made = _to_function(run, self._specs, specs, self._weight_specs())
        except errors.CollectiveControlFlowError as error:
            name = trace_reason_of(error).partition(" ")[0]
            raise errors.PipelineError(
                f"stage {self.index} calls {name}, or an optimizer that does, but a "
                "stage works on one micro-batch of one replica, at a time of its own; "
                "communicate, and apply gradients, before or after the pipeline"
            ) from None
        except errors.CreateVariableInStepError:
            raise creates_variable(self.index) from None
        except errors.ReplicatorError:
            raise
        except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
            if _KERAS_CREATES in str(error):
                raise creates_variable(self.index) from None
            specs = tf.nest.flatten(self._specs[0][0])
            text = ", ".join(f"{spec.dtype.name}{list(spec.shape)}" for spec in specs)
            before = f"stage {self.index - 1} returns"
            raise errors.PipelineError(
                f"stage {self.index} does not take what "
                f"{before if self.index else 'the micro-batch is'} ({text}): "
                f"{trace_reason_of(error)}; make the outputs of a stage the inputs of "
                "the next"
            ) from error
        self.casts = self.casts or first_casts
        return made

    def _outputs(self, arguments: list[Any]) -> Any:
        """What the stage returns, with masks; of the last one, a list with a loss."""
        # The loss may make what an optimizer needs, such as a scale of the loss. One
        # that is a mean over what is valid comes with the share of what is.
        outputs = self._function(masked(arguments[0]))
        if self._loss_fn is None:
            return with_masks(outputs)
        self.scales = []
        with keras_parts.noted_means() as means, holding("scales", self.scales):
            loss: Any = tf.convert_to_tensor(self._loss_fn(outputs, arguments[1]))
        if loss.shape.rank != 0 or not loss.dtype.is_floating:
            raise errors.PipelineError(
                f"loss_fn returned {format_value(loss)}, but the loss of a micro-batch "
                "is a floating-point scalar; return the mean over its examples"
            )
        if not means:
            return [loss]
        if len(means) > 1 or not keras_parts.is_multiple(loss, means[0][0]):
            raise errors.PipelineError(
                "loss_fn adds to a loss of Keras that is a mean over what a mask or "
                "sample weights leave valid, which is another share of each "
                "micro-batch; return that loss alone, or create it with reduction=None "
                "and return the mean of what it returns"
            )
        return [loss, means[0][1]]

    def _trained(self, variables: Sequence[Any]) -> list[Any]:
        """Those of variables that Keras, or the stage, does not keep as they are."""
        held = {id(_tf_compat.unwrap(v)) for v in getattr(self._layer, "variables", ())}
        trained = self.trained()
        return [
            variable
            for variable in variables
            if self._read.get(id(variable), variable).trainable
            and (id(variable) in trained or id(variable) not in held)
        ]

    def trained(self) -> dict[int, Any]:
        """What it trains, by id of ``tf.Variable``, as the user holds it."""
        # What a layer or a module holds comes first, whether the stage uses it or not.
        held = getattr(self._layer, "trainable_variables", ())
        by_id = {id(_tf_compat.unwrap(variable)): variable for variable in held}
        used = {id(v): self._read.get(id(v), v) for v in self.variables}
        return by_id | {key: v for key, v in used.items() if key not in by_id}

    def _weight_specs(self) -> list[tf.TensorSpec]:
        return [
            tf.TensorSpec(_tf_compat.unwrap(variable).shape, wanted)
            for (_, wanted), variable in self.casts.items()
        ]

    def _trace_backward(self, gradients: Sequence[Any]) -> Any:
        def run(
            arguments: list[Any], seeds: list[Any], weights: list[Any], given: list[Any]
        ) -> Any:
            watched = [*floating(arguments), *self.variables, *weights]
            with tf.device(None):
                with tf.GradientTape() as tape:
                    tape.watch(watched)
                    outputs, _ = self._run(arguments, seeds, weights)
                    outputs = floating(outputs)
                return [*map(dense, _gradients(tape, outputs, watched, given))]

        run.__name__ = f"{FUNCTION_PREFIX}_{self.index}_again"
        seeds = list(map(keras_parts.generator_spec, self.generators))
        return _to_function(
            run,
            self._specs,
            seeds,
            self._weight_specs(),
            tf.nest.map_structure(_spec, list(gradients)),
        )


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


def add(one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    # One per variable and micro-batch: without what an operator looks for first.
    return tf.raw_ops.AddV2(x=one, y=other)


def widened(tensor: Any) -> Any:
    """In float32, if it has fewer bits: sums over micro-batches would round away."""
    is_low = tensor is not None and tensor.dtype in (tf.bfloat16, tf.float16)
    return tf.cast(tensor, tf.float32) if is_low else tensor


def _gradients(
    tape: Any, outputs: Sequence[Any], sources: Sequence[Any], given: Sequence[Any]
) -> list[Any]:
    """Gradients of those outputs that have one: None would count as ones."""
    pairs = [(o, g) for o, g in zip(outputs, given, strict=True) if g is not None]
    return list(
        tape.gradient(
            [output for output, _ in pairs],
            sources,
            output_gradients=[one for _, one in pairs],
        )
    )


def _operations(tensors: Any) -> list[Any]:
    by_name = {}
    for tensor in tf.nest.flatten(tensors):
        if tensor is not None:
            values = getattr(tensor, "values", tensor)
            by_name[values.op.name] = values.op
    return list(by_name.values())


def layer_of(stage: Any) -> Any:
    """The layer of a stage, also in ``functools.partial(layer, training=True)``."""
    while isinstance(stage, functools.partial):
        stage = stage.func
    return stage


# Updates are of what a layer keeps beside its weights. Keras' own scope for stateless
# calls says what a layer would assign; it is assigned once per batch, from all
# micro-batches: averages of batch norm as the mean of what they would assign (Huang et
# al. 2019, appendix), other variables as their ``aggregation`` says.
#
# With mixed precision, a layer casts its weights where it reads them: once per task. So
# what is cast is noted as well, and can be given: cast once per step, outside the
# tasks.
#
# A mask is an attribute of a tensor. It crosses a cut beside the tensor.

_MASK = "_keras_mask"  # of Keras and tf_keras


class Updates(keras.StatelessScope):
    """What a stage would assign, in one trace of it; variables keep their values."""

    def __init__(self, given: Mapping[tuple[int, str], Any]) -> None:
        super().__init__(collect_losses=True)
        self._given = given
        # Variables of Keras, by id, in the order of their first update.
        self.updated: dict[int, Any] = {}
        # Variables that are read in another type, and that type, in their order.
        self.casts: dict[tuple[int, str], Any] = {}
        self.read: dict[int, Any] = {}  # Of Keras, by the id of their ``tf.Variable``.
        self.refused: list[str] = []  # What no pipeline can do, each a sentence.

    def get_current_value(self, variable: Any) -> Any:
        """What was assigned or is given for a variable as it is read; None for none."""
        assigned = super().get_current_value(variable)
        if assigned is not None:
            return assigned
        inner = _tf_compat.unwrap(variable)
        if inner is variable:  # Keras makes no tf.Variable in this scope
            raise errors.CreateVariableInStepError(variable.path)
        self.read[id(inner)] = variable
        if variable.trainable and getattr(variable, "overwrite_with_gradient", False):
            self.refused.append(
                f"has {variable.path!r}, whose gradient is its next value, as with "
                "float8, and not a mean over micro-batches; use another dtype policy"
            )
        wanted = str(variable.dtype)  # within a layer of mixed precision: its own
        if wanted == inner.dtype.name:
            return None
        key = id(variable), wanted
        self.casts[key] = variable
        return self._given.get(key)

    def add_update(self, update: tuple[Any, Any]) -> None:
        super().add_update(update)
        variable, _ = update
        self.updated[id(variable)] = variable
        owner = next(_tf_distribute.keras_callers(), None)
        is_batch_norm = isinstance(owner, keras.layers.BatchNormalization)
        if variable.trainable:
            self.refused.append(
                f"assigns {variable.path!r} in layer {_name(owner)}, which is trained "
                "as well; create it with trainable=False"
            )
        elif variable.aggregation == "none" and not is_batch_norm:
            self.refused.append(
                f"assigns {variable.path!r} in layer {_name(owner)}, and micro-batches "
                "can be joined in more than one way; say in add_weight(aggregation=) "
                "whether their 'sum' is added or their 'mean' is kept, or "
                "'only_first_replica' if all assign the same"
            )

    def add_loss(self, loss: Any) -> None:
        super().add_loss(loss)
        frame: Any = inspect.currentframe()
        layer = frame.f_back.f_locals["self"]
        self.refused.append(
            f"has a loss of its own in layer {_name(layer)} (add_loss, or an "
            "activity_regularizer), which would be of one micro-batch at a time; "
            "return what it needs from the stages and add it in loss_fn"
        )


def joined(variable: Any, values: list[Any]) -> Any:
    """The value of a variable after what micro-batches would assign."""
    if variable.aggregation == "only_first_replica":
        return values[0]
    if variable.aggregation == "sum":
        before = tf.convert_to_tensor(_tf_compat.unwrap(variable))
        return before + tf.add_n([value - before for value in values])
    return tf.cast(tf.add_n(values) / len(values), values[0].dtype)


def with_masks(nest: Any) -> tuple[Any, dict[int, Any]]:
    """A nest, and the masks of its tensors by their places."""
    masks = {
        index: getattr(tensor, _MASK, None)
        for index, tensor in enumerate(tf.nest.flatten(nest))
    }
    return nest, {p: mask for p, mask in masks.items() if mask is not None}


def masked(pair: tuple[Any, Mapping[int, Any]]) -> Any:
    """The nest of a pair as of ``with_masks``, its tensors with their masks."""
    nest, masks = pair
    flat = tf.nest.flatten(nest)
    for index, mask in masks.items():
        setattr(flat[index], _MASK, mask)
    return nest


def _name(layer: Any) -> str:
    return repr(getattr(layer, "name", None) or type(layer).__name__)


# A result of a forward pass is kept on the device of its stage until the last task that
# uses it, and a copy of it on the device of each other stage that does. Values of
# variables are no activations, whether a function returns them or not; nor is the
# batch, which is there for the whole step.

_FORWARD = re.compile(r"stage_\d+_F\d+$")


def activation_peaks(graph: Any, schedule: Sequence[Sequence[Task]]) -> list[int]:
    """The most bytes that each stage keeps at one time, of those of static shape."""
    places = {
        task_name(stage, task): (stage, index)
        for stage, own in enumerate(schedule)
        for index, task in enumerate(own)
    }
    origins = Origins(graph.as_graph_def())
    users: dict[Any, list[tuple[int, int]]] = {}
    for operation in graph.get_operations():
        if _task_of(operation) in places:
            for tensor in operation.inputs:
                origin = origins.of(tensor)
                if origin is not None:
                    users.setdefault(origin, []).append(places[_task_of(operation)])
    alive = [np.zeros(len(own), np.int64) for own in schedule]
    for (name, _, num_bytes), uses in users.items():
        producer = _task_of(graph.get_operation_by_name(name))
        if num_bytes is None or not _FORWARD.match(producer):
            continue
        tasks: dict[int, list[int]] = {}  # By stage that keeps it.
        for stage, index in (places[producer], *uses):
            tasks.setdefault(stage, []).append(index)
        for stage, own in tasks.items():
            # What no later task needs is gone with its own.
            if max(own) > min(own):
                alive[stage][min(own) : max(own) + 1] += num_bytes
    return [int(own.max(initial=0)) for own in alive]


def _task_of(operation: Any) -> str:
    match = TASK_NAME.match(operation.name)
    return match[0] if match else ""
