"""Checks of what users pass: arguments, functions, and things of another replicator.

Imports no TensorFlow, which ``create`` imports only with the backend.
"""

from __future__ import annotations

import collections
import dataclasses
import inspect
import os
import sys
import threading
from collections.abc import Container
from typing import TYPE_CHECKING, Any

from replicator.errors import OtherReplicatorError

if TYPE_CHECKING:
    from typing import TypeGuard


# The largest values of TensorFlow's integer types; a Python int has no limit.
INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

_PLAIN = (bool, int, float, str, bytes, type(None))
_MOST_BITS = 128  # Python refuses to format integers of thousands of digits
_MOST_CHARACTERS = 100


def format_value(value: Any) -> str:
    """How messages show a value: in one line, however large the value is."""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"an integer of {value.bit_length()} bits"
    if _is_plain(value):
        text = repr(value)
        is_short = len(text) <= _MOST_CHARACTERS
        return text if is_short else f"{text[: _MOST_CHARACTERS - 3]}..."
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        dtype = getattr(value.dtype, "name", value.dtype)
        return f"a {type(value).__name__!r} of {dtype} and shape {value.shape}"
    return f"a {type(value).__name__!r}"


def is_one_of(value: Any, names: Container[str]) -> TypeGuard[str]:
    """Whether a value is one of several names; ``in`` alone would compare tensors."""
    return isinstance(value, str) and value in names


def is_integer(
    value: Any, *, least: int | None = None, most: int | None = None
) -> TypeGuard[int]:
    """Whether a value is an integer within limits; ``True`` does not count."""
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return (
        is_int and (least is None or value >= least) and (most is None or value <= most)
    )


def is_positive(value: Any) -> TypeGuard[float]:
    """Whether a value is a finite number above zero; a bool and a tensor are not."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 < value <= sys.float_info.max


def path_of(value: Any, argument: str) -> str:
    if not isinstance(value, (str, bytes, os.PathLike)):
        raise TypeError(
            f"{argument} must be a path, but got {format_value(value)}; pass a string "
            "or a pathlib.Path"
        )
    path = os.fsdecode(value)
    if not path or "\0" in path:
        raise ValueError(
            f"{argument} must be a path, but got {format_value(path)}, which cannot "
            "name a file; pass a non-empty string without null characters, or a "
            "pathlib.Path"
        )
    return path


def listed(value: Any, said: str) -> list[Any]:
    is_data = hasattr(value, "element_spec")  # endless where a step is traced
    if hasattr(type(value), "__iter__") and not is_data:
        try:
            iterator = iter(value)
        except TypeError:
            pass
        else:
            return list(iterator)
    raise TypeError(f"{said}, but got {format_value(value)}")


def _is_plain(value: Any) -> bool:
    """Whether the ``repr`` of a value is short and has one line."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value[:_MOST_CHARACTERS]))
    is_huge = isinstance(value, int) and value.bit_length() > _MOST_BITS
    return isinstance(value, _PLAIN) and not is_huge


class _Stacks(threading.local):
    def __init__(self) -> None:
        self.by_name: dict[str, list[Any]] = collections.defaultdict(list)


_STACKS = _Stacks()


class holding:  # noqa: N801 (a function to its callers, without a generator's cost)
    """Has something hold in this thread, and ``held`` return it."""

    def __init__(self, name: str, item: Any) -> None:
        self._name, self._item = name, item

    def __enter__(self) -> None:
        _STACKS.by_name[self._name].append(self._item)

    def __exit__(self, *_error: object) -> None:
        _STACKS.by_name[self._name].pop()


def held(name: str) -> Any:
    """The innermost of what holds by a name; None if nothing does."""
    stack = _STACKS.by_name[name]
    return stack[-1] if stack else None


# Optimizers, inputs and ``PerReplica`` values carry the ``ReplicatorId`` of the
# replicator that made them: they have its number of replicas, its devices and its way
# to average.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ReplicatorId:
    """Stands for one replicator, without keeping it alive."""

    name: str  # Class of the replicator.
    num_replicas: int  # Replicas of the whole job.
    # Whether a wrapped optimizer updates as those of the other replicators with this
    # flag do, so that they can run its steps.
    wraps_alike: bool = False

    def __str__(self) -> str:
        """What messages call the replicator."""
        return f"{self.name}, num_replicas={self.num_replicas}"


def check_owner(
    thing: Any,
    user: ReplicatorId | None,
    what: str,
    remedy: str,
    *,
    is_portable: bool = False,
) -> None:
    owner = thing.owner
    if owner is None or user is None or owner is user:
        return
    if not (is_portable and owner.wraps_alike and user.wraps_alike):
        raise OtherReplicatorError(
            f"{what} was made by another replicator ({owner}), and cannot be used by "
            f"this one ({user}); {remedy}"
        )


def name_of(function: Any) -> str:
    inner = getattr(function, "func", function)  # of a functools.partial
    return str(getattr(inner, "__qualname__", type(inner).__name__))


def check_input_fn(input_fn: Any, caller: str) -> None:
    if not callable(input_fn):
        raise TypeError(
            f"{caller}() takes a function that returns a dataset, but got a "
            f"{type(input_fn).__name__!r}; write def input_fn(ctx): return "
            "dataset.batch(ctx.get_per_replica_batch_size(n)), and pass input_fn; or "
            f"{caller}(lambda ctx: dataset), if its batches are per-replica batches"
        )
    if not takes(input_fn, 1):
        raise TypeError(
            f"{caller}() calls {name_of(input_fn)!r} with one argument, an "
            "InputContext, which it does not accept; write def input_fn(ctx): even if "
            "ctx is not used"
        )


def check_takes_one(function: Any, caller: str, argument: str, what: str) -> None:
    if not callable(function):
        raise TypeError(
            f"{caller}() calls {argument} with {what}, but got "
            f"{format_value(function)}, which is not a function; pass a function of "
            "one argument"
        )
    if not takes(function, 1):
        raise TypeError(
            f"{caller}() calls {argument} with {what}, but {name_of(function)!r} does "
            "not take one argument; pass a function of one argument"
        )


def takes(function: Any, num_arguments: int) -> bool:
    """Whether a function can be called with this number of positional arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True  # a builtin without a signature
    try:
        signature.bind(*range(num_arguments))
    except TypeError:
        return False
    return True
