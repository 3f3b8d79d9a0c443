"""The steps of ``strategy.run``: traced once, run eagerly or within a graph."""

from __future__ import annotations

import dataclasses
import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any, Protocol

import tensorflow as tf

from replicator._tf import distribute as _tf_distribute
from replicator._tf import grappler as _tf_grappler
from replicator.collectives import gathering
from replicator.inputs.batch_rows import num_rows
from replicator.step import identity
from replicator.strategy import fit
from replicator.strategy.calls import Arguments, Outputs
from replicator.strategy.gradients import GradientSum
from replicator.strategy.replica_context import entered_by
from replicator.validation.user_functions import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

# Attribute of a function graph: the steps that it calls, which live as long.
_STEPS = "_replicator_steps"


class StepProgram(Protocol):
    """A step that a backend has built."""

    def emit(self, batches: Sequence[Any]) -> list[Sequence[Any]]:
        """Emits the step in the current graph; returns the tensors by replica."""

    def is_stale(self) -> bool:
        """Whether it has to be built again."""


class StepBackend(Protocol):
    """What builds and runs steps: a replicator."""

    def build_step(self, step_fn: Callable[..., Any], specs: list[Any]) -> Any:
        """Builds the program of a step."""

    def run_step(self, program: Any, name: str, batches: Sequence[Any]) -> Any:
        """Runs it once."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """A function of the user's, built for arguments of one type."""

    name: str  # The function's.
    program: Any  # What the backend has built.
    outputs: Outputs  # The nest that it returns.


class Steps:
    """The steps of one strategy.

    A step is forgotten with its function; graphs that call it keep it.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        num_replicas: int,
        *,
        is_over_programs: bool = False,
    ) -> None:
        """Prepares."""
        self._strategy = weakref.ref(strategy)
        self._num_replicas = num_replicas
        self._is_over_programs = is_over_programs
        self._steps: dict[Hashable, Step] = {}
        self._held: dict[Hashable, list[Any]] = {}

    def items(self) -> list[tuple[str, Any]]:
        """Names and programs, in the order of building."""
        return [(step.name, step.program) for step in self._steps.values()]

    def of(
        self, backend: StepBackend, fn: Callable[..., Any], arguments: Arguments
    ) -> Step:
        """Returns the step of a function; builds it on first use."""
        fn = _plain(fn)
        function = identity.identity(fn)
        key = function, _compilation(fn), arguments.key, _tf_grappler.settings()
        step = self._steps.get(key)
        if step is None or step.program.is_stale():
            # Not by what converts the caller: that may be another one next time.
            called = (
                _tf_distribute.converted(fn)
                if tf.executing_eagerly()
                else _tf_distribute.converted_as_caller(fn)
            )
            with _tf_distribute.outside_graphs():
                step = self._build(backend, fn, called, arguments)
            self._steps[key] = step
            self._hold(function, fn)
        if not tf.executing_eagerly():
            graph = _tf_distribute.outermost_graph()
            kept = getattr(graph, _STEPS, [])
            setattr(graph, _STEPS, [*kept, step])
        return step

    def _build(
        self,
        backend: StepBackend,
        fn: Callable[..., Any],
        called: Callable[..., Any],
        arguments: Arguments,
    ) -> Step:
        outputs = Outputs()
        strategy = self._strategy()
        num_replicas, is_over_programs = self._num_replicas, self._is_over_programs

        @tf.autograph.experimental.do_not_convert
        def replica_step(tensors: Sequence[Any] = ()) -> list[tf.Tensor]:
            args, kwargs = arguments.packed(tensors)
            sums = GradientSum(
                num_replicas,
                is_of_model=is_trainer_step(fn),
                num_examples=_num_examples(fn, tensors),
            )
            model = trainer_of(fn) if num_replicas > 1 else None
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
        program = backend.build_step(replica_step, specs)
        return Step(name=name_of(fn), program=program, outputs=outputs)

    def _hold(self, function: Hashable, fn: Callable[..., Any]) -> None:
        if function in self._held:
            return
        steps = weakref.ref(self)

        def forget(_: Any) -> None:
            living = steps()
            if living is not None:
                living._forget(function)  # noqa: SLF001 (of this class)

        self._held[function] = [_held(part, forget) for part in identity.parts(fn)]

    def _forget(self, function: Hashable) -> None:
        self._held.pop(function, None)
        for key in [k for k in self._steps if k[0] == function]:  # type: ignore[index]
            del self._steps[key]


def _held(part: Any, callback: Callable[[Any], None]) -> Any:
    """Refers to an object weakly if its type allows it."""
    try:
        return weakref.ref(part, callback)
    except TypeError:
        return part


def trainer_of(fn: Callable[..., Any]) -> Any:
    """The model of Keras or tf_keras whose ``fit`` or ``evaluate`` runs ``fn``."""
    keras = sys.modules.get("keras")
    owner = getattr(fn, "__self__", None)
    if keras is not None and isinstance(owner, keras.Model):
        return owner
    return _tf_distribute.tf_keras_trainer(fn)


def is_trainer_step(fn: Callable[..., Any]) -> bool:
    """Whether a function is a step of ``fit`` or ``evaluate`` of a Keras model."""
    return trainer_of(fn) is not None


def _whole(value: Any) -> Any:
    is_scalar = isinstance(value, tf.Tensor) and value.shape.rank == 0
    if is_scalar:
        return gathering.all_concat(value[tf.newaxis])
    return gathering.all_concat(value)


def _num_examples(fn: Callable[..., Any], tensors: Sequence[Any]) -> Any:
    """Those of a replica in a step of a Keras model, if they may differ."""
    if not is_trainer_step(fn) or not tensors:
        return None
    first = tensors[0]
    if first.shape.rank is None or first.shape.rank == 0:
        return None
    return num_rows(first) if first.shape[0] is None else None


def _compilation(fn: Callable[..., Any]) -> Any:
    """What each ``compile`` of a Keras model makes anew; None of other functions.

    Keras writes the same step after it, but for another optimizer and other variables
    that are trainable.
    """
    model = trainer_of(fn)
    made = getattr(model, "_loss_tracker", None)  # of Keras 3
    return getattr(model, "compiled_loss", None) if made is None else made


def _plain(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function inside a ``tf.function``, in which nothing could communicate."""
    inner = getattr(fn, "python_function", None)
    return fn if inner is None else inner
