"""The steps of a strategy, those of ``fit`` included: what replicas run of a function.

The arguments are a nest of values per replica, of values that all replicas get, and of
Python objects. The step that the engine traces takes the tensors among them, as a list,
and returns those of the result.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import distribute as _tf_distribute
from replicator._tf import keras_parts as _tf_keras_parts
from replicator._tf.compat import altered, replaced
from replicator.collectives import reductions
from replicator.collectives.layers import CrossReplicaBatchNormalization
from replicator.core import context
from replicator.core.step import StepCache, check_outputs
from replicator.core.validation import name_of
from replicator.errors import StrategyError
from replicator.inputs.batches import num_rows
from replicator.optimizer.wrapper import ReplicatedOptimizer
from replicator.strategy.replica_context import (
    GradientSum,
    StepReplicaContext,
    map_some,
)
from replicator.variables.kinds import Kind, declare_summed, declared_kind, is_summed

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


def without_gradients(outputs: Sequence[Sequence[Any]], name: str) -> list[list[Any]]:
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
    runner: _tf_distribute.Runner,
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
    strategy: Any,
    fn: Callable[..., Any],
    arguments: Arguments,
    runner: _tf_distribute.Runner,
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
            context.holding("weight", sums.weight),  # losses count by their examples
        ):
            if model is None or num_replicas == 1:
                result = called(*args, **kwargs)
            else:
                step = functools.partial(called, *args, **kwargs)
                result = _fit_step(model, step, tensors, sums)
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


# The step of ``fit`` and ``evaluate``. Data parallelism is the mean, over examples, of
# what replicas make of their parts: of gradients, of numbers that a step gives to
# metrics, and of logs. Metrics are asked of the sums of all replicas. A quotient of
# sums over examples, as of a loss by token, is divided by the sum of all.
# ``Replicator.verify_fit`` measures whether a step is more.

# Operations that pass a sum on, or a sum and a constant.
_PASSED_ON = frozenset({"Cast", "Identity"})
_WITH_CONSTANT = {"AddV2": tf.add, "Maximum": tf.maximum}
_OF_SHAPE = frozenset({"Const", "Prod", "Size", "StridedSlice"})


def _fit_step(
    model: Any, called: Callable[[], Any], batch: Sequence[Any], gradients: GradientSum
) -> Any:
    """Calls the step of a model in its trace; returns the logs of all replicas."""
    _check_reductions(model)
    part = _Part(batch, gradients)
    with contextlib.ExitStack() as stack:
        for kind in _tf_keras_parts.numeric_metrics():
            stack.enter_context(replaced(kind, "update_state", part.counted))
        stack.enter_context(replaced(*_tf_keras_parts.REDUCTION, part.reduced))
        for owner, name in _tf_keras_parts.DIVISIONS:
            stack.enter_context(replaced(owner, name, part.quotient))
        if not any(isinstance(x, ReplicatedOptimizer) for x in optimizers_of(model)):
            stack.enter_context(
                replaced(*_tf_keras_parts.GRADIENT, gradients.tape_gradients)
            )
        for metric in list(_each(model.metrics)):
            for held in _plain(metric).values():  # sums, as those of ``add_variable``
                is_declared = held.synchronization != tf.VariableSynchronization.AUTO
                if held.dtype.is_floating and not (held.trainable or is_declared):
                    declare_summed(held)
            stack.enter_context(part.joining(metric))
        result = called()
    if gradients.has_updated:
        own = own_statistics(model)
        if own:
            more = f" and {len(own) - 1} more" if len(own) > 1 else ""
            warnings.warn(
                f"{own[0]!r}{more} of {type(model).__name__} normalizes each replica's "
                "examples by their own statistics; for those of the whole batch, as "
                "one device has, write keras.layers.BatchNormalization("
                "synchronized=True)",
                stacklevel=1,
            )
    leaves = [_value(leaf) for leaf in tf.nest.flatten(result)]
    are_own = [
        isinstance(leaf, tf.Tensor)
        and leaf.dtype.is_floating
        and leaf.ref() not in part.joined
        for leaf in leaves
    ]
    means = map_some(gradients.mean, leaves, are_own)
    return tf.nest.pack_sequence_as(result, means)


def optimizers_of(model: Any) -> list[Any]:
    """The optimizers that a model of Keras holds, each once."""
    optimizers = filter(_tf_compat.is_optimizer, _leaves(list(vars(model).values())))
    return list({id(one): one for one in optimizers}.values())


class _Part:
    """The examples of one replica, as a part of those of all: sums, means, metrics."""

    def __init__(self, batch: Sequence[Any], gradients: GradientSum) -> None:
        leaves = tf.nest.flatten(list(batch), expand_composites=True)
        self._sources = {leaf.op for leaf in leaves if leaf.shape.rank != 0}
        self._gradients = gradients
        self._is_reduced = self._is_joining = False
        # References of results of metrics, which are the same on all replicas.
        self.joined: set[Any] = set()

    def reduced(self, reduce: Any, values: Any, *args: Any, **options: Any) -> Any:
        """Leaves the number of a loss function to what has divided it."""
        is_number = tf.convert_to_tensor(values).shape.rank == 0
        with altered(self, _is_reduced=is_number):
            return reduce(values, *args, **options)

    def counted(
        self, update: Any, metric: Any, values: Any, sample_weight: Any = None
    ) -> Any:
        """Has a number that a step gives to a metric count by its examples."""
        is_number = isinstance(values, tf.Tensor) and values.shape.rank == 0
        if not is_number or not values.dtype.is_floating:
            return update(metric, values, sample_weight)
        weight = self._gradients.weight()
        if weight is not None:  # a mean over no examples is no number
            has_examples = tf.cast(weight > 0.0, values.dtype)
            values = tf.math.multiply_no_nan(values, has_examples)
        if sample_weight is None:
            sample_weight = self._gradients.share(values.dtype)
        return update(metric, values, sample_weight)

    def quotient(self, divide: Any, x: Any, y: Any, name: str | None = None) -> Any:
        """Divides a sum over examples by the share of the sum of all replicas."""
        is_scalar = isinstance(y, tf.Tensor) and y.shape.rank == 0
        is_scalar = is_scalar and not self._is_reduced
        if is_scalar and y.dtype.is_floating and _is_sum(x):
            whole = self._whole_batch(y)
            if whole is not None:
                share = self._gradients.share(y.dtype)
                y = tf.where(share > 0, whole * share, whole)
        return divide(x, y, name=name)

    def _whole_batch(self, tensor: tf.Tensor) -> tf.Tensor | None:
        """A sum over the examples of all replicas; None if it is no such sum."""
        op = tensor.op
        if op.graph is not _tf_compat.current_graph():
            return None
        if op.type == "Sum":
            is_own = _is_of_all(op) and _tf_compat.depends_on(
                op.inputs[0], self._sources
            )
            return reductions.all_sum(tensor) if is_own else None
        if op.type in _PASSED_ON:
            whole = self._whole_batch(op.inputs[0])
            return None if whole is None else tf.cast(whole, tensor.dtype)
        for one, other in zip(op.inputs, reversed(op.inputs), strict=True):
            if op.type in _WITH_CONSTANT and _tf_compat.constant_of(other) is not None:
                whole = self._whole_batch(one)
                return None if whole is None else _WITH_CONSTANT[op.type](whole, other)
        return None

    def joining(self, metric: Any) -> contextlib.AbstractContextManager[None]:
        """Has a metric ask for the sums of all replicas when it is asked."""
        graph, ask = _tf_compat.current_graph(), metric.result

        @tf.autograph.experimental.do_not_convert
        def result(*args: Any, **options: Any) -> Any:
            if self._is_joining or _tf_compat.current_graph() is not graph:
                return ask(*args, **options)
            plain = {n: v for n, v in _plain(metric).items() if _is_part(v)}
            of_keras: Any = [
                one
                for one in metric.variables
                if not isinstance(one, tf.Variable)
                if _is_part(_tf_compat.unwrap(one))
            ]
            parts = [tf.convert_to_tensor(one) for one in [*plain.values(), *of_keras]]
            sums = reductions.all_sum(parts) if parts else []
            totals = dict(zip(plain, sums[: len(plain)], strict=True))
            of_keras = zip(of_keras, sums[len(plain) :], strict=True)
            with (
                altered(self, _is_joining=True),
                altered(metric, **totals),
                keras.StatelessScope(of_keras),
            ):
                results = tf.nest.map_structure(_value, ask(*args, **options))
            leaves = tf.nest.flatten(results)
            self.joined |= {x.ref() for x in leaves if isinstance(x, tf.Tensor)}
            return results

        return altered(metric, result=result)


def _is_of_all(op: Any) -> bool:
    """Whether a reduction leaves a single number of all that it gets."""
    rank, axes = op.inputs[0].shape.rank, tf.get_static_value(op.inputs[1])
    return bool(rank) and axes is not None and len({*axes.ravel() % rank}) == rank


def _is_sum(value: Any) -> bool:
    """Whether a number is a multiple of a sum over examples, or of their number."""
    if not isinstance(value, tf.Tensor):
        return True  # of Python, as 1 in 1 / tf.reduce_sum(mask)
    op = value.op
    if op.type == "Mul":
        constants = [_tf_compat.constant_of(one) is not None for one in op.inputs]
        return any(constants) and all(map(_is_sum, op.inputs))
    if op.type in (*_PASSED_ON, "Neg"):
        return _is_sum(op.inputs[0])
    return op.type in _OF_SHAPE or (op.type == "Sum" and _is_of_all(op))


def _plain(metric: Any) -> dict[str, Any]:
    return {n: v for n, v in vars(metric).items() if isinstance(v, tf.Variable)}


def _is_part(variable: Any) -> bool:
    return declared_kind(variable) is Kind.LOCAL and is_summed(variable)


def _each(metrics: Iterable[Any]) -> Iterator[Any]:
    """Metrics, and those that one holds in place of it, as of ``compile``."""
    for metric in metrics:
        inner = list(getattr(metric, "metrics", None) or ())
        yield from _each(inner) if inner else (metric,)


def _value(leaf: Any) -> Any:
    """The value of a variable, which a step or a metric may return as it is."""
    inner = _tf_compat.unwrap(leaf)
    return tf.convert_to_tensor(leaf) if isinstance(inner, tf.Variable) else leaf


def _check_reductions(model: Any) -> None:
    """Rejects a loss that sums, which the model holds or was compiled with."""
    held = [model.loss, getattr(model, "compiled_loss", None), *vars(model).values()]
    for loss in _leaves(held):
        if getattr(loss, "reduction", None) == "sum" and callable(loss):
            kind = type(loss).__name__
            raise StrategyError(
                f'{type(model).__name__} has a loss {kind}(reduction="sum"), but fit() '
                "averages over replicas, so that the gradient would be smaller by "
                f"their number; write {kind}() and multiply its weight, as in "
                "compile(loss_weights=[batch_size])"
            )


def own_statistics(model: Any) -> list[str]:
    """The batch norms that use the statistics of each replica's examples."""
    return [
        layer.name
        for layer in _tf_keras_parts.layers_of(model)
        if getattr(layer, "synchronized", None) is False and layer.trainable
        if not isinstance(layer, CrossReplicaBatchNormalization)
    ]


def _leaves(held: Any) -> Iterator[Any]:
    """What lists and dictionaries hold; keys of the latter need not be in an order."""
    held = list(held.values()) if isinstance(held, dict) else held
    if isinstance(held, (list, tuple)):
        for one in held:
            yield from _leaves(one)
    else:
        yield held


# Keras runs every callback in every process. Two that write the same file end in an
# error of HDF5, or in a file that is neither's; TensorBoard counts each number twice.
# What a ``BackupAndRestore`` of each process saved may be of different epochs after an
# interruption, from which no common step follows.

# Callback of Keras -> its attribute with the file or folder that it writes.
_WRITERS = {
    "CSVLogger": "filename",
    "ModelCheckpoint": "filepath",
    "TensorBoard": "log_dir",
}
_BACKUP = "BackupAndRestore"
# How many names of a process are compared: the same number in each.
_NUM_NAMES = 64


def check_callbacks(strategy: Any) -> None:
    """Refuses callbacks of the ``fit`` that calls this, if processes share files."""
    # All processes have to call it.
    fit = _tf_distribute.arguments_of_fit()
    if not fit:
        return
    given = getattr(fit["callbacks"], "callbacks", fit["callbacks"])  # of a list
    written = {}
    for name, path in _written(given if isinstance(given, (list, tuple)) else [given]):
        digest = hashlib.sha256((path or name).encode()).digest()
        written[int.from_bytes(digest[:7], "big") + 1] = name, path  # not 0
    values = np.zeros([_NUM_NAMES], np.int64)
    values[: len(written)] = list(written)[:_NUM_NAMES]
    first = strategy.replicator.first_replica_id
    mine = strategy.experimental_distribute_values_from_function(
        lambda context: values * (context.replica_id_in_sync_group == first)
    )
    unique, counts = np.unique(strategy.gather(mine, axis=0), return_counts=True)
    for digest, count in zip(unique, counts, strict=True):
        if digest and count > 1:
            name, path = written.get(int(digest), ("a callback", "a file"))
            if name == _BACKUP:
                raise StrategyError(
                    f"{_BACKUP} saves in each of {count} worker processes, which may "
                    f"resume at different epochs; write {_BACKUP}(folder, "
                    'save_freq="epoch" if repl.is_chief else sys.maxsize, '
                    "delete_checkpoint=repl.is_chief), with a folder that all can read"
                )
            raise StrategyError(
                f"{name} writes {path} in each of {count} worker processes; give each "
                'a path of its own, as in f"{folder}/{repl.worker_id}", or pass '
                f"{name} to fit() only if repl.is_chief"
            )


def _written(callbacks: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """Class and file of each callback that writes one."""
    for callback in callbacks:
        for kind in type(callback).__mro__:
            name = kind.__name__
            if not kind.__module__.startswith("keras."):
                continue  # a class of the user's, with a name of its own
            if name in _WRITERS:
                path = Path(os.fspath(getattr(callback, _WRITERS[name])))
                yield name, str(path.absolute())
            elif name == _BACKUP and callback.save_freq != sys.maxsize:
                yield name, ""
