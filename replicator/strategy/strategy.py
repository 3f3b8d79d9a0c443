"""A ``tf.distribute.Strategy`` that is another spelling of a replicator."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import distribute as _tf_distribute
from replicator.collectives import reductions
from replicator.core import context as context_lib
from replicator.core.validation import format_value
from replicator.errors import StrategyError
from replicator.strategy import datasets, fit, verify
from replicator.strategy.datasets import grouped, is_per_replica, local_values
from replicator.strategy.replica_context import (
    StepExtended,
    StepReplicaContext,
    StepStrategy,
    reduce_op_of,
)
from replicator.strategy.steps import (
    Steps,
    arguments_of,
    trainer_of,
    without_gradients,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class ReplicatorExtended(StepExtended):
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
        devices = getattr(self.replicator, "devices", None)
        return tuple(devices or StepExtended.worker_devices)

    @property
    def should_checkpoint(self) -> bool:
        return bool(self.replicator.is_chief)

    should_save_summary = should_checkpoint

    @property
    def experimental_between_graph(self) -> bool:
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
        self._steps = Steps(self)

    def programs(self) -> list[tuple[str, Any]]:
        """Names and programs of the steps that were traced, for ``explain``."""
        return self._steps.items()

    def scope(self, *, verify: bool = False) -> Any:
        """Makes variables, models and optimizers inside it the replicator's."""
        if verify and self.one_replica is not None:
            self._verifies = True
        return _explained(self.extended._scope(self))  # noqa: SLF001 (as the base class)

    def run(
        self,
        fn: Callable[..., Any],
        args: Any = (),
        kwargs: Any = None,
        options: Any = None,
    ) -> Any:
        """Runs a function once per replica; also within a ``tf.function``."""
        if context_lib.in_replica_context():
            return super().run(fn, args, kwargs)
        if not callable(fn):
            raise StrategyError(
                f"strategy.run() takes the function of one replica, but got "
                f"{format_value(fn)}; write strategy.run(fn, args=(x, y))"
            )
        model = trainer_of(fn)
        if model is not None and model.run_eagerly:
            raise StrategyError(
                f"{type(model).__name__} was compiled with run_eagerly=True, but a "
                "step on replicas is traced; remove run_eagerly, or debug the program "
                "without a strategy"
            )
        is_of_model = model is not None or _tf_distribute.is_of_keras_trainer(fn)
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
            lambda leaf: self._reduced(reduce_op_of(reduce_op), leaf, axis), value
        )

    def _reduced(self, op: str, value: Any, axis: Any) -> Any:
        repl, own = self._repl, local_values(value, self._repl.num_local_replicas)
        if not is_per_replica(value) and len(own) > 1 and op == "sum" and axis is None:
            raise StrategyError(
                f"strategy.reduce(SUM) of {format_value(value)}, which is not a value "
                "per replica; reduce what strategy.run() returns, or multiply by "
                "strategy.num_replicas_in_sync"
            )
        if repl.num_programs > 1:
            step = _reduction(op, tuple(axis) if isinstance(axis, list) else axis)
            return local_values(self.run(step, args=(value,)), 1)[0]
        values = [v if tf.is_tensor(v) else tf.convert_to_tensor(v) for v in own]
        return _combined(op, values) if axis is None else _over_axis(op, values, axis)

    def gather(self, value: Any, axis: int) -> Any:
        """Joins values per replica along an axis, whose size may differ."""
        if context_lib.in_replica_context():
            return super().gather(value, axis)
        return tf.nest.map_structure(lambda leaf: self._gathered(leaf, axis), value)

    def _gathered(self, value: Any, axis: int) -> Any:
        repl = self._repl
        if repl.num_programs > 1:
            return local_values(self.run(_joining(axis), args=(value,)), 1)[0]
        return tf.concat(local_values(value, repl.num_local_replicas), axis=axis)

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


def _combined(op: str, values: list[Any]) -> Any:
    shapes = {str(v.shape) for v in values}
    if len(shapes) > 1:
        raise StrategyError(
            f"strategy.reduce({op.upper()}, value, axis=None) of values of different "
            f"shapes, {', '.join(sorted(shapes))}; write axis=0, which reduces over "
            "examples as well, or strategy.gather(value, axis=0)"
        )
    total = tf.add_n(values) if len(values) > 1 else tf.identity(values[0])
    if op == "sum" or len(values) == 1:
        return total
    count = tf.cast(len(values), total.dtype)
    return total // count if total.dtype.is_integer else total / count


def _over_axis(
    op: str, values: list[Any], axis: Any, add: Callable[[list[Any]], Any] = tf.add_n
) -> Any:
    total = add([tf.reduce_sum(value, axis=axis) for value in values])
    if op == "sum":
        return total
    count = add([_size(value, axis) for value in values])
    return tf.math.truediv(total, tf.cast(count, total.dtype))


def _size(value: Any, axis: Any) -> tf.Tensor:
    axes = [axis] if isinstance(axis, int) else list(axis)
    return tf.reduce_prod(
        tf.gather(tf.shape(value), [a % len(value.shape) for a in axes])
    )


# Over workers a reduction is a step, traced once.


@functools.cache
def _reduction(op: str, axis: Any) -> Callable[[Any], Any]:
    def reduce(value: Any) -> Any:
        if axis is None:
            if op == "mean" and value.dtype.is_integer:
                total = reductions.all_sum(value)
                return total // tf.distribute.get_replica_context().num_replicas_in_sync
            return reductions.all_reduce(value, op)
        return _over_axis(op, [value], axis, lambda own: reductions.all_sum(own[0]))

    reduce.__qualname__ = f"reduce({op!r})"
    return reduce


@functools.cache
def _joining(axis: int) -> Callable[[Any], Any]:
    def gather(value: Any) -> Any:
        return reductions.all_concat(value, axis)

    return gather


@contextlib.contextmanager
def _explained(scope: Any) -> Iterator[Any]:
    """A scope that explains what Keras does in it, as in ``fit``."""
    try:
        with scope as strategy:
            yield strategy
    except RuntimeError as error:
        _check_is_no_mixture(error)
        raise
    except ValueError as error:
        if "on an unknown TensorShape" not in str(error):
            raise
        raise StrategyError(
            "a model cannot be built, since the dataset does not say how many "
            "dimensions its elements have; write from_generator(..., "
            "output_signature=...), or dataset.map with tf.ensure_shape"
        ) from error
    except AttributeError as error:
        if not _tf_distribute.lacks_replica(error):
            raise
        raise StrategyError(
            "an optimizer was applied in scope() but in no step, where it has no "
            "replica whose gradients it could join; write strategy.run(step, "
            "args=(batch,)) with tape and update in the step, and a loop of steps "
            "around it"
        ) from error


def _check_is_no_mixture(error: RuntimeError) -> None:
    """Says what to write where Keras meets an optimizer of another strategy."""
    if _tf_distribute.mixes_strategies(error):
        raise StrategyError(
            "an optimizer that was made outside of scope() is used inside; write "
            "`with repl.scope():` around keras.optimizers.Adam(...) too, or pass "
            'compile("adam", ...)'
        ) from error
