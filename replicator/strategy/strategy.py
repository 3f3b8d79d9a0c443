"""A ``tf.distribute.Strategy`` that is another spelling of a replicator."""

from __future__ import annotations

import dataclasses
import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any, Protocol

import tensorflow as tf

from replicator._tf import dispatch as _tf_dispatch
from replicator._tf import distribute as _tf_distribute
from replicator.collectives import reductions
from replicator.core import context as context_lib
from replicator.core import step as step_lib
from replicator.core.validation import format_value, name_of
from replicator.errors import StrategyError
from replicator.inputs.context import num_rows
from replicator.strategy import datasets, fit, replica_context, verify
from replicator.strategy.datasets import grouped, is_per_replica, local_values
from replicator.strategy.extended import StepExtended
from replicator.strategy.gradients import GradientSum
from replicator.strategy.replica_context import (
    Arguments,
    Outputs,
    StepReplicaContext,
    StepStrategy,
    arguments_of,
    entered_by,
    without_gradients,
)

if TYPE_CHECKING:
    import types
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
        function = step_lib.identity(fn)
        key = (
            function,
            _compilation(fn),
            arguments.key,
            _tf_dispatch.optimizer_settings(),
        )
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
        self._held[function] = [
            step_lib.hold(part, self, Steps._forget, function)
            for part in step_lib.parts_of(fn)
        ]

    def _forget(self, function: Hashable) -> None:
        self._held.pop(function, None)
        for key in [k for k in self._steps if k[0] == function]:  # type: ignore[index]
            del self._steps[key]


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
        return reductions.all_concat(value[tf.newaxis])
    return reductions.all_concat(value)


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


class ReplicatorExtended(StepExtended):
    """The extended of a replicator's strategy."""

    def __init__(self, container_strategy: Any, replicator: Any) -> None:
        super().__init__(container_strategy)
        self.replicator = replicator

    @property
    def _num_replicas_in_sync(self) -> int:
        replica = tf.distribute.get_replica_context()
        if isinstance(replica, StepReplicaContext):
            return replica.gradient_sum.divisor
        return int(self.replicator.num_replicas_in_sync)

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The device of each local replica."""
        found = getattr(self.replicator, "devices", None)
        return tuple(found or super().worker_devices)

    @property
    def should_checkpoint(self) -> bool:
        """Whether this process writes checkpoints."""
        return bool(self.replicator.is_chief)

    should_save_summary = should_checkpoint

    @property
    def experimental_between_graph(self) -> bool:
        """Whether several processes run the program."""
        return self._in_multi_worker_mode()

    def _in_multi_worker_mode(self) -> bool:
        return bool(self.replicator.num_programs > 1)

    def _default_device_scope(self) -> Any:
        return self.replicator.context()

    def _local_results(self, val: Any) -> tuple[Any, ...]:
        return self._container_strategy().experimental_local_results(val)

    def reduce_to(
        self, reduce_op: Any, value: Any, destinations: Any, options: Any = None
    ) -> Any:
        """Reduces over replicas, inside ``merge_call`` or outside steps."""
        if context_lib.in_replica_context():
            return super().reduce_to(reduce_op, value, destinations, options)
        strategy = self._container_strategy()
        return tf.nest.map_structure(
            lambda leaf: strategy.reduce(reduce_op, leaf, axis=None), value
        )

    def call_for_each_replica(
        self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls a function as each replica."""
        if context_lib.in_replica_context():
            return super().call_for_each_replica(fn, args, kwargs)
        return self._container_strategy().run(fn, args, kwargs)


class ReplicatorStrategy(StepStrategy):
    """What ``repl.as_strategy()`` returns.

    Its steps are traced, like those of ``repl.run``. Losses are divided by the number
    of replicas and optimizers sum gradients, as ``tf.distribute`` has it: Keras' losses
    and ``tf.nn.compute_average_loss`` do that by themselves. Steps of ``fit`` are those
    of one device: nothing is divided, and optimizers average.

    Attributes:
      replicator: Whose strategy it is.
      one_replica: Makes the replicator that ``verify_fit`` compares with; None if there
        is one replica.
    """

    def __init__(
        self, replicator: Any, one_replica: Callable[[], Any] | None = None
    ) -> None:
        super().__init__(ReplicatorExtended(self, replicator))
        _tf_distribute.builds_from_specs(self)
        self._repl = self.replicator = replicator
        self.one_replica = one_replica
        self._verifies = False
        self._steps = Steps(
            self,
            replicator.num_replicas_in_sync,
            is_over_programs=replicator.num_programs > 1,
        )
        self._reductions = replica_context.Reductions()

    def programs(self) -> list[tuple[str, Any]]:
        """Names and programs of the steps that were traced, for ``explain``."""
        return self._steps.items()

    def scope(self, *, verify: bool = False) -> Any:
        """Makes variables, models and optimizers inside it the replicator's."""
        if verify and self.one_replica is not None:
            self._verifies = True
        return _Scope(self.extended._scope(self))  # noqa: SLF001 (as the base class does)

    def run(
        self,
        fn: Callable[..., Any],
        args: Any = (),
        kwargs: Any = None,
        options: Any = None,
    ) -> Any:
        """Runs a function once per replica; also within a ``tf.function``."""
        del options
        if context_lib.in_replica_context():
            return super().run(fn, args, kwargs)
        if not callable(fn):
            raise StrategyError(
                f"strategy.run() takes the function of one replica, but got "
                f"{format_value(fn)}; write strategy.run(fn, args=(x, y))"
            )
        is_of_model = is_trainer_step(fn)
        if is_of_model:
            _check_is_traced(fn)
        is_of_model = is_of_model or _tf_distribute.is_of_keras_trainer(fn)
        if is_of_model:
            args = self._split(args)
        arguments = arguments_of(
            args,
            kwargs,
            self._repl.num_local_replicas,
            any_size=is_of_model and self._repl.num_programs > 1,
        )
        try:
            step = self._steps.of(self._repl, fn, arguments)
        except RuntimeError as error:
            _check_is_no_mixture(error)
            raise
        if tf.executing_eagerly():
            flat = self._repl.run_step(step.program, step.name, arguments.batches)
        else:
            flat = without_gradients(step.program.emit(arguments.batches), step.name)
        return step.outputs.grouped(flat)

    def _split(self, args: Any) -> Any:
        """Splits the batch of ``train_on_batch`` and the like: a nest of plain tensors.

        Each replica would count the same examples. Of ``predict_on_batch``, Keras joins
        what the replicas return.
        """
        leaves = [leaf for leaf in tf.nest.flatten(args) if leaf is not None]
        repl = self._repl
        are_plain = all(
            tf.is_tensor(x) and not is_per_replica(x) and x.shape.rank for x in leaves
        )
        if repl.num_replicas == 1 or not leaves or not are_plain:
            return args
        return datasets.parts_of(
            args, repl.num_replicas, repl.first_replica_id, repl.num_local_replicas
        )

    def reduce(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
        """Reduces values over replicas, and over an axis if one is given."""
        if context_lib.in_replica_context():
            return super().reduce(reduce_op, value, axis)
        return tf.nest.map_structure(
            lambda leaf: self._reductions.reduce(
                self, self._repl, reduce_op, leaf, axis
            ),
            value,
        )

    def gather(self, value: Any, axis: int) -> Any:
        """Joins values per replica along an axis, whose size may differ."""
        if context_lib.in_replica_context():
            return super().gather(value, axis)
        return tf.nest.map_structure(
            lambda leaf: self._reductions.gather(self, self._repl, leaf, axis), value
        )

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """The values of the replicas of this process."""
        return local_values(value, 1)

    def experimental_distribute_dataset(
        self, dataset: Any, options: Any = None
    ) -> tf.data.Dataset:
        """Splits every global batch of a dataset over the replicas.

        With several worker processes, each reads the whole dataset and takes its part,
        so the order has to be the same on all: seed it.
        """
        del options
        repl = self._repl
        if self._verifies:
            verify.before_training(self)
        if repl.num_programs > 1 and not _tf_distribute.has_global_seed():
            raise StrategyError(
                f"each of {repl.num_programs} worker processes takes its part of the "
                "batches of a dataset, which must have the same order on all; write "
                "keras.utils.set_random_seed(seed) (or tf.random.set_seed) at the "
                "start of the program"
            )
        if repl.num_programs > 1:
            fit.check_callbacks(self, repl)
        return datasets.split(
            dataset,
            repl.num_replicas,
            repl.first_replica_id,
            repl.num_local_replicas,
        )

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[..., Any], options: Any = None
    ) -> tf.data.Dataset:
        """Makes one pipeline per process, of batches of one replica."""
        del options
        repl = self._repl
        context = tf.distribute.InputContext(
            num_input_pipelines=repl.num_programs,
            input_pipeline_id=repl.worker_id if repl.num_programs > 1 else 0,
            num_replicas_in_sync=repl.num_replicas_in_sync,
        )
        return datasets.take_turns(dataset_fn, context, repl.num_local_replicas)

    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[Any], Any]
    ) -> Any:
        """Makes a value per replica from a function of the replica's context."""
        repl = self._repl
        contexts = [
            tf.distribute.experimental.ValueContext(
                repl.first_replica_id + replica, repl.num_replicas_in_sync
            )
            for replica in range(repl.num_local_replicas)
        ]
        nests = [value_fn(context) for context in contexts]
        return tf.nest.map_structure(
            lambda *values: grouped(list(map(tf.convert_to_tensor, values))), *nests
        )


class _Scope:
    """A scope that explains what Keras does in it, as in ``fit``."""

    def __init__(self, scope: Any) -> None:
        self._scope = scope

    def __enter__(self) -> Any:
        return self._scope.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self._scope.__exit__(kind, error, trace)
        _check_is_no_mixture(error)
        if isinstance(error, ValueError) and "on an unknown TensorShape" in str(error):
            raise StrategyError(
                "a model cannot be built, since the dataset does not say how many "
                "dimensions its elements have; write from_generator(..., "
                "output_signature=...), or dataset.map with tf.ensure_shape"
            ) from error
        if isinstance(error, AttributeError) and _tf_distribute.lacks_replica(error):
            raise StrategyError(
                "an optimizer was applied in scope() but in no step, where it has no "
                "replica whose gradients it could join; write strategy.run(step, "
                "args=(batch,)) with tape and update in the step, and a loop of steps "
                "around it"
            ) from error


def _check_is_no_mixture(error: BaseException | None) -> None:
    """Says what to write where Keras meets an optimizer of another strategy."""
    if isinstance(error, RuntimeError) and _tf_distribute.mixes_strategies(error):
        raise StrategyError(
            "an optimizer that was made outside of scope() is used inside; write "
            "`with repl.scope():` around keras.optimizers.Adam(...) too, or pass "
            'compile("adam", ...)'
        ) from error


def _check_is_traced(fn: Any) -> None:
    """Rejects the step of a Keras model that is to run eagerly."""
    model = trainer_of(fn)
    if model.run_eagerly:
        raise StrategyError(
            f"{type(model).__name__} was compiled with run_eagerly=True, but a "
            "step on replicas is traced; remove run_eagerly, or debug the program "
            "without a strategy"
        )
