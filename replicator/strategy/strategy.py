"""A ``tf.distribute.Strategy`` that is another spelling of a replicator."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from replicator._tf import data as _tf_data
from replicator._tf import distribute as _tf_distribute
from replicator.collectives import reductions
from replicator.core import context as context_lib
from replicator.core.step import StepCache
from replicator.core.validation import format_value
from replicator.errors import StrategyError
from replicator.inputs.batches import element_of, part_of_batch, without_rows
from replicator.strategy import replica_context, verify
from replicator.strategy.steps import (
    Arguments,
    check_callbacks,
    grouped,
    is_per_replica,
    local_values,
    step_of,
    without_gradients,
)


class ReplicatorExtended(replica_context.StepExtended):
    def __init__(self, container_strategy: Any, replicator: Any) -> None:
        super().__init__(container_strategy)
        self.replicator = replicator
        self.should_checkpoint = self.should_save_summary = bool(replicator.is_chief)
        self.experimental_between_graph = bool(replicator.num_programs > 1)

    @property
    def _num_replicas_in_sync(self) -> int:
        replica = tf.distribute.get_replica_context()
        if isinstance(replica, replica_context.StepReplicaContext):
            return replica.gradient_sum.divisor
        return int(self.replicator.num_replicas_in_sync)

    @property
    def worker_devices(self) -> tuple[str, ...]:
        devices = getattr(self.replicator, "devices", None)
        return tuple(devices or replica_context.StepExtended.worker_devices)

    def _default_device_scope(self) -> Any:
        return self.replicator.context()

    def _local_results(self, val: Any) -> tuple[Any, ...]:
        return local_values(val, 1)

    def reduce_to(
        self, reduce_op: Any, value: Any, destinations: Any, options: Any = None
    ) -> Any:
        """Reduces over replicas, inside ``merge_call`` or outside steps."""
        if context_lib.in_replica_context():
            return super().reduce_to(reduce_op, value, destinations, options)
        return self._container_strategy().reduce(reduce_op, value, axis=None)

    def call_for_each_replica(
        self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None
    ) -> Any:
        if context_lib.in_replica_context():
            return super().call_for_each_replica(fn, args, kwargs)
        return self._container_strategy().run(fn, args, kwargs)


class ReplicatorStrategy(replica_context.StepStrategy):
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
        self.replicator = replicator
        self.one_replica = one_replica
        self._verifies = False
        self._steps = StepCache()

    def programs(self) -> list[tuple[str, Any]]:
        """Names and programs of the steps that were traced, for ``explain``."""
        return [(step.name, step.program) for step in self._steps.items()]

    def scope(self, *, verify: bool = False) -> Any:
        """Makes variables, models and optimizers inside it the replicator's."""
        if verify and self.one_replica is not None:
            self._verifies = True  # from this call on, for whoever enters it later

        @contextlib.contextmanager
        def explained() -> Iterator[ReplicatorStrategy]:
            # As the base class does it.
            with _explained(), self.extended._scope(self) as strategy:  # noqa: SLF001
                yield strategy

        return explained()

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
        # Within a ``tf.function``, nothing could communicate.
        repl, fn = self.replicator, getattr(fn, "python_function", None) or fn
        model, predicts = runner = _tf_distribute.runner_of(fn)
        if model is not None and model.run_eagerly:
            raise StrategyError(
                f"{type(model).__name__} was compiled with run_eagerly=True, but a "
                "step on replicas is traced; remove run_eagerly, or debug the program "
                "without a strategy"
            )
        is_of_model = model is not None or predicts
        any_size = is_of_model and repl.num_programs > 1
        args = self._split(args) if is_of_model else args
        arguments = Arguments(args, kwargs, repl.num_local_replicas, any_size=any_size)
        with _explained():
            step = step_of(self._steps, self, fn, arguments, runner)
        if tf.executing_eagerly():
            flat = repl.run_step(step.program, step.name, arguments.batches)
        else:
            flat = without_gradients(step.program.emit(arguments.batches), step.name)
        return step.outputs.grouped(flat)

    def _split(self, args: Any) -> Any:
        """Splits the batch of ``train_on_batch`` and the like, a nest of tensors."""
        # Each replica would count the same examples. Of ``predict_on_batch``, Keras
        # joins what the replicas return.
        leaves = [leaf for leaf in tf.nest.flatten(args) if leaf is not None]
        are_plain = all(
            tf.is_tensor(x) and not is_per_replica(x) and x.shape.rank for x in leaves
        )
        if self.replicator.num_replicas == 1 or not leaves or not are_plain:
            return args
        return _parts_of(args, self.replicator)

    def reduce(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
        """Reduces values over replicas, and over an axis if one is given."""
        if context_lib.in_replica_context():
            return super().reduce(reduce_op, value, axis)
        return tf.nest.map_structure(
            lambda leaf: self._reduced(
                replica_context.reduce_op_of(reduce_op), leaf, axis
            ),
            value,
        )

    def _reduced(self, op: str, value: Any, axis: Any) -> Any:
        repl = self.replicator
        own = local_values(value, repl.num_local_replicas)
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
        shapes = {str(v.shape) for v in values}
        if axis is None and len(shapes) > 1:
            raise StrategyError(
                f"strategy.reduce({op.upper()}, value, axis=None) of values of "
                f"different shapes, {', '.join(sorted(shapes))}; write axis=0, which "
                "reduces over examples as well, or strategy.gather(value, axis=0)"
            )
        return _combined(op, values, axis, tf.add_n, len(values))

    def gather(self, value: Any, axis: int) -> Any:
        """Joins values per replica along an axis, whose size may differ."""
        if context_lib.in_replica_context():
            return super().gather(value, axis)
        return tf.nest.map_structure(lambda leaf: self._gathered(leaf, axis), value)

    def _gathered(self, value: Any, axis: int) -> Any:
        repl = self.replicator
        if repl.num_programs > 1:
            return local_values(self.run(_joining(axis), args=(value,)), 1)[0]
        return tf.concat(local_values(value, repl.num_local_replicas), axis=axis)

    def experimental_distribute_dataset(
        self, dataset: Any, options: Any = None
    ) -> tf.data.Dataset:
        """Splits every global batch of a dataset over the replicas.

        With several worker processes, each reads the whole dataset and takes its part,
        so the order has to be the same on all: seed it.
        """
        repl = self.replicator
        if self._verifies:
            verify.before_training(self)
        if repl.num_programs > 1:
            if _tf_distribute.global_seed() is None:
                raise StrategyError(
                    f"each of {repl.num_programs} worker processes takes its part of "
                    "the batches of a dataset, which must have the same order on all; "
                    "write keras.utils.set_random_seed(seed) (or tf.random.set_seed) "
                    "at the start of the program"
                )
            check_callbacks(self)
        return _split_batches(dataset, repl)

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[..., Any], options: Any = None
    ) -> tf.data.Dataset:
        """Makes one pipeline per process, of batches of one replica."""
        return _take_turns(dataset_fn, self.replicator)

    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[Any], Any]
    ) -> Any:
        """Makes a value per replica from a function of the replica's context."""
        repl = self.replicator
        nests = [
            value_fn(
                tf.distribute.experimental.ValueContext(
                    repl.first_replica_id + replica, repl.num_replicas_in_sync
                )
            )
            for replica in range(repl.num_local_replicas)
        ]
        return tf.nest.map_structure(
            lambda *values: grouped(list(map(tf.convert_to_tensor, values))), *nests
        )


def _combined(
    op: str, values: list[Any], axis: Any, add: Callable[[list[Any]], Any], count: int
) -> Any:
    """The sum or mean of values of ``count`` replicas, which ``add`` adds up."""
    if axis is None:
        total = add(values)
        if op == "sum" or count == 1:
            return total
        is_integer = total.dtype.is_integer
        return total // count if is_integer else total / tf.cast(count, total.dtype)
    total = add([tf.reduce_sum(value, axis=axis) for value in values])
    if op == "sum":
        return total
    sizes = add([_size(value, axis) for value in values])
    return tf.math.truediv(total, tf.cast(sizes, total.dtype))


def _size(value: Any, axis: Any) -> Any:
    dimensions = tf.unstack(tf.shape(value))
    return math.prod(dimensions[a] for a in tf.nest.flatten(axis))


# Over workers a reduction is a step, traced once.


@functools.cache
def _reduction(op: str, axis: Any) -> Callable[[Any], Any]:
    def reduce(value: Any) -> Any:
        if axis is None and not (op == "mean" and value.dtype.is_integer):
            return reductions.all_reduce(value, op)
        count = tf.distribute.get_replica_context().num_replicas_in_sync
        return _combined(
            op, [value], axis, lambda own: reductions.all_sum(own[0]), count
        )

    reduce.__qualname__ = f"reduce({op!r})"
    return reduce


@functools.cache
def _joining(axis: int) -> Callable[[Any], Any]:
    def gather(value: Any) -> Any:
        return reductions.all_concat(value, axis)

    return gather


# Distributed datasets: ordinary ones, so that their iterators can be read in a
# ``tf.function``, as optionals, and can be saved. Elements have a part per replica.

# Attribute of such a dataset.
_IS_DISTRIBUTED = "_replicator_is_distributed"


def _batch_of(values: Sequence[Any], num_replicas: int) -> Any:
    """The parts of a batch as one value; of one replica in all, that part itself."""
    return values[0] if num_replicas == 1 else _tf_distribute.PerReplica(tuple(values))


def _split_batches(dataset: Any, repl: Any) -> tf.data.Dataset:
    """Splits batches over all replicas, and keeps the parts of those of a process."""
    if getattr(dataset, _IS_DISTRIBUTED, False):
        return dataset
    if not isinstance(dataset, tf.data.Dataset):
        raise StrategyError(
            "experimental_distribute_dataset() takes a tf.data.Dataset of global "
            f"batches, but got {format_value(dataset)}; write "
            "tf.data.Dataset.from_tensor_slices(arrays).batch(global_batch_size)"
        )
    for spec in tf.nest.flatten(dataset.element_spec):
        if _tf_data.is_none(spec):
            continue
        if not hasattr(spec, "shape"):
            raise StrategyError(
                f"the dataset yields {spec}, which has no examples that replicas could "
                "share; map it to a tensor with a row for each example"
            )
        if spec.shape.rank == 0:
            raise StrategyError(
                f"the dataset yields scalars, {dataset.element_spec}, but its elements "
                "are split over replicas; write dataset.batch(global_batch_size), or "
                "strategy.distribute_datasets_from_function(fn), whose elements are "
                "batches of one replica"
            )

    def parts(*arguments: Any) -> Any:
        return _parts_of(element_of(arguments, dataset), repl)

    return _distributed(dataset.map(parts), dataset)


@tf.autograph.experimental.do_not_convert  # which would rewrite its loops
def _parts_of(batch: Any, repl: Any) -> Any:
    """The parts of a global batch: tensors with the same number of rows, or None."""
    leaves = [leaf for leaf in tf.nest.flatten(batch) if hasattr(leaf, "shape")]
    first, count = repl.first_replica_id, repl.num_replicas
    parts = [
        part_of_batch(leaves, replica, count)
        for replica in range(first, first + repl.num_local_replicas)
    ]
    rest = iter([_batch_of(values, count) for values in zip(*parts, strict=True)])
    return tf.nest.map_structure(
        lambda leaf: next(rest) if hasattr(leaf, "shape") else None, batch
    )


def _take_turns(
    dataset_fn: Callable[[tf.distribute.InputContext], Any], repl: Any
) -> tf.data.Dataset:
    """Gives each replica of this process one element of a pipeline in turn."""
    dataset = dataset_fn(
        tf.distribute.InputContext(
            num_input_pipelines=repl.num_programs,
            input_pipeline_id=repl.worker_id if repl.num_programs > 1 else 0,
            num_replicas_in_sync=repl.num_replicas_in_sync,
        )
    )
    if not isinstance(dataset, tf.data.Dataset):
        raise StrategyError(
            "distribute_datasets_from_function() takes a function that returns a "
            f"tf.data.Dataset, but it returned {format_value(dataset)}; write def "
            "dataset_fn(ctx): return dataset.batch("
            "ctx.get_per_replica_batch_size(global_batch_size))"
        )
    count, num_local = repl.num_replicas_in_sync, repl.num_local_replicas
    if count == 1:
        return _distributed(dataset.with_options(tf.data.Options()), dataset)
    spec = dataset.element_spec
    has_any_size = all(
        isinstance(leaf, tf.TensorSpec) and leaf.shape.rank and leaf.shape[0] is None
        for leaf in tf.nest.flatten(spec)
    )

    @tf.autograph.experimental.do_not_convert
    def turn(*windows: Any) -> Any:
        window = tf.data.Dataset.zip(element_of(windows, dataset))
        if has_any_size:
            empty = tf.nest.map_structure(without_rows, spec)
            none = tf.data.Dataset.from_tensors(empty).repeat(num_local)
            window = window.concatenate(none)
        elements = [
            window.skip(replica).take(1).get_single_element()
            for replica in range(num_local)
        ]
        return tf.nest.map_structure(
            lambda *values: _batch_of(values, count), *elements
        )

    windows = dataset.window(num_local, drop_remainder=not has_any_size)
    return _distributed(windows.map(turn), dataset)


def _distributed(dataset: tf.data.Dataset, source: tf.data.Dataset) -> tf.data.Dataset:
    """Reads as much of the source ahead of a step as without a strategy."""
    if _tf_data.is_read_ahead(source):
        dataset = dataset.prefetch(1)
    result = _tf_data.without_autotune(dataset)
    setattr(result, _IS_DISTRIBUTED, True)
    return result


# What Keras and TensorFlow say, and what to write instead.
_ADVICE = {
    _tf_distribute.MIXED: (
        "an optimizer that was made outside of scope() is used inside; write "
        "`with repl.scope():` around keras.optimizers.Adam(...) too, or pass "
        'compile("adam", ...)'
    ),
    "on an unknown TensorShape": (
        "a model cannot be built, since the dataset does not say how many "
        "dimensions its elements have; write from_generator(..., "
        "output_signature=...), or dataset.map with tf.ensure_shape"
    ),
    "'NoneType' object has no attribute 'merge_call'": (
        "an optimizer was applied in scope() but in no step, where it has no "
        "replica whose gradients it could join; write strategy.run(step, "
        "args=(batch,)) with tape and update in the step, and a loop of steps "
        "around it"
    ),
}


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Explains what fails inside, in ``fit`` as well."""
    try:
        yield
    except (AttributeError, RuntimeError, ValueError) as error:
        for text, advice in _ADVICE.items():
            if text in str(error):
                raise StrategyError(advice) from error
        raise
