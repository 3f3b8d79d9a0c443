"""Whether ``fit`` on replicas is ``fit`` on one device, measured on one batch.

Examples are reordered, and parts are uneven. Weights are as they are, and moved, since
zeros hide differences. Gradients are what an optimizer gets: Adam would hide a factor.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import itertools
import types
import warnings
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator._tf import distribute as _tf_distribute
from replicator._tf import keras_parts as _tf_keras_parts
from replicator._tf.workers import trace_reason_of
from replicator.core import step as step_lib
from replicator.core.validation import format_value, is_positive
from replicator.errors import ReplicatorError, StrategyError
from replicator.strategy import steps

Values = dict[tuple[str, str], Any]

_with = dataclasses.replace

# Relative, of sums in another order.
_TOLERANCES = {"float16": 1e-2, "bfloat16": 5e-2, "float32": 1e-4, "float64": 1e-6}
_FLOOR = 1e-3  # smaller values, against 1 or the largest gradient, are rounding
_MOVED_BY = 0.05
_SCALE = 16.0  # of losses in float16: the usual ones overflow in the first step
_NEAR = 0.15  # to a share of a gradient, where parts are uneven

_SUM = (
    'a sum over the batch, as of reduction="sum": the gradient is smaller by the '
    "number of replicas; use the mean"
)
_STATISTICS = (
    "statistics of a batch: {!r} normalizes by those of each replica; write "
    "keras.layers.BatchNormalization(synchronized=True)"
)
_COMPARES = (
    "examples are compared or joined: a replica has only its own; gather those of all "
    "by tf.distribute.get_replica_context().all_gather(rows, axis=0)"
)
_RANDOM = "not comparable: random operation"
_NO_MEAN = "not a mean of examples: no sum over replicas gives it"
_UNEVEN = "unequal parts: equal where all replicas have the same number of examples"


@dataclasses.dataclass(frozen=True)
class FitRow:
    """One value of a training step, with one replica and with all."""

    # "gradient", "update" (of a variable without gradient), "metric" or "log".
    kind: str
    name: str  # Path of the variable, or name of the metric or the log.
    difference: float  # The largest difference, relative to the largest value.
    # Whether it is within the tolerance; None if it cannot be compared.
    equal: bool | None
    reason: str = ""  # Why it differs, as far as that is recognised.


@dataclasses.dataclass(frozen=True)
class FitCheck:
    """What ``verify_fit`` has found; ``print`` it for a table."""

    model: str  # Class of the model.
    num_replicas: int  # Replicas that were compared with one.
    tolerance: float  # The relative difference that is taken for rounding.
    rows: tuple[FitRow, ...]  # Gradients, updates, metrics and logs.

    @property
    def different(self) -> tuple[FitRow, ...]:
        """The rows that differ."""
        return tuple(row for row in self.rows if row.equal is False)

    @property
    def equal(self) -> bool:
        """Whether no row differs."""
        return not self.different

    def __str__(self) -> str:
        """The table, with what differs first, and the reasons below it."""
        words = {True: "equal", False: "DIFFERS", None: "?"}
        verb = "equals" if self.equal else "differs from"
        width = max((len(row.name) for row in self.rows), default=0)
        head = f"fit() of {self.model} on {self.num_replicas} replicas {verb} fit() on"
        table = [f"{head} one (tolerance {self.tolerance:g}):"]
        for row in sorted(self.rows, key=lambda row: row.equal is not False):
            text = f"  {row.kind:8}  {row.name:{width}}  {row.difference:7.1e}  "
            table.append(f"{text}{words[row.equal]:7}  {row.reason.partition(':')[0]}")
        reasons = dict.fromkeys(row.reason for row in self.rows if row.reason)
        return "\n".join([*map(str.rstrip, table), *reasons])


def verify_fit(
    strategy: Any,
    model: Any,
    batch: Any,
    tolerance: float | None = None,
    *,
    is_any_size: bool = True,
) -> FitCheck:
    """Compares a training step; see ``Replicator.verify_fit``."""
    num_replicas = strategy.num_replicas_in_sync
    _check_model(strategy, model)
    if not (tolerance is None or is_positive(tolerance)):
        raise StrategyError(
            f"verify_fit() got tolerance={format_value(tolerance)}, which must be a "
            "positive number, the largest relative difference that is taken for "
            "rounding, or None for the usual one of the model's type"
        )
    leaves = _leaves(batch)
    sizes = {x.shape[0] if x.ndim else 0 for x in leaves or () if x is not None}
    if leaves is None or len(sizes) != 1 or min(sizes) < num_replicas:
        raise StrategyError(
            f"verify_fit() takes a batch as train_step gets it, arrays of the same "
            f"number of examples, at least {num_replicas}, but got "
            f"{format_value(batch)}"
        )
    if all((x == x[:1]).all() for x in leaves if x is not None):
        raise StrategyError(
            "verify_fit() got a batch of equal examples, where nothing could differ; "
            "pass a batch of your data"
        )
    number = sizes.pop()
    order = np.random.RandomState(0).permutation(number)
    even = number - number % num_replicas
    is_uneven = is_any_size and even - 1 >= num_replicas
    used = {str(layer.compute_dtype) for layer in _tf_keras_parts.layers_of(model)}
    tolerance = tolerance or max(_TOLERANCES.get(one, 1e-6) for one in {*used, ""})
    comparison, name = _Comparison(strategy, model), type(model).__name__

    def rows(count: int) -> list[FitRow]:
        parts = [None if x is None else tf.constant(x[order[:count]]) for x in leaves]
        return comparison.rows(tf.nest.pack_sequence_as(batch, parts), tolerance)

    try:
        found = rows(even - 1 if is_uneven else even)
        is_different = any(row.equal is False for row in found)
        if is_uneven and is_different and all(row.equal for row in rows(even)):
            found = [row if row.equal else _with(row, reason=_UNEVEN) for row in found]
    except ReplicatorError:
        raise
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        raise StrategyError(
            f"verify_fit() ran a training step of {name} on {format_value(batch)}, "
            f"which failed: {trace_reason_of(error)}; pass a batch as fit() gives it "
            "to train_step, such as (x, y)"
        ) from error
    finally:
        comparison.restore()
    return FitCheck(name, num_replicas, tolerance, tuple(found))


def before_training(strategy: Any) -> None:
    """Has the model whose ``fit`` prepares its data compared before its first step."""
    model = _tf_distribute.arguments_of_fit().get("self")
    if model is None or model.train_function is not None:
        return

    def whole(value: Any) -> Any:
        is_absent = isinstance(value, tf.experimental.Optional)  # None, in Keras
        return None if is_absent else strategy.gather(value, axis=0)

    def checked(iterator: Any) -> Any:
        model.train_function = None  # also for the next fit(), if this one raises
        elements = list(itertools.islice(iterator, model.steps_per_execution))
        if elements:
            batch = tf.nest.map_structure(whole, elements[0])
            leaves = tf.nest.flatten(iterator.element_spec, expand_composites=True)
            is_any_size = any(leaf.shape[:1] == [None] for leaf in leaves)
            check = verify_fit(strategy, model, batch, is_any_size=is_any_size)
            if not check.equal:
                raise StrategyError(str(check))
            if not all(row.equal for row in check.rows):
                warnings.warn(str(check), stacklevel=2)
            # What was read, for the first call.
            datasets = map(tf.data.Dataset.from_tensors, elements)
            iterator = iter(functools.reduce(tf.data.Dataset.concatenate, datasets))
        model.make_train_function()
        return model.train_function(iterator)

    model.train_function = checked


def _check_model(strategy: Any, model: Any) -> None:
    kind = type(model).__name__
    if getattr(strategy, "one_replica", None) is None:
        message = (
            "compares several replicas of this library with one; use "
            'create("in_graph", num_replicas=2)'
        )
    elif not (getattr(model, "compiled", False) and hasattr(model, "train_step")):
        message = f"takes a compiled keras.Model, but got {kind}; call compile() first"
    elif model.distribute_strategy is not strategy:
        message = f"got a {kind} of another scope; compile it in scope() of this one"
    else:
        return
    raise StrategyError(f"verify_fit() {message}")


class _Comparison:
    """Steps of a model on one replica and on all, and what they write, for later."""

    def __init__(self, strategy: Any, model: Any) -> None:
        self._model, self._repl = model, strategy.replicator
        self._num_replicas = strategy.num_replicas_in_sync
        single = strategy.one_replica().as_strategy()
        self._strategies = type(strategy)(strategy.replicator), single
        self._optimizers = steps.optimizers_of(model)
        self._drawing: list[str] = []
        self._values: dict[int, tuple[Any, Any]] = {}
        generator = _tf_compat.global_seed_generator()
        self._keep([generator.state] if generator else [])
        self._keep([*model.variables, *model.metrics_variables])
        self._keep(v for optimizer in self._optimizers for v in optimizer.variables)
        self._eager = _tf_keras_parts.eager_generator()
        self._draws = self._eager and self._eager.getstate()

        gc.collect()  # workers then have the same variables, of which each is gathered

        def gathered(values: Any) -> tuple[Any, ...]:
            parts = steps.grouped([tf.constant(value)[tf.newaxis] for value in values])
            return tuple(strategy.gather(parts, axis=0).numpy())

        self._local = [
            _with(one, values=gathered(one.values)) for one in self._repl.local_state()
        ]

        @tf.autograph.experimental.do_not_convert
        def train_step(model: Any, data: Any) -> Any:
            return self._traced(model, data)

        self._step = types.MethodType(train_step, model)

    def _keep(self, variables: Iterable[Any]) -> None:
        with tf.init_scope():
            for variable in map(_tf_compat.unwrap, variables):
                if id(variable) not in self._values:
                    self._values[id(variable)] = variable, variable.numpy()

    def restore(self) -> None:
        for variable, value in self._values.values():
            variable.assign(value)
        self._repl.restore_local_state(self._local)
        if self._eager and self._draws:
            self._eager.setstate(self._draws)

    def rows(self, batch: Any, tolerance: float) -> list[FitRow]:
        """One by value: of weights as they are, or moved, what differs more."""
        by_name: dict[tuple[str, str], FitRow] = {}
        for is_moved in (False, True):
            both, one = (
                self._made(strategy, batch, is_moved=is_moved)
                for strategy in self._strategies
            )
            for row in self._compared(both, one, tolerance):
                old = by_name.setdefault((row.kind, row.name), row)
                if old.difference < row.difference:
                    by_name[row.kind, row.name] = row
        return list(by_name.values())

    def _made(self, strategy: Any, batch: Any, *, is_moved: bool) -> Values:
        """What a step makes, by kind and name, of weights as they are or moved."""
        model = self._model
        self.restore()
        model.reset_metrics()
        for optimizer in self._optimizers:
            own = getattr(getattr(optimizer, "loss_scale", None), "scale", None)
            scale: Any = getattr(optimizer, "dynamic_scale", own)
            if hasattr(scale, "assign"):
                scale.assign(_SCALE)
        numbers = np.random.RandomState(1)
        for weight in model.trainable_variables if is_moved else ():
            value = np.asarray(weight)
            size = _MOVED_BY * max(float(np.std(np.float64(value))), _MOVED_BY)
            by = size * numbers.standard_normal(value.shape)
            weight.assign(value + by.astype(value.dtype))
        before = [np.asarray(one) for one in model.variables]
        made = strategy.run(self._step, args=(batch,))
        logs, gradients = tf.nest.map_structure(
            lambda v: steps.local_values(v, 1)[0], made
        )
        values: Values = {("gradient", name): v for name, v in gradients.items()}
        for variable, old in zip(model.variables, before, strict=False):
            key, new = ("update", variable.path), np.asarray(variable)
            is_updated = _is_number(new) and not np.array_equal(new, old)
            if is_updated and ("gradient", variable.path) not in values:
                update = np.float64(new) - np.float64(old)
                values[key] = update / max(1.0, _size(old))
        values |= {("metric", n): v for n, v in model.get_metrics_result().items()}
        for name, nest in (logs if isinstance(logs, dict) else {"": logs}).items():
            for number, leaf in enumerate(tf.nest.flatten(nest)):
                values["log", f"{name}[{number}]" if number else name] = leaf
        arrays = {key: np.asarray(value) for key, value in values.items()}
        return {k: np.float64(v) for k, v in arrays.items() if _is_number(v)}

    def _traced(self, model: Any, data: Any) -> Any:
        """Logs and gradients of a training step, whose random numbers are constants."""
        graph = _tf_compat.current_graph()
        step = getattr(model.train_step, "python_function", model.train_step)
        gradients: dict[str, Any] = {}
        with contextlib.ExitStack() as stack:
            stack.enter_context(_tf_keras_parts.random_constants())
            for optimizer in self._optimizers:
                stack.enter_context(_recorded(optimizer, graph, gradients))
            logs = _tf_distribute.converted(step)(data)
        left = _tf_keras_parts.left_random(graph)
        self._drawing = [step_lib.line_of(op.traceback) for op in left]
        self._keep(graph.variables)
        return logs, gradients

    def _compared(self, both: Values, one: Values, tolerance: float) -> list[FitRow]:
        gradients = [key for key in one if key[0] == "gradient" and key in both]
        largest = max((_size(one[key]) for key in gradients), default=0.0)
        # Updates are differences of values of up to 1.
        floors = {"gradient": _FLOOR * largest, "update": 10 * _FLOOR}
        rows, different = [], []
        for (kind, name), value in {**both, **one}.items():
            first = one.get((kind, name), np.zeros_like(value))
            other = both.get((kind, name), np.zeros_like(value))
            if not np.all(np.isfinite(first)):
                continue  # such as a loss that moved weights have no number for
            scale = max(_size(first), _size(other), floors.get(kind, _FLOOR))
            # A log by example has the rows of one replica.
            is_of_one_shape = other.shape == first.shape
            by = _size(other - first) / (scale or 1.0) if is_of_one_shape else np.inf
            by = by if np.isfinite(by) else float("inf")
            rows.append(FitRow(kind, name, by, equal=by <= tolerance))
            if kind == "gradient" and by > tolerance:
                different.append((other.ravel(), first.ravel()))
        return [row if row.equal else self._explained(row, different) for row in rows]

    def _explained(self, row: FitRow, different: list[tuple[Any, Any]]) -> FitRow:
        """A row that differs with the reason, as far as that is recognised."""
        norms = steps.own_statistics(self._model)
        if self._drawing:
            where = step_lib.at_lines(self._drawing[:1])
            return _with(row, equal=None, reason=f"{_RANDOM}{where}")
        if different and _is_share(different, self._num_replicas):
            return _with(row, reason=_SUM)
        if norms:
            return _with(row, reason=_STATISTICS.format(norms[0]))
        is_compared = bool(different) or row.kind == "update"
        return _with(row, reason=_COMPARES if is_compared else _NO_MEAN)


def _recorded(
    optimizer: Any, graph: Any, gradients: dict[str, Any]
) -> contextlib.AbstractContextManager[None]:
    """Notes gradients by the path of their variable, in place of updates."""
    # Later gradients of a step would depend on updates that Adam makes of rounding.

    @tf.autograph.experimental.do_not_convert
    def apply(given: Any, trainable_variables: Any = None) -> None:
        to = trainable_variables or _tf_compat.optimized_variables(optimizer) or ()
        apply_gradients(zip(given, to, strict=True))

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(pairs: Any, **_: Any) -> None:
        for grad, variable in pairs:
            if grad is not None and grad.graph is graph:
                key = getattr(variable, "path", variable.name)
                while key in gradients:
                    key += " again"
                gradients[key] = tf.convert_to_tensor(grad)

    methods = {"apply": apply, "apply_gradients": apply_gradients}
    return _tf_compat.altered(optimizer, **methods)


def _is_share(pairs: list[tuple[Any, Any]], num_replicas: int) -> bool:
    """Whether gradients are those of one device, divided by the number of replicas."""
    both, one = (np.concatenate(values) for values in zip(*pairs, strict=True))
    ratio = float(both @ one) / float(one @ one)
    rest = float(np.linalg.norm(both - ratio * one)) / float(np.linalg.norm(both))
    return abs(ratio * num_replicas - 1.0) < _NEAR > rest


def _leaves(batch: Any) -> list[Any] | None:
    """The parts of a batch, as Keras gives them to a step; None if not arrays."""
    values: list[Any] = []
    for leaf in tf.nest.flatten(batch):
        if leaf is None or isinstance(leaf, tf.Tensor):
            values.append(leaf if leaf is None else leaf.numpy())
            continue
        try:
            array = np.asarray(leaf)
        except (TypeError, ValueError):
            return None
        if not (_is_number(array) or array.dtype.kind in "cSU"):
            return None
        is_cast = array.dtype.kind == "f"
        values.append(array.astype(keras.config.floatx()) if is_cast else array)
    return values


def _is_number(array: Any) -> bool:
    return array.dtype.kind in "fiub" or "float" in array.dtype.name


def _size(array: Any) -> float:
    return float(np.max(np.abs(array), initial=0.0))
