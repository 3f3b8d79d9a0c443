"""One call of ``strategy.run`` as a step of the engine.

The arguments are a nest of values per replica, of values that all replicas get, and of
Python objects. The step that the engine traces takes the tensors among them, as a list,
and returns those of the result.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator.errors import StrategyError
from replicator.step.values import check_outputs
from replicator.strategy.values import grouped, is_per_replica, local_values

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

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
