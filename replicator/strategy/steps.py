"""The steps of a strategy: a function of the user's for arguments of one type.

The arguments are a nest of values per replica, of values that all replicas get, and of
Python objects. The step that the engine traces takes the tensors among them, as a list,
and returns those of the result.
"""

from __future__ import annotations

import dataclasses
import functools
import weakref
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from replicator._tf import distribute as _tf_distribute
from replicator.collectives import reductions
from replicator.core import step as step_lib
from replicator.core.step import check_outputs
from replicator.core.validation import name_of
from replicator.errors import StrategyError
from replicator.inputs.batches import num_rows
from replicator.strategy import fit
from replicator.strategy.datasets import grouped, is_per_replica, local_values
from replicator.strategy.replica_context import GradientSum, entered_by

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence


_TENSORS = (tf.Tensor, tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices, np.ndarray)
_ARRAYS = (np.ndarray, np.generic, bool, int, float, str)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """The arguments of a call, by what the step has to be traced for."""

    structure: Any  # The nest of ``args`` and ``kwargs``.
    fixed: tuple[Any, ...]  # Its leaves; None in the places of tensors.
    places: tuple[int, ...]  # Places of tensors among the leaves.
    batches: tuple[tuple[Any, ...], ...]  # By local replica, its tensors.
    specs: tuple[Any, ...]  # The type of each tensor that fits all local replicas.
    are_any_size: bool = False  # Whether the number of rows is no part of these types.

    @property
    def key(self) -> Hashable:
        """Equal for calls that one traced step fits, if the function is the same."""
        own = tuple(
            tuple(_spec(value, any_size=self.are_any_size) for value in batch)
            for batch in self.batches
        )
        fixed = tuple(
            leaf if type(leaf) in (bool, int, float, str, type(None)) else id(leaf)
            for leaf in self.fixed
        )
        kinds = tuple(type(leaf) for leaf in self.fixed)
        nest = str(tf.nest.map_structure(lambda _: 0, self.structure))
        return nest, fixed, kinds, self.places, own

    def packed(self, tensors: Sequence[Any]) -> tuple[Any, Any]:
        leaves = list(self.fixed)
        for index, tensor in zip(self.places, tensors, strict=True):
            leaves[index] = tensor
        args, kwargs = tf.nest.pack_sequence_as(self.structure, leaves)
        return args, kwargs


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

    def is_floating(value: Any) -> bool:
        return isinstance(value, tf.Tensor) and value.dtype.is_floating

    return [
        [result(tensor) if is_floating(tensor) else tensor for tensor in of_replica]
        for of_replica in outputs
    ]


def arguments_of(
    args: Any, kwargs: Any, num_local: int, *, any_size: bool = False
) -> Arguments:
    structure = (tuple(args), dict(kwargs or {}))
    fixed: list[Any] = []
    places: list[int] = []
    values: list[tuple[Any, ...]] = []
    specs: list[tf.TypeSpec] = []
    for index, leaf in enumerate(tf.nest.flatten(structure)):
        is_tensor = isinstance(leaf, _TENSORS) or is_per_replica(leaf)
        fixed.append(None if is_tensor else leaf)
        if not is_tensor:
            continue
        places.append(index)
        own = local_values(leaf, num_local)
        if len(own) != num_local:
            raise StrategyError(
                f"an argument of strategy.run() has {len(own)} values, but there are "
                f"{num_local} replicas in this process; pass what the strategy's "
                "datasets and steps return"
            )
        values.append(
            tuple(
                tf.convert_to_tensor(value) if isinstance(value, _ARRAYS) else value
                for value in own
            )
        )
        first, *others = (_spec(value, any_size=any_size) for value in values[-1])
        common = first.most_specific_common_supertype(others) if others else first
        if common is None:
            raise StrategyError(
                f"an argument of strategy.run() has another type on each replica: "
                f"{[first, *others]}; give all replicas the same type and rank"
            )
        specs.append(common)
    return Arguments(
        structure=structure,
        fixed=tuple(fixed),
        places=tuple(places),
        batches=tuple(tuple(v[r] for v in values) for r in range(num_local)),
        specs=tuple(specs),
        are_any_size=any_size,
    )


def _spec(value: Any, *, any_size: bool) -> tf.TypeSpec:
    spec = tf.type_spec_from_value(value)
    if any_size and isinstance(spec, tf.TensorSpec) and spec.shape.rank:
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
    return spec


class Outputs:
    """The nest that a step returns, which is known once it is traced."""

    def __init__(self) -> None:
        # Whether each replica returns what all of them have computed.
        self.are_whole = False
        self._structure: Any = None
        self._specs: list[tuple[int, Any]] = []  # Of tensors, by their places.

    def flat(self, outputs: Any, step_fn: Callable[..., Any]) -> list[tf.Tensor]:
        """Takes the nest of a replica apart into dense tensors."""
        self._structure = tf.nest.map_structure(lambda _: 0, outputs)
        self._specs, tensors = [], []
        for index, leaf in enumerate(tf.nest.flatten(outputs)):
            if leaf is None or isinstance(leaf, tf.Operation):
                continue
            is_composite = isinstance(leaf, _TENSORS) and not isinstance(
                leaf, tf.Tensor
            )
            value = leaf if is_composite else check_outputs(leaf, step_fn)
            self._specs.append((index, tf.type_spec_from_value(value)))
            tensors += tf.nest.flatten(value, expand_composites=True)
        return tensors

    def grouped(self, flat: Sequence[Sequence[Any]]) -> Any:
        """The nest of all replicas, from the tensors of each."""
        leaves = [None] * len(tf.nest.flatten(self._structure))
        rest = [iter(tensors) for tensors in (flat[:1] if self.are_whole else flat)]
        for index, spec in self._specs:
            size = len(tf.nest.flatten(spec, expand_composites=True))
            leaves[index] = grouped(
                [
                    tf.nest.pack_sequence_as(
                        spec, [next(r) for _ in range(size)], expand_composites=True
                    )
                    for r in rest
                ]
            )
        return tf.nest.pack_sequence_as(self._structure, leaves)


# Attribute of a function graph: the steps that it calls, which live as long.
_STEPS = "_replicator_steps"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    name: str  # The function's.
    program: Any  # What the backend has built.
    outputs: Outputs  # The nest that it returns.


# A step is forgotten with its function; graphs that call it keep it.
class Steps:
    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = weakref.ref(strategy)
        self._steps = step_lib.StepCache()

    def items(self) -> list[tuple[str, Any]]:
        return [(step.name, step.program) for step in self._steps.items()]

    def of(self, repl: Any, fn: Callable[..., Any], arguments: Arguments) -> Step:
        """Returns the step of a function; builds it on first use."""
        # Within a ``tf.function``, nothing could communicate.
        fn = getattr(fn, "python_function", None) or fn
        step: Step | None
        key, step = self._steps.find(fn, _compilation(fn), arguments.key)
        if step is None or step.program.is_stale():
            # Not by what converts the caller: that may be another one next time.
            called = (
                _tf_distribute.converted(fn)
                if tf.executing_eagerly()
                else _tf_distribute.converted_as_caller(fn)
            )
            with _tf_distribute.outside_graphs():
                step = self._build(repl, fn, called, arguments)
            self._steps.keep(key, step, fn)
        if not tf.executing_eagerly():
            graph = _tf_distribute.outermost_graph()
            kept = getattr(graph, _STEPS, [])
            setattr(graph, _STEPS, [*kept, step])
        return step

    def _build(
        self,
        repl: Any,
        fn: Callable[..., Any],
        called: Callable[..., Any],
        arguments: Arguments,
    ) -> Step:
        outputs, strategy = Outputs(), self._strategy()
        num_replicas = repl.num_replicas_in_sync
        is_over_programs = repl.num_programs > 1
        trainer = trainer_of(fn)

        @tf.autograph.experimental.do_not_convert
        def replica_step(tensors: Sequence[Any] = ()) -> list[tf.Tensor]:
            args, kwargs = arguments.packed(tensors)
            # Of a model, replicas may have different numbers of examples.
            first: Any = tensors[0] if trainer is not None and tensors else None
            has_rows = first is not None and bool(first.shape.rank)
            may_differ = has_rows and first.shape[0] is None
            sums = GradientSum(
                num_replicas,
                is_of_model=trainer is not None,
                num_examples=num_rows(first) if may_differ else None,
            )
            model = trainer if num_replicas > 1 else None
            with entered_by(strategy, sums):
                if model is None:
                    result = called(*args, **kwargs)
                else:
                    step = functools.partial(called, *args, **kwargs)
                    result = fit.step(model, step, tensors, sums)
                if (
                    model is None
                    and is_over_programs
                    and _tf_distribute.is_of_keras_trainer(fn)
                ):
                    outputs.are_whole = True
                    result = tf.nest.map_structure(_whole, result)
                return outputs.flat(result, fn)

        replica_step.__qualname__ = name_of(fn)
        specs = [list(arguments.specs)] if arguments.specs else []
        program = repl.build_step(replica_step, specs)
        return Step(name=name_of(fn), program=program, outputs=outputs)


def trainer_of(fn: Callable[..., Any]) -> Any:
    """The model of Keras or tf_keras whose ``fit`` or ``evaluate`` runs ``fn``."""
    owner = getattr(fn, "__self__", None)
    is_model = isinstance(owner, keras.Model)
    return owner if is_model else _tf_distribute.tf_keras_trainer(fn)


def _whole(value: Any) -> Any:
    is_scalar = isinstance(value, tf.Tensor) and value.shape.rank == 0
    return reductions.all_concat(value[tf.newaxis] if is_scalar else value)


def _compilation(fn: Callable[..., Any]) -> Any:
    """What each ``compile`` of a Keras model makes anew; None of other functions."""
    # Keras writes the same step after it, but for another optimizer and other variables
    # that are trainable.
    model = trainer_of(fn)
    made = getattr(model, "_loss_tracker", None)  # of Keras 3
    return getattr(model, "compiled_loss", None) if made is None else made
