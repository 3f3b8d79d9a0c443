"""Values that steps take and return: ``PerReplica``, and dense tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import tensorflow as tf

from replicator.validation import maker
from replicator.validation.arguments import shown
from replicator.validation.user_functions import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

T = TypeVar("T")


class PerReplica(Generic[T]):
    """One value per replica, indexed by ``replica_id``.

    ``tf.nest`` treats it as a leaf: a nest of ``PerReplica`` has the structure of the
    step's return value.

    Attributes:
      values: A tuple of ``num_replicas`` values.
      made_by: The replicator whose ``run`` or inputs made them; None if a caller did.
      spec: The ``tf.TypeSpec`` of a batch that was read from inputs, or None.
    """

    __slots__ = ("made_by", "spec", "values")

    def __init__(
        self,
        values: Sequence[T],
        *,
        made_by: maker.Maker | None = None,
        spec: Any = None,
    ) -> None:
        self.made_by = made_by
        self.spec = spec
        try:
            self.values = tuple(values)
        except Exception as error:
            is_iterable = hasattr(type(values), "__iter__")
            if is_iterable and not isinstance(error, (TypeError, ValueError)):
                raise  # an error in the user's own generator
            raise TypeError(
                f"PerReplica takes a sequence with one value per replica, such as "
                f"PerReplica([a, b]), not a {type(values).__name__!r}"
            ) from error

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, replica_id: int) -> T:
        return self.values[replica_id]

    def __iter__(self) -> Iterator[T]:
        return iter(self.values)

    def __reduce__(self) -> tuple[Any, ...]:
        return PerReplica, (self.values,)  # a copy is nobody's

    def __repr__(self) -> str:
        return f"PerReplica({', '.join(map(repr, self.values))})"


def per_replica_nest(
    structure: Any, flat: Sequence[Any], num_replicas: int, map_structure: Any
) -> Any:
    """Turns the flat outputs of R replicas into one nest of ``PerReplica``."""
    size = len(flat) // num_replicas
    index = -1
    made_by = maker.current()

    def group(leaf: Any) -> PerReplica[Any]:
        nonlocal index
        if leaf is None:
            return PerReplica([None] * num_replicas, made_by=made_by)
        index += 1
        return PerReplica(flat[index::size], made_by=made_by)

    if isinstance(structure, int):  # a single tensor, which most steps return
        return group(structure)
    return map_structure(group, structure)


_ADVICE: tuple[tuple[Any, str], ...] = (
    (type(None), "leave it out, or pass zeros instead"),
    (tf.RaggedTensor, "make it dense with value.to_tensor()"),
    (tf.SparseTensor, "make it dense with tf.sparse.to_dense(value)"),
    (
        PerReplica,
        "pass it to run(step_fn, inputs), and use the argument of the step",
    ),
    (int, "pass an integer that fits into 64 bits, or a float"),
)
_NEVER_DENSE = (tf.RaggedTensor, tf.SparseTensor, PerReplica)


def tensor_of(value: Any, said: str) -> tf.Tensor:
    """Returns a value as a dense tensor."""
    if isinstance(value, tf.Tensor):
        return value
    cause: Exception | None = None
    # A PerReplica has a length and items, so TensorFlow would stack its values.
    if not isinstance(value, _NEVER_DENSE):
        try:
            return tf.convert_to_tensor(value)
        except (TypeError, ValueError, tf.errors.OpError) as error:
            cause = error
    raise TypeError(f"{said}, but got {shown(value)}; {_advice(value)}") from cause


def _advice(value: Any) -> str:
    for kind, text in _ADVICE:
        if isinstance(value, kind):
            return text
    return "pass tensors, NumPy arrays or numbers"


def check_outputs(outputs: Any, step_fn: Callable[..., Any]) -> Any:
    """Turns a step's return value into a nest of tensors."""

    def convert(leaf: Any) -> tf.Tensor:
        try:
            return tf.convert_to_tensor(leaf)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{name_of(step_fn)} returned a {type(leaf).__name__!r}; a step "
                "returns a nest of tensors (loss, metrics) or None"
            ) from error

    return tf.nest.map_structure(lambda x: x if x is None else convert(x), outputs)
