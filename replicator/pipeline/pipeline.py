"""Pipelines: a model cut into stages, one per logical device of a replica.

The batch of a replica is cut into micro-batches, so that stages work at the same time,
each on another one (GPipe, Huang et al. 2019). All of it is emitted while the step is
traced: calls of the stages, data edges between stages, and control edges along the
order of the schedule on each device. Nothing of it exists at run time, so the engine
proves, places and links a pipeline as any other step.
"""

from __future__ import annotations

import dataclasses
import functools
import graphlib
import itertools
import math
import numbers
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf.workers import trace_reason_of
from replicator.core import context
from replicator.core.context import logical_device, task_name
from replicator.core.validation import format_value, is_integer, is_one_of
from replicator.errors import PipelineError
from replicator.pipeline import stage as stage_lib
from replicator.pipeline.stage import Stage, add, dense, layer_of, widened

# A task is the forward or the backward pass of one stage for one micro-batch. A
# schedule is no more than a list of tasks per stage, so it exists while a step is
# traced only.


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    is_forward: bool  # Whether it is the forward pass.
    microbatch: int  # In [0, number of micro-batches).

    def __str__(self) -> str:
        return f"{'F' if self.is_forward else 'B'}{self.microbatch}"


Schedule: TypeAlias = list[list[Task]]  # By stage, its tasks in their order.


def fill_drain(num_stages: int, num_microbatches: int) -> Schedule:
    """All forward passes, then all backward passes (Huang et al. 2019, figure 2c)."""
    forward = [Task(True, m) for m in range(num_microbatches)]
    # The last micro-batch has just left the last stage: its gradients are there first.
    backward = [Task(False, m) for m in reversed(range(num_microbatches))]
    return [forward + backward for _ in range(num_stages)]


def one_forward_one_backward(num_stages: int, num_microbatches: int) -> Schedule:
    """Each backward pass as early as possible (Narayanan et al. 2019, figure 8)."""
    tasks = []
    for stage in range(num_stages):
        ahead = min(num_microbatches, num_stages - stage)
        own = [Task(True, m) for m in range(ahead)]
        for done in range(num_microbatches):
            own.append(Task(False, done))
            if ahead + done < num_microbatches:
                own.append(Task(True, ahead + done))
        tasks.append(own)
    return tasks


SCHEDULES: Mapping[str, Callable[[int, int], Schedule]] = {
    "fill_drain": fill_drain,
    "one_forward_one_backward": one_forward_one_backward,
}


def in_time(schedule: Sequence[Sequence[Task]]) -> list[list[tuple[int, Task]]]:
    """Runs a schedule in which every task takes one unit of time."""
    order: graphlib.TopologicalSorter[tuple[int, Task]] = graphlib.TopologicalSorter()
    for stage, own in enumerate(schedule):
        before: list[tuple[int, Task]] = []  # The last task of the stage.
        for task in own:
            # Its inputs are of the stage before, or its gradients of the one behind.
            other = stage - 1 if task.is_forward else stage + 1
            given = [(other, task)] if 0 <= other < len(schedule) else []
            order.add((stage, task), *before, *given)
            before = [(stage, task)]
    order.prepare()
    units = []
    while order:
        units.append(sorted(order.get_ready(), key=operator.itemgetter(0)))
        order.done(*units[-1])
    return units


MOST_MICROBATCHES = 1024
"""Each is two calls per stage in the graph of the step."""


class Pipeline:
    """A model as a chain of stages, stage k on logical device k of every replica."""

    def __init__(
        self,
        stages: Sequence[Callable[[Any], Any]],
        *,
        num_microbatches: int,
        schedule: str = "one_forward_one_backward",
        recompute: bool = False,
    ) -> None:
        """Cuts a model; may be called anywhere.

        Args:
          stages: Functions, layers or models. The first takes the inputs of a batch,
            each other one what the one before it returns. Create the variables of
            stage k inside ``logical_device(k)``.
          num_microbatches: M, into how many equal parts the batch of a replica is cut.
          schedule: ``one_forward_one_backward``, which keeps the activations of
            min(M, K - k) micro-batches at stage k of K, or ``fill_drain``, which keeps
            those of all M.
          recompute: Whether a stage keeps its inputs only, and runs its forward pass
            again before its backward pass (rematerialization, Chen et al. 2016). Random
            numbers of Keras are the same in both.

        Raises:
          PipelineError: An argument is not one of these.
        """
        is_list = isinstance(stages, (list, tuple))
        if not is_list or not stages or not all(map(callable, stages)):
            raise PipelineError(
                f"Pipeline(stages) got {format_value(stages)}; pass a list of at least "
                "one function, layer or model"
            )
        self._stages = list(stages)
        self._balance = getattr(layer_of(self._stages[0]), "balance_of_stages", "")
        if not is_integer(num_microbatches, least=1) or (
            num_microbatches > MOST_MICROBATCHES
        ):
            raise PipelineError(
                f"num_microbatches={format_value(num_microbatches)} is no number of "
                f"parts; use an integer from 1 to {MOST_MICROBATCHES}"
            )
        self.num_microbatches = int(num_microbatches)
        if not is_one_of(schedule, SCHEDULES):
            raise PipelineError(
                f"schedule={format_value(schedule)} is unknown; use one of "
                f"{', '.join(SCHEDULES)}"
            )
        self.schedule = SCHEDULES[schedule](len(self._stages), self.num_microbatches)
        self._recompute = bool(recompute)

    @property
    def trainable_variables(self) -> list[Any]:
        """Those of the stages that are layers, models or modules, in their order."""
        layers = map(layer_of, self._stages)
        return [v for x in layers for v in getattr(x, "trainable_variables", ())]

    def describe(self) -> str:
        """The schedule as text: a row per stage, F and B with the micro-batch.

        There is a column per unit of time. The share of empty ones is the bubble,
        (K - 1) / (M + K - 1) of the time if all tasks take equally long (Huang et al.
        2019, section 2.3).
        """
        units = [dict(unit) for unit in in_time(self.schedule)]
        width = max(len(str(task)) for own in self.schedule for task in own)
        rows = []
        for stage in range(len(self.schedule)):
            cells = [str(unit.get(stage, "")).ljust(width) for unit in units]
            rows.append(f"stage {stage}  {' '.join(cells).rstrip()}")
        return "\n".join(rows)

    # Of the library's own code AutoGraph would convert every function, which takes ten
    # times as long as all else. Stages are converted, as other functions of the user's.
    @tf.autograph.experimental.do_not_convert
    def loss_and_gradients(
        self, batch: tuple[Any, Any], loss_fn: Callable[[Any, Any], tf.Tensor]
    ) -> tuple[tf.Tensor, list[tuple[Any, Any]]]:
        """Computes loss and gradients of the batch of one replica.

        Call it in a step function. The result is that of the whole batch in one piece,
        up to rounding, if the loss is the mean over examples.

        Args:
          batch: Inputs of the first stage, and targets: nests of tensors
            ``[b, ...]``, b divisible by the number of micro-batches.
          loss_fn: Takes outputs of the last stage and targets of one micro-batch, and
            returns a scalar, their mean. It runs on the last logical device.

        Returns:
          The loss, a scalar, and pairs of gradient and variable for
          ``apply_gradients``. Regularizers of weights are added to both. Gradients are
          those of this replica, summed over micro-batches in float32, on the device of
          their variable.

        Raises:
          PipelineError: A stage does not fit; the message says which and why.
        """
        if not context.in_replica_context():
            raise PipelineError(
                "loss_and_gradients() was called outside a step; call it in the "
                "function that repl.run() gets"
            )
        available = context.get_replica_context().num_logical_devices
        if available < len(self._stages):
            raise PipelineError(
                f"a pipeline of {len(self._stages)} stages needs as many logical "
                f"devices, but a replica here has {available}; create the replicator "
                f"with logical_devices_per_replica={len(self._stages)}"
            )
        for index, stage in enumerate(map(layer_of, self._stages)):
            if getattr(stage, "built", True) is False:
                raise PipelineError(
                    f"stage {index} ({stage.name}) has no variables yet; make them "
                    f"outside of the step, with logical_device({index}): "
                    "stage.build(input_shape)"
                )
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:  # noqa: PLR2004
            raise PipelineError(
                f"loss_and_gradients(batch) got {format_value(batch)}; pass a pair of "
                "inputs and targets"
            )
        parts = self._cut(tuple(batch))
        emitted = _Emitted(self._stages, loss_fn, parts, recompute=self._recompute)
        for unit in in_time(self.schedule):
            for index, task in unit:
                emitted.emit(index, task)
        emitted.finish()
        kept = stage_lib.activation_peaks(
            tf.compat.v1.get_default_graph(), self.schedule
        )
        context.get_replica_context().note(self._explained(kept), kept)
        loss = emitted.loss()
        self._check_apart(emitted.stages)
        return loss, [pair for each in emitted.stages for pair in emitted.pairs(each)]

    def _explained(self, kept: Sequence[int]) -> str:
        """The schedule, and what each stage keeps of activations at most."""
        lines = []
        for stage, own in enumerate(self.schedule):
            steps = itertools.accumulate(1 if task.is_forward else -1 for task in own)
            lines.append(
                f"stage {stage} keeps activations of at most {max(steps)} "
                f"micro-batches, {kept[stage]:,} bytes"
            )
        return "\n".join(filter(None, [self._balance, self.describe(), *lines]))

    def _cut(self, batch: Any) -> list[Any]:
        count = self.num_microbatches
        flat = [tf.convert_to_tensor(x) for x in tf.nest.flatten(batch)]
        for tensor in flat:
            size = tensor.shape[0] if tensor.shape.rank else None
            if size is None or size % count:
                what_else = (
                    "of unknown size" if tensor.shape.rank else "without examples"
                )
                what = f"of {size} examples" if size else what_else
                raise PipelineError(
                    f"a batch {what} cannot be cut into {count} micro-batches of one "
                    "size; use a per-replica batch size that num_microbatches divides, "
                    "and drop_remainder=True"
                )
        pieces = [tf.split(tensor, count) for tensor in flat]
        for index, mask in stage_lib.with_masks(flat)[1].items():
            is_of_rows = mask.shape[:1] == flat[index].shape[:1]
            masks = tf.split(mask, count) if is_of_rows else [mask] * count
            stage_lib.masked((pieces[index], dict(enumerate(masks))))
        return [
            tf.nest.pack_sequence_as(batch, [piece[m] for piece in pieces])
            for m in range(count)
        ]

    def _check_apart(self, stages: Sequence[Stage]) -> None:
        """Rejects variables that several stages use."""
        names = [getattr(stage, "name", type(stage).__name__) for stage in self._stages]
        owners: dict[int, int] = {}
        for stage in stages:
            own = [*stage.variables, *map(_tf_compat.unwrap, stage.updated)]
            for variable in own:
                one, other = owners.setdefault(id(variable), stage.index), stage.index
                if one != other:
                    raise PipelineError(
                        f"variable {variable.name!r} is used by stages {one} and "
                        f"{other} ({names[one]}, {names[other]}), but it is on one "
                        "device: give each stage its own, or put the layers that share "
                        "it into one stage"
                    )


class _Emitted:
    """The tasks of a pipeline that are in the graph so far."""

    def __init__(
        self,
        functions: list[Any],
        loss_fn: Callable[..., Any],
        parts: Sequence[Any],
        *,
        recompute: bool,
    ) -> None:
        self.stages: list[Stage] = []
        self._functions = functions
        self._loss_fn = loss_fn
        self._parts = parts
        self._recompute = recompute
        # By stage and micro-batch: outputs, and gradients of inputs.
        self._outputs: dict[tuple[int, int], Any] = {}
        self._upstream: dict[tuple[int, int], Any] = {}
        self._losses: list[Any] = []  # Outputs of the last stage.
        with logical_device(len(functions) - 1):
            # One node for all micro-batches: the optimizer would make a function for
            # each constant that it is called with.
            self._one = tf.ones([])

    def emit(self, index: int, task: Task) -> None:
        m = task.microbatch
        with logical_device(index):
            arguments = self._arguments(index, m) if task.is_forward else []
            if index == len(self.stages):
                self.stages.append(self._make_stage(index, arguments))
            stage = self.stages[index]
            with tf.name_scope(task_name(index, task)):
                if not task.is_forward:
                    given = self._upstream.pop((index + 1, m), None)
                    if given is None:
                        loss, *shares = self._outputs.pop((index, m))
                        given = [tf.cast(self._one, loss.dtype), *[None] * len(shares)]
                    self._upstream[index, m] = stage.backward(given, m)
                    return
                outputs = self._outputs[index, m] = stage.forward(arguments, m)
                if self._is_last(index):
                    self._losses.append(outputs)

    def _is_last(self, index: int) -> bool:
        return index + 1 == len(self._functions)

    def _arguments(self, index: int, microbatch: int) -> list[Any]:
        inputs, targets = self._parts[microbatch]
        if index == 0:
            given = stage_lib.with_masks(inputs)
        else:
            given = self._outputs.pop((index - 1, microbatch))
        return [given, targets] if self._is_last(index) else [given]

    def _make_stage(self, index: int, arguments: Sequence[Any]) -> Stage:
        loss_fn = self._loss_fn if self._is_last(index) else None
        function, recompute = self._functions[index], self._recompute
        stage = Stage(index, function, arguments, recompute=recompute, loss_fn=loss_fn)
        # Outside of the tasks: drawing has an effect, and so an order.
        stage.prepare(len(self._parts))
        return stage

    def loss(self) -> tf.Tensor:
        with logical_device(len(self._functions) - 1):
            mean = self._mean(tf.add_n([widened(loss) for loss, *_ in self._losses]))
            for stage in self.stages:
                if stage.penalties:
                    mean += tf.cast(stage.penalty, mean.dtype)
            return tf.cast(mean, self._losses[0][0].dtype)

    def _mean(self, total: Any) -> Any:
        """Of a sum over micro-batches: by their number, or by what is valid in them."""
        if len(self._losses[0]) == 1:
            return total / len(self._parts)
        valid = tf.add_n([widened(share) for _, share in self._losses])
        return tf.math.divide_no_nan(total, tf.cast(valid, total.dtype))

    def finish(self) -> None:
        """Assigns what stages keep beside weights, and regularizes weights once."""
        for stage in self.stages:
            values = zip(*stage.assigned, strict=True)
            with logical_device(stage.index):
                self._regularize(stage)
                for variable, of_parts in zip(stage.updated, values, strict=True):
                    variable.assign(stage_lib.joined(variable, list(of_parts)))

    def _regularize(self, stage: Stage) -> None:
        """Computes what Keras adds to a loss for weights that are trained."""
        trained = stage.trained().values()
        regularized = [v for v in trained if getattr(v, "regularizer", None)]
        if not regularized:
            return
        inner = [_tf_compat.unwrap(v) for v in regularized]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(inner)
            penalty = tf.add_n([v.regularizer(v) for v in regularized])
            for scale in self.stages[-1].scales[-1:]:  # as loss_fn has scaled its loss
                penalty = scale(penalty)
        gradients = tape.gradient(penalty, inner)
        stage.penalty = penalty
        stage.penalties = {
            id(v): dense(g) for v, g in zip(inner, gradients, strict=True)
        }

    def pairs(self, stage: Stage) -> list[tuple[Any, Any]]:
        """A stage's gradients, means over micro-batches, and its variables."""
        sums: dict[int, Any] = {}
        read = [*stage.variables, *map(_tf_compat.unwrap, stage.casts.values())]
        for variable, one in zip(read, stage.sums, strict=True):
            sums[id(variable)] = add(sums.get(id(variable)), one)
        pairs = []
        with logical_device(stage.index):
            for key, variable in stage.trained().items():
                mean = None if sums.get(key) is None else self._mean(sums[key])
                mean = add(mean, widened(stage.penalties.get(key)))
                if mean is not None:
                    mean = tf.cast(mean, _tf_compat.unwrap(variable).dtype)
                pairs.append((mean, variable))
        return pairs


# Stages of a chain of Keras layers are cut by what layers cost, or by hand.


def balance_stages(costs: Sequence[float], num_stages: int) -> list[range]:
    """Cuts a chain of layers into stages so that the largest costs as little as it can.

    The slowest stage sets the pace of a pipeline (Huang et al. 2019, section 2.1).
    May be called anywhere.

    Args:
      costs: Of each layer, in order: FLOPs, or seconds that were measured.
      num_stages: K, at most as many as layers.

    Returns:
      The indices of the layers of each stage; none is empty.

    Raises:
      PipelineError: There are fewer layers than stages, or a cost is no number of at
        least 0.
    """
    if not isinstance(costs, (list, tuple)) or not costs:
        raise PipelineError(
            f"balance_stages(costs) got {format_value(costs)}; pass a list with the "
            "FLOPs or the seconds of each layer"
        )
    if not is_integer(num_stages, least=1) or num_stages > len(costs):
        raise PipelineError(
            f"num_stages={format_value(num_stages)} for {len(costs)} layers; use an "
            f"integer from 1 to {len(costs)}: every stage has a layer at least"
        )
    for cost in costs:
        is_number = isinstance(cost, numbers.Real) and not isinstance(cost, bool)
        if not (is_number and 0 <= cost < math.inf):
            raise PipelineError(
                f"costs has {format_value(cost)}; use FLOPs or seconds, finite and not "
                "below 0"
            )
    until = [0.0, *itertools.accumulate(costs)]

    @functools.cache
    def best(num_stages: int, end: int) -> tuple[float, tuple[int, ...]]:
        """The largest stage of the layers before one, and where stages begin."""
        if num_stages == 1:
            return until[end], (0,)
        cuts = []
        for start in range(num_stages - 1, end):
            largest, begins = best(num_stages - 1, start)
            cost = max(largest, until[end] - until[start])
            cuts.append((cost, (*begins, start)))
        return min(cuts, key=operator.itemgetter(0))

    _, begins = best(num_stages, len(costs))
    return _ranges(*begins, len(costs))


def _ranges(*bounds: int) -> list[range]:
    return [range(first, end) for first, end in itertools.pairwise(bounds)]


# Product -> its attribute for a transposed first operand.
_PRODUCTS = {"MatMul": "transpose_a"} | {
    f"BatchMatMul{version}": "adj_x" for version in ("", "V2", "V3")
}
# Convolution -> the dimensions of its filter of which each result is a sum.
_CONVOLUTIONS = {"Conv2D": -1, "Conv3D": -1, "DepthwiseConv2dNative": 2}


def _flops_of(operation: Any) -> int:
    """The operations of a product or convolution whose shapes are known, or 0."""
    kind = operation.type
    if kind == "Einsum":
        return 2 * _label_product(operation)
    if kind in _PRODUCTS:
        inner = -2 if operation.get_attr(_PRODUCTS[kind]) else -1
        num_terms = operation.inputs[0].shape[inner]
    elif kind in _CONVOLUTIONS:
        summed = operation.inputs[1].shape[: _CONVOLUTIONS[kind]]
        num_terms = summed.num_elements()
    else:
        return 0
    return 2 * (operation.outputs[0].shape.num_elements() or 0) * (num_terms or 0)


def _label_product(operation: Any) -> int:
    """The product of the sizes of all labels of an equation such as ``abc,cd->abd``."""
    terms = operation.get_attr("equation").decode().partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms, operation.inputs, strict=True):
        # Of an ellipsis, the dimensions are those that no label has.
        before, _, after = term.partition("...")
        rank = tensor.shape.rank or 0
        labels = [*before, *(f"...{i}" for i in range(rank - len(before + after)))]
        for label, size in zip([*labels, *after], tensor.shape, strict=False):
            sizes[label] = max(sizes.get(label, 1), size or 0)
    return math.prod(sizes.values())


class Stages(list[Any]):
    """Stages as ``Pipeline`` takes them, each a ``keras.Sequential``."""

    balance: str = ""  # A line that says which layers each stage has, and why.


def make_stages(
    makers: Sequence[Callable[[], Any]],
    example: Any,
    num_stages: int,
    *,
    balance: str | Sequence[int] = "flops",
) -> Stages:
    """Cuts a chain of Keras layers into stages, and makes stage k on logical device k.

    Call it in ``repl.context()``. The largest stage is as small as it can be, since it
    sets the pace of a pipeline (Huang et al. 2019, section 2.1).

    Args:
      makers: Functions without arguments, each of which returns a new layer; to find
        what layers cost, others are made, one at a time.
      example: ``tf.TensorSpec`` of the inputs of a micro-batch, [examples, ...].
      num_stages: K, at most as many as layers.
      balance: ``flops`` counts the products of each layer from its graph, without
        making its variables; a list has the number of layers of each stage.

    Returns:
      K models in a list, whose balance ``explain()`` prints.

    Raises:
      PipelineError: There are fewer layers than stages, or ``balance`` is none of
        these.
    """
    is_list = isinstance(makers, (list, tuple)) and bool(makers)
    if not is_list or not all(
        callable(maker) and not isinstance(maker, keras.layers.Layer)
        for maker in makers
    ):
        raise PipelineError(
            f"make_stages(makers) got {format_value(makers)}; pass a list of functions "
            "that each return a new Keras layer, such as lambda: keras.layers.Dense(8)"
        )
    if not isinstance(example, tf.TensorSpec) or not example.shape.is_fully_defined():
        raise PipelineError(
            f"make_stages(example) got {format_value(example)}; pass the tf.TensorSpec "
            "of a micro-batch, with its number of examples"
        )
    num_layers = len(makers)
    counts: Any = None if isinstance(balance, str) else balance
    if counts is None and balance != "flops":
        raise PipelineError(
            f"balance={format_value(balance)} is unknown; use 'flops', or a list with "
            "the number of layers of each stage"
        )
    if counts is not None:
        is_list = isinstance(counts, (list, tuple)) and all(
            is_integer(count, least=1) for count in counts
        )
        if not is_list or len(counts) != num_stages or sum(counts) != num_layers:
            raise PipelineError(
                f"balance={format_value(balance)} does not cut {num_layers} layers "
                f"into {num_stages} stages; use 'flops', or the number of layers of "
                f"each stage, {num_layers} in all"
            )
    costs, outputs = _costs(makers, example)
    if counts is None:
        parts = balance_stages(costs, num_stages)
    else:
        parts = _ranges(0, *itertools.accumulate(counts))
    stages = Stages()
    for index, part in enumerate(parts):
        spec = outputs[part.start]
        with logical_device(index):
            inputs = keras.Input(spec.shape[1:], dtype=spec.dtype.name)
            stages.append(keras.Sequential([inputs, *(makers[i]() for i in part)]))
    way = "flops" if counts is None else "hand"
    by_stage = (sum(costs[part.start : part.stop]) for part in parts)
    by_cost = ", ".join(f"{cost:,.0f} FLOPs forward" for cost in by_stage)
    layers = ", ".join(
        f"{part.start}" if len(part) == 1 else f"{part.start} to {part.stop - 1}"
        for part in parts
    )
    stages.balance = f"balance by {way}: layers {layers}; {by_cost}"
    # A list of functools.partial(stage, training=True) has none of its own.
    stages[0].balance_of_stages = stages.balance
    return stages


def _costs(
    makers: Sequence[Callable[[], Any]], example: Any
) -> tuple[list[float], list[Any]]:
    costs: list[float] = []
    inputs = [example]
    for maker in makers:
        traced = tf.function(functools.partial(_run, maker), autograph=False)
        try:
            concrete = traced.get_concrete_function(inputs[-1])
        except (TypeError, ValueError) as error:
            given = f"{inputs[-1].dtype.name}{list(inputs[-1].shape)}"
            raise PipelineError(
                f"layer {len(costs)} does not take {given}: {trace_reason_of(error)}; "
                "make the outputs of a layer the inputs of the next, and example those "
                "of the first"
            ) from error
        inputs.append(tf.TensorSpec.from_tensor(concrete.outputs[0]))
        # Those inside functions that the layer calls are not counted.
        costs.append(float(sum(map(_flops_of, concrete.graph.get_operations()))))
    return costs, inputs


def _run(maker: Callable[[], Any], values: Any) -> Any:
    # What a layer makes in this scope has no memory.
    with keras.StatelessScope(initialize_variables=False):
        return maker()(values)
