"""Identity of step functions: which function objects are the same step.

Python creates a method object at each access, and programs often create a
``functools.partial`` at each call; neither makes a new step. A method is identified by
its object and its function, a partial by its function and its arguments: each the same
object, or a number or string of the same type and value. This is safe, because the
same partial passed twice would also be traced once. Objects that a program references,
such as a variable passed as an argument, then live as long as the function. Functions
and lambdas are identified by the object itself, because their closures can be rebound.
"""

from __future__ import annotations

import functools
import types
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

_PLAIN_TYPES = (bool, int, str, bytes, type(None))


class _Opaque(Exception):  # noqa: N818 (no error: a partial that is only itself)
    """An argument that can neither be compared nor be referenced weakly."""


def identity(step_fn: Callable[..., Any]) -> tuple[Hashable, ...]:
    """The key of a step function, valid as long as its ``parts`` live."""
    if type(step_fn) is types.FunctionType:
        return (id(step_fn),)
    if isinstance(step_fn, types.MethodType):
        return id(step_fn.__self__), id(step_fn.__func__)
    return tuple(
        part.token if isinstance(part, _Plain) else id(part)
        for part in _all_parts(step_fn)
    )


def parts(step_fn: Callable[..., Any]) -> list[Any]:
    """The objects that make up a step function; it lives as long as all of them."""
    return [part for part in _all_parts(step_fn) if not isinstance(part, _Plain)]


def origin(step_fn: Callable[..., Any]) -> tuple[Any, Any] | None:
    """What all function objects that are created from one piece of code share."""
    is_partial = isinstance(step_fn, functools.partial)
    while isinstance(step_fn, functools.partial):
        step_fn = step_fn.func
    if isinstance(step_fn, types.MethodType):
        # Methods of different objects are different functions with the same code.
        return getattr(step_fn.__func__, "__code__", None), step_fn.__self__
    code = getattr(step_fn, "__code__", None)
    if code is not None:
        return code, None
    return (type(step_fn), step_fn) if is_partial else None


class _Plain:
    """A part that is compared by value.

    Attributes:
      token: Equal for parts that are the same.
    """

    def __init__(self, *token: Any) -> None:
        self.token = token


def _all_parts(step_fn: Any) -> list[Any]:
    if isinstance(step_fn, types.MethodType):
        return [step_fn.__self__, step_fn.__func__]
    if isinstance(step_fn, functools.partial):
        try:
            return list(_of_partial(step_fn))
        except _Opaque:
            pass
    return [step_fn]


def _of_partial(partial: functools.partial[Any]) -> Iterator[Any]:
    yield from _all_parts(partial.func)
    yield _Plain("partial", len(partial.args), *partial.keywords)
    for value in (*partial.args, *partial.keywords.values()):
        yield from _of_argument(value)


def _of_argument(value: Any) -> Iterator[Any]:
    kind = type(value)
    if kind in _PLAIN_TYPES:
        yield _Plain(kind, value)
    elif kind is float:
        yield _Plain(kind, value.hex())  # 0.0 and -0.0 are equal
    elif kind is tuple:
        yield _Plain(kind, len(value))
        for item in value:
            yield from _of_argument(item)
    elif kind in (types.MethodType, functools.partial):
        yield _Plain(kind)
        yield from _all_parts(value)
    elif _is_weakly_held(value):
        yield value
    else:
        raise _Opaque


def _is_weakly_held(value: Any) -> bool:
    try:
        weakref.ref(value)
    except TypeError:
        return False
    return True
