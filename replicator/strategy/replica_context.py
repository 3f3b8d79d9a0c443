"""What ``tf.distribute.get_replica_context()`` is in a step: the engine's replica.

A step is traced once, as one replica that stands for all, so what TensorFlow does in
"cross-replica context" within a step (``merge_call``) is done here by that replica with
collectives.

Two conventions exist of how gradients are averaged. In steps of ``repl.run`` and of
``fit``, the loss is the mean of the replica's own batch and the optimizer averages. In
other steps of ``strategy.run``, as ``tf.distribute`` has it, losses are divided by the
number of replicas (Keras' own do that) and optimizers sum. So ``num_replicas_in_sync``
of the *strategy* is 1 in the former, where losses are not to be divided.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator._tf import distribute as _tf_distribute
from replicator.collectives import reductions
from replicator.collectives.differentiable import as_written
from replicator.core import context
from replicator.core.step import check_outputs
from replicator.core.validation import format_value
from replicator.errors import StrategyError
from replicator.strategy.datasets import grouped, is_per_replica, local_values
from replicator.strategy.extended import StepExtended, is_merging, merging, reduce_op_of
from replicator.strategy.gradients import GradientSum

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence


class StepReplicaContext(tf.distribute.ReplicaContext):
    """The replica of the step that is being traced."""

    def __init__(
        self, strategy: tf.distribute.Strategy, gradient_sum: GradientSum | None = None
    ) -> None:
        super().__init__(strategy, replica_id_in_sync_group=0)
        self._gradient_sum = gradient_sum

    @property
    def gradient_sum(self) -> GradientSum:
        """What becomes of the sums of gradients that optimizers ask for."""
        self._gradient_sum = self._gradient_sum or GradientSum()
        return self._gradient_sum

    @property
    def replica_id_in_sync_group(self) -> tf.Tensor:
        """Index of this replica, a scalar int32 tensor."""
        return _engine().replica_id_in_sync_group

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas that collectives join."""
        return _engine().num_replicas_in_sync

    @as_written
    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """Sums or averages a nest over replicas, with gradients of every order."""
        del options  # hints on packing, which the engine plans itself
        op = reduce_op_of(reduce_op)
        optimizer = _tf_distribute.updating_optimizer()
        if optimizer is not None and op == "sum":
            return self.gradient_sum.of(value, optimizer)
        return reductions.all_reduce(value, op)

    @as_written
    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """Concatenates a nest over replicas along an axis.

        Sizes along the axis may differ between replicas.
        """
        del options
        return reductions.all_concat(value, axis)

    @as_written
    def merge_call(
        self, merge_fn: Callable[..., Any], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls a function of the strategy and of this replica's own values."""
        scaler = _tf_distribute.loss_scaler_of(merge_fn)
        if scaler is not None:
            # All replicas have to skip the same updates: by sums, not own gradients.
            args = (self.gradient_sum.of_scaler(args[0], scaler), *args[1:])
        with (
            contextlib.nullcontext()
            if scaler is None
            else context.gradients_averaged(),
            merging(self, self.gradient_sum.of_merge(merge_fn)),
            _tf_distribute.cross_replica_mode(self._strategy),
        ):
            return merge_fn(self._strategy, *args, **(kwargs or {}))

    def _update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Any = (),
        kwargs: Any = None,
        group: bool = True,
    ) -> Any:
        return self._strategy.extended.update(var, fn, args, kwargs, group)


class StepStrategy(tf.distribute.Strategy):
    """``tf.distribute.get_strategy()`` in a step of ``repl.run``.

    Its number of replicas is 1: what a loss has to be divided by.
    """

    def __init__(self, extended: StepExtended | None = None) -> None:
        super().__init__(extended or StepExtended(self))

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Passes for a strategy of one device, which a replica is.

        Sonnet's optimizers and tf_keras' loss scale refuse what they do not know.
        """
        return tf.distribute.OneDeviceStrategy

    def scope(self) -> Any:
        """Rejected: a step is in the scope of its replicator.

        Inside ``merge_call`` optimizers of ``tf.compat.v1`` enter it for new slots.
        """
        if is_merging():
            return contextlib.nullcontext(self)
        raise StrategyError(
            "scope() of the strategy of a step: variables are made before the step; "
            "write `with repl.as_strategy().scope():` around their creation"
        )

    def run(
        self,
        fn: Any,
        args: Any = (),
        kwargs: Any = None,
        options: Any = None,
    ) -> Any:
        """Rejected: a step is already the code of one replica."""
        del fn, args, kwargs, options
        raise StrategyError(
            "strategy.run() was called inside a step, which is the code of one "
            "replica; call the function directly"
        )

    def reduce(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
        """Reduces over replicas, inside ``merge_call``."""
        if axis is not None:
            raise StrategyError(
                f"reduce(axis={axis!r}) inside merge_call(): reduce over the axis in "
                "the step, then over replicas with axis=None"
            )
        return reductions.all_reduce(value, reduce_op_of(reduce_op))

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """The value of this replica alone."""
        return (value,)

    def gather(self, value: Any, axis: int) -> Any:
        """Concatenates over replicas, inside ``merge_call``."""
        return reductions.all_concat(value, axis)


@contextlib.contextmanager
def entered() -> Iterator[None]:
    """Makes the replica of a step of ``repl.run`` the one of ``tf.distribute``."""
    replica = StepReplicaContext(_of_steps())
    with _tf_distribute.replica_mode(replica):
        yield


@contextlib.contextmanager
def entered_by(
    strategy: tf.distribute.Strategy, gradient_sum: GradientSum
) -> Iterator[None]:
    """Makes the replica of a step of ``strategy.run`` the one of ``tf.distribute``."""
    replica = StepReplicaContext(strategy, gradient_sum)
    with (
        _tf_distribute.replica_mode(replica),
        context.gradients_divided(gradient_sum.unscale),
        context.losses_weighed(gradient_sum.weight),
    ):
        yield


def _engine() -> context.ReplicaContext:
    return context.get_replica_context()


_OF_STEPS: list[StepStrategy] = []


def _of_steps() -> StepStrategy:
    """The strategy of all steps of ``repl.run``."""
    if not _OF_STEPS:
        _OF_STEPS.append(StepStrategy())
    return _OF_STEPS[0]


# The arguments are a nest of values per replica, of values that all replicas get, and
# of Python objects. The step that the engine traces takes the tensors among them, as a
# list, and returns those of the result.

_TENSORS = (tf.Tensor, tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices, np.ndarray)


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
        """``args`` and ``kwargs`` with the tensors of one replica."""
        leaves = list(self.fixed)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = tf.nest.pack_sequence_as(self.structure, leaves)
        return args, kwargs


def without_gradients(
    outputs: Sequence[Sequence[Any]], name: str
) -> list[Sequence[Any]]:
    """Results of a step in a graph, whose gradient is an error that says why.

    TensorFlow knows no gradient of the call that the step is, and none would reach the
    variables that the step reads.
    """

    @tf.custom_gradient
    def result(tensor: tf.Tensor) -> Any:
        def gradient(_: Any) -> Any:
            raise StrategyError(
                f"a gradient of what strategy.run({name}) returned was asked for, but "
                "none leads through a step; compute it in the step, by a "
                "tf.GradientTape there, and apply it there"
            )

        return tf.identity(tensor), gradient

    return [
        [result(tensor) if _is_floating(tensor) else tensor for tensor in of_replica]
        for of_replica in outputs
    ]


def _is_floating(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and value.dtype.is_floating


def arguments_of(
    args: Any, kwargs: Any, num_local: int, *, any_size: bool = False
) -> Arguments:
    """Takes the arguments of a call apart."""
    structure = (tuple(args), dict(kwargs or {}))
    fixed: list[Any] = []
    places: list[int] = []
    values: list[tuple[Any, ...]] = []
    for place, leaf in enumerate(tf.nest.flatten(structure)):
        is_tensor = isinstance(leaf, _TENSORS) or is_per_replica(leaf)
        fixed.append(None if is_tensor else leaf)
        if not is_tensor:
            continue
        places.append(place)
        own = local_values(leaf, num_local)
        if len(own) != num_local:
            raise StrategyError(
                f"an argument of strategy.run() has {len(own)} values, but there are "
                f"{num_local} replicas in this process; pass what the strategy's "
                "datasets and steps return"
            )
        values.append(tuple(map(_as_tensor, own)))
    return Arguments(
        structure=structure,
        fixed=tuple(fixed),
        places=tuple(places),
        batches=tuple(tuple(v[r] for v in values) for r in range(num_local)),
        specs=tuple(_common_spec(v, any_size=any_size) for v in values),
        are_any_size=any_size,
    )


def _as_tensor(value: Any) -> Any:
    is_array = isinstance(value, (np.ndarray, np.generic, bool, int, float, str))
    return tf.convert_to_tensor(value) if is_array else value


def _spec(value: Any, *, any_size: bool) -> tf.TypeSpec:
    spec = tf.type_spec_from_value(value)
    if any_size and isinstance(spec, tf.TensorSpec) and spec.shape.rank:
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
    return spec


def _common_spec(values: Sequence[Any], *, any_size: bool) -> tf.TypeSpec:
    first, *others = (_spec(value, any_size=any_size) for value in values)
    common = first.most_specific_common_supertype(others) if others else first
    if common is None:
        raise StrategyError(
            f"an argument of strategy.run() has another type on each replica: "
            f"{[first, *others]}; give all replicas the same type and rank"
        )
    return common


class Outputs:
    """The nest that a step returns, which is known once it is traced.

    Attributes:
      are_whole: Whether each replica returns what all of them have computed.
    """

    def __init__(self) -> None:
        self.are_whole = False
        self._structure: Any = None
        self._places: list[int] = []
        self._specs: list[Any] = []
        self._leaves: list[Any] = []

    def flat(self, outputs: Any, step_fn: Callable[..., Any]) -> list[tf.Tensor]:
        """Takes the nest of a replica apart into dense tensors."""
        self._structure = tf.nest.map_structure(lambda _: 0, outputs)
        self._places, self._specs, tensors = [], [], []
        self._leaves = [None] * len(tf.nest.flatten(outputs))
        for place, leaf in enumerate(tf.nest.flatten(outputs)):
            if leaf is None or isinstance(leaf, tf.Operation):
                continue
            is_composite = isinstance(leaf, _TENSORS) and not isinstance(
                leaf, tf.Tensor
            )
            value = leaf if is_composite else check_outputs(leaf, step_fn)
            self._places.append(place)
            self._specs.append(tf.type_spec_from_value(value))
            tensors += tf.nest.flatten(value, expand_composites=True)
        return tensors

    def grouped(self, flat: Sequence[Sequence[Any]]) -> Any:
        """The nest of all replicas, from the tensors of each."""
        leaves = list(self._leaves)
        rest = [iter(tensors) for tensors in (flat[:1] if self.are_whole else flat)]
        for place, spec in zip(self._places, self._specs, strict=True):
            size = len(tf.nest.flatten(spec, expand_composites=True))
            leaves[place] = grouped(
                [
                    tf.nest.pack_sequence_as(
                        spec, [next(r) for _ in range(size)], expand_composites=True
                    )
                    for r in rest
                ]
            )
        return tf.nest.pack_sequence_as(self._structure, leaves)


class Reductions:
    """The reductions of one strategy: over workers they are steps, traced once each."""

    def __init__(self) -> None:
        self._steps: dict[Hashable, Callable[..., Any]] = {}

    def reduce(
        self, strategy: Any, repl: Any, reduce_op: Any, value: Any, axis: Any
    ) -> Any:
        """Reduces one value over replicas; see ``ReplicatorStrategy.reduce``."""
        op = reduce_op_of(reduce_op)
        own = local_values(value, 1)
        if repl.num_replicas > 1 and not is_per_replica(value) and len(own) == 1:
            if repl.num_local_replicas > 1 and op == "sum" and axis is None:
                raise StrategyError(
                    f"strategy.reduce(SUM) of {format_value(value)}, which is not a "
                    "value per replica; reduce what strategy.run() returns, or "
                    "multiply by strategy.num_replicas_in_sync"
                )
            if repl.num_local_replicas > 1:
                own = own * repl.num_local_replicas
        values = [v if tf.is_tensor(v) else tf.convert_to_tensor(v) for v in own]
        if repl.num_programs > 1:
            step = self._step(("reduce", op, _hashable(axis)))
            return _first(strategy.run(step, args=(value,)))
        if axis is None:
            return _combined(op, values)
        return _over_axis(op, values, axis)

    def gather(self, strategy: Any, repl: Any, value: Any, axis: int) -> Any:
        """Joins one value over replicas; see ``ReplicatorStrategy.gather``."""
        if repl.num_programs > 1:
            step = self._step(("gather", axis))
            return _first(strategy.run(step, args=(value,)))
        own = local_values(value, 1)
        if len(own) == 1 and repl.num_local_replicas > 1:
            own = own * repl.num_local_replicas
        return tf.concat(own, axis=axis)

    def _step(self, key: tuple[Any, ...]) -> Callable[..., Any]:
        if key not in self._steps:
            kind, *options = key
            self._steps[key] = (_reduction if kind == "reduce" else _joining)(*options)
        return self._steps[key]


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


def _over_axis(op: str, values: list[Any], axis: Any) -> Any:
    total = tf.add_n([tf.reduce_sum(value, axis=axis) for value in values])
    if op == "sum":
        return total
    count = tf.add_n([_size(value, axis) for value in values])
    return tf.math.truediv(total, tf.cast(count, total.dtype))


def _size(value: Any, axis: Any) -> tf.Tensor:
    axes = [axis] if isinstance(axis, int) else list(axis)
    return tf.reduce_prod(
        tf.gather(tf.shape(value), [a % len(value.shape) for a in axes])
    )


def _reduction(op: str, axis: Any) -> Callable[[Any], Any]:
    def reduce(value: Any) -> Any:
        if axis is None:
            if op == "mean" and value.dtype.is_integer:
                total = reductions.all_sum(value)
                return total // tf.distribute.get_replica_context().num_replicas_in_sync
            return reductions.all_reduce(value, op)
        total = reductions.all_sum(tf.reduce_sum(value, axis=axis))
        if op == "sum":
            return total
        count = reductions.all_sum(_size(value, axis))
        return tf.math.truediv(total, tf.cast(count, total.dtype))

    reduce.__qualname__ = f"reduce({op!r})"
    return reduce


def _joining(axis: int) -> Callable[[Any], Any]:
    def gather(value: Any) -> Any:
        return reductions.all_concat(value, axis)

    return gather


def _hashable(axis: Any) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis


def _first(value: Any) -> Any:
    return local_values(value, 1)[0]
