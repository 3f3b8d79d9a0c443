"""The steps of a strategy: a function of the user's for arguments of one type.

The arguments are a nest of values per replica, of values that all replicas get, and of
Python objects. The step that the engine traces takes the tensors among them, as a list,
and returns those of the result.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import distribute as _tf_distribute
from replicator.collectives import reductions
from replicator.core import context
from replicator.core.step import check_outputs
from replicator.core.validation import name_of
from replicator.errors import StrategyError
from replicator.inputs.batches import num_rows
from replicator.strategy import fit
from replicator.strategy.replica_context import GradientSum, StepReplicaContext

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replicator._tf.distribute import Runner
    from replicator.core.step import StepCache


_TENSORS = (tf.Tensor, tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices, np.ndarray)
_ARRAYS = (np.ndarray, np.generic, bool, int, float, str)
_COMPARED = (bool, int, float, str, type(None))  # other Python objects by identity


def is_per_replica(value: Any) -> bool:
    return isinstance(value, tf.distribute.DistributedValues)


def local_values(value: Any, num_local: int) -> tuple[Any, ...]:
    """One value per local replica; what is not per replica is the same on all."""
    if is_per_replica(value):
        return tuple(value.values)
    return (value,) * num_local


def grouped(values: Sequence[Any]) -> Any:
    """One value of ``tf.distribute``; of one replica, that value itself."""
    return values[0] if len(values) == 1 else _tf_distribute.PerReplica(tuple(values))


class Arguments:
    """The arguments of a call, by what the step has to be traced for."""

    def __init__(
        self, args: Any, kwargs: Any, num_local: int, *, any_size: bool
    ) -> None:
        self._structure = tuple(args), dict(kwargs or {})
        self._leaves = tf.nest.flatten(self._structure)  # None in the place of tensors
        self._places = []
        values, specs = [], []
        for index, leaf in enumerate(self._leaves):
            if isinstance(leaf, _TENSORS) or is_per_replica(leaf):
                self._places.append(index)
                values.append(_values(leaf, num_local))
                specs.append(tuple(_spec(x, any_size=any_size) for x in values[-1]))
        # Of each tensor, the type that fits all local replicas.
        self.specs = [_common(of_replicas) for of_replicas in specs]
        # By local replica, its tensors.
        self.batches = [[of_leaf[r] for of_leaf in values] for r in range(num_local)]
        for index in self._places:
            self._leaves[index] = None
        fixed = (
            (type(leaf), leaf if type(leaf) in _COMPARED else id(leaf))
            for leaf in self._leaves
        )
        nest = str(tf.nest.map_structure(lambda _: 0, self._structure))
        # Equal for calls that one traced step fits, if the function is the same.
        self.key = nest, tuple(fixed), tuple(self._places), tuple(specs)

    def packed(self, tensors: Sequence[Any]) -> tuple[Any, Any]:
        leaves = list(self._leaves)
        for index, tensor in zip(self._places, tensors, strict=True):
            leaves[index] = tensor
        args, kwargs = tf.nest.pack_sequence_as(self._structure, leaves)
        return args, kwargs


def _values(leaf: Any, num_local: int) -> list[Any]:
    own = local_values(leaf, num_local)
    if len(own) != num_local:
        raise StrategyError(
            f"an argument of strategy.run() has {len(own)} values, but there are "
            f"{num_local} replicas in this process; pass what the strategy's datasets "
            "and steps return"
        )
    return [tf.convert_to_tensor(x) if isinstance(x, _ARRAYS) else x for x in own]


def _spec(value: Any, *, any_size: bool) -> tf.TypeSpec:
    spec = tf.type_spec_from_value(value)
    if any_size and isinstance(spec, tf.TensorSpec) and spec.shape.rank:
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
    return spec


def _common(specs: Sequence[Any]) -> tf.TypeSpec:
    first, *others = specs
    common = first.most_specific_common_supertype(others) if others else first
    if common is None:
        raise StrategyError(
            f"an argument of strategy.run() has another type on each replica: "
            f"{list(specs)}; give all replicas the same type and rank"
        )
    return common


class Outputs:
    """The nest that a step returns, which is known once it is traced."""

    def __init__(self, *, are_whole: bool) -> None:
        # Whether each replica returns what all of them have computed.
        self.are_whole = are_whole
        self._structure: Any = None
        self._specs: list[Any] = []  # Of its leaves; None of what is no tensor.

    def flat(self, outputs: Any, step_fn: Callable[..., Any]) -> list[tf.Tensor]:
        """Takes the nest of a replica apart into dense tensors."""
        self._structure = tf.nest.map_structure(lambda _: 0, outputs)
        self._specs, values = [], []
        for leaf in tf.nest.flatten(outputs):
            if leaf is None or isinstance(leaf, tf.Operation):
                self._specs.append(None)
                continue
            is_known = isinstance(leaf, _TENSORS)
            values.append(leaf if is_known else check_outputs(leaf, step_fn))
            self._specs.append(tf.type_spec_from_value(values[-1]))
        return tf.nest.flatten(values, expand_composites=True)

    def grouped(self, flat: Sequence[Sequence[Any]]) -> Any:
        """The nest of all replicas, from the tensors of each."""
        specs = [spec for spec in self._specs if spec is not None]
        of_replicas = [
            tf.nest.pack_sequence_as(specs, list(tensors), expand_composites=True)
            for tensors in (flat[:1] if self.are_whole else flat)
        ]
        values = map(grouped, zip(*of_replicas, strict=True))
        leaves = [None if spec is None else next(values) for spec in self._specs]
        return tf.nest.pack_sequence_as(self._structure, leaves)


def without_gradients(
    outputs: Sequence[Sequence[Any]], name: str
) -> list[Sequence[Any]]:
    """Results of a step in a graph, whose gradient is an error that says why."""
    # TensorFlow knows no gradient of the call that the step is, and none would reach
    # the variables that the step reads.

    @tf.custom_gradient
    def result(tensor: tf.Tensor) -> Any:
        def gradient(_: Any) -> Any:
            raise StrategyError(
                f"a gradient of what strategy.run({name}) returned was asked for, but "
                "none leads through a step; compute it in the step, by a "
                "tf.GradientTape there, and apply it there"
            )

        return tf.identity(tensor), gradient

    def guarded(value: Any) -> Any:
        is_floating = isinstance(value, tf.Tensor) and value.dtype.is_floating
        return result(value) if is_floating else value

    return [list(map(guarded, of_replica)) for of_replica in outputs]


# Attribute of a function graph: the steps that it calls, which live as long.
_STEPS = "_replicator_steps"


class Step(NamedTuple):
    name: str  # The function's.
    program: Any  # What the backend has built.
    outputs: Outputs  # The nest that it returns.


def step_of(
    steps: StepCache,
    strategy: Any,
    fn: Callable[..., Any],
    arguments: Arguments,
    runner: Runner,
) -> Step:
    """Returns the step of a function; builds it on first use."""
    # What each ``compile`` of a model makes anew: Keras writes the same step after it,
    # but for another optimizer and other variables that are trainable.
    made = getattr(runner.model, "_loss_tracker", None)  # of Keras 3
    if made is None:
        made = getattr(runner.model, "compiled_loss", None)
    step: Step | None
    key, step = steps.find(fn, made, arguments.key)
    if step is None or step.program.is_stale():
        step = _build(strategy, fn, arguments, runner)
        steps.keep(key, step, fn)
    if not tf.executing_eagerly():
        graph = _tf_compat.current_graph()
        while graph.outer_graph.building_function:
            graph = graph.outer_graph
        setattr(graph, _STEPS, [*getattr(graph, _STEPS, []), step])
    return step


def _build(
    strategy: Any, fn: Callable[..., Any], arguments: Arguments, runner: Runner
) -> Step:
    repl, model = strategy.replicator, runner.model
    num_replicas = repl.num_replicas_in_sync
    outputs = Outputs(are_whole=runner.predicts and repl.num_programs > 1)
    # Not by what converts the caller: that may be another one next time.
    called = (
        _tf_distribute.converted(fn)
        if tf.executing_eagerly()
        else _tf_distribute.converted_as_caller(fn)
    )

    @tf.autograph.experimental.do_not_convert
    def replica_step(tensors: Sequence[Any] = ()) -> list[tf.Tensor]:
        args, kwargs = arguments.packed(tensors)
        num_examples = None
        if model is not None and tensors and tensors[0].shape[:1] == [None]:
            num_examples = num_rows(tensors[0])  # which may differ between replicas
        sums = GradientSum(
            num_replicas, is_of_model=model is not None, num_examples=num_examples
        )
        with (
            _tf_distribute.replica_mode(StepReplicaContext(strategy, sums)),
            context.gradients_divided(sums.unscale),
            context.losses_weighed(sums.weight),
        ):
            if model is None or num_replicas == 1:
                result = called(*args, **kwargs)
            else:
                step = functools.partial(called, *args, **kwargs)
                result = fit.step(model, step, tensors, sums)
            if outputs.are_whole:
                result = tf.nest.map_structure(_whole, result)
            return outputs.flat(result, fn)

    name = replica_step.__qualname__ = name_of(fn)
    specs = [arguments.specs] if arguments.specs else []
    # Within a ``tf.function``, nothing could communicate.
    with _tf_distribute.outside_graphs():
        return Step(name, repl.build_step(replica_step, specs), outputs)


def _whole(value: Any) -> Any:
    is_scalar = isinstance(value, tf.Tensor) and value.shape.rank == 0
    return reductions.all_concat(value[tf.newaxis] if is_scalar else value)
