"""The container of values that differ between replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

T = TypeVar("T")


class PerReplica(Generic[T]):
    """One value per replica, indexed by ``replica_id``.

    ``tf.nest`` treats it as a leaf: a nest of ``PerReplica`` has the structure of the
    step's return value.

    Attributes:
      values: A tuple of ``num_replicas`` values.
    """

    __slots__ = ("values",)

    def __init__(self, values: Sequence[T]) -> None:
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

    def __repr__(self) -> str:
        return f"PerReplica({', '.join(map(repr, self.values))})"


def regroup(per_replica_nests: Sequence[Any], map_structure: Any) -> Any:
    """Turns R nests of values into one nest of ``PerReplica``.

    Args:
      per_replica_nests: One nest per replica, all of one structure.
      map_structure: ``tf.nest.map_structure`` (passed in, so that this module does not
        import TensorFlow).

    Returns:
      A nest of the same structure whose leaves are ``PerReplica``.
    """
    return map_structure(lambda *values: PerReplica(values), *per_replica_nests)


def per_replica_nest(
    structure: Any, flat: Sequence[Any], num_replicas: int, map_structure: Any
) -> Any:
    """Turns the flat outputs of R replicas into one nest of ``PerReplica``.

    Args:
      structure: The nest that one replica returns, with None for leaves without a
        tensor.
      flat: The tensors of replica 0 in the order of the nest, then those of replica 1,
        and so on.
      num_replicas: R.
      map_structure: ``tf.nest.map_structure``, as in ``regroup``.

    Returns:
      A nest of the same structure; ``PerReplica`` of Nones where it has None.
    """
    size = len(flat) // num_replicas
    index = -1

    def group(leaf: Any) -> PerReplica[Any]:
        nonlocal index
        if leaf is None:
            return PerReplica([None] * num_replicas)
        index += 1
        return PerReplica(flat[index::size])

    if isinstance(structure, int):  # a single tensor, which most steps return
        return group(structure)
    return map_structure(group, structure)
