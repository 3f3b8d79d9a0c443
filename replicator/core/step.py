"""Step functions: the values that they take and return, their traces, and identity."""

from __future__ import annotations

import contextlib
import functools
import itertools
import linecache
import sysconfig
import types
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import tensorflow as tf

from replicator._tf.dispatch import optimizer_settings
from replicator.core import validation
from replicator.core.validation import format_value, name_of

if TYPE_CHECKING:
    from typing import TypeAlias

    # By part its key, and the object whose identity that is; None for a value.
    Parts: TypeAlias = list[tuple[Hashable, Any]]


T = TypeVar("T")


class PerReplica(Generic[T]):
    """One value per replica, indexed by ``replica_id``.

    ``tf.nest`` treats it as a leaf: a nest of ``PerReplica`` has the structure of the
    step's return value.

    Attributes:
      values: A tuple of ``num_replicas`` values.
      owner: The replicator whose ``run`` or inputs made them; None if a caller did.
      spec: The ``tf.TypeSpec`` of a batch that was read from inputs, or None.
    """

    __slots__ = ("owner", "spec", "values")

    def __init__(
        self,
        values: Sequence[T],
        *,
        owner: validation.ReplicatorId | None = None,
        spec: Any = None,
    ) -> None:
        self.owner = owner
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


def per_replica_nest(structure: Any, flat: Sequence[Any], num_replicas: int) -> Any:
    """Turns the flat outputs of R replicas into one nest of ``PerReplica``."""
    size = len(flat) // num_replicas
    index = -1
    owner = validation.held("maker")

    def group(leaf: Any) -> PerReplica[Any]:
        nonlocal index
        if leaf is None:
            return PerReplica([None] * num_replicas, owner=owner)
        index += 1
        return PerReplica(flat[index::size], owner=owner)

    if isinstance(structure, int):  # a single tensor, which most steps return
        return group(structure)
    return tf.nest.map_structure(group, structure)


_ADVICE: tuple[tuple[Any, str], ...] = (
    (type(None), "leave it out, or pass zeros instead"),
    (tf.RaggedTensor, "make it dense with value.to_tensor()"),
    (tf.SparseTensor, "make it dense with tf.sparse.to_dense(value)"),
    (
        PerReplica,
        "pass it to run(step_fn, inputs), and use the argument of the step",
    ),
    (int, "pass an integer that fits into 64 bits, or a float"),
    (object, "pass tensors, NumPy arrays or numbers"),
)
_NEVER_DENSE = (tf.RaggedTensor, tf.SparseTensor, PerReplica)


def tensor_of(value: Any, said: str) -> tf.Tensor:
    if isinstance(value, tf.Tensor):
        return value
    cause: Exception | None = None
    # A PerReplica has a length and items, so TensorFlow would stack its values.
    if not isinstance(value, _NEVER_DENSE):
        try:
            return tf.convert_to_tensor(value)
        except (TypeError, ValueError, tf.errors.OpError) as error:
            cause = error
    advice = next(advice for kind, advice in _ADVICE if isinstance(value, kind))
    raise TypeError(f"{said}, but got {format_value(value)}; {advice}") from cause


def outline(outputs: Any) -> Any:
    """A nest of outputs without the tensors, which would keep their graph."""
    return tf.nest.map_structure(lambda leaf: None if leaf is None else 0, outputs)


def tensors_of(outputs: Any) -> list[tf.Tensor]:
    return [leaf for leaf in tf.nest.flatten(outputs) if leaf is not None]


def check_outputs(outputs: Any, step_fn: Callable[..., Any]) -> Any:
    def convert(leaf: Any) -> tf.Tensor | None:
        try:
            return None if leaf is None else tf.convert_to_tensor(leaf)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"{name_of(step_fn)} returned a {type(leaf).__name__!r}; a step "
                "returns a nest of tensors (loss, metrics) or None"
            ) from error

    return tf.nest.map_structure(convert, outputs)


# TensorFlow counts traces per code object and warns if five calls in a row trace. Each
# program of this library is traced once, but the same lines create all programs; so
# each gets its own code object and is counted separately.

_COUNTER = itertools.count()
# Files whose lines are not those of a user: of this package, of Python, and of these.
_HERE = Path(__file__).resolve().parents[1]
_PYTHON = Path(sysconfig.get_paths()["stdlib"])
_FRAMEWORKS = frozenset({"keras", "tensorflow", "tf_keras"})


def traced_once(function: Callable[..., Any], **options: Any) -> Any:
    """Makes a ``tf.function`` that is counted apart from others of the same code."""
    owner = function.__self__ if isinstance(function, types.MethodType) else None
    inner: Any = getattr(function, "__func__", function)
    code = inner.__code__.replace(co_name=f"{inner.__name__}_{next(_COUNTER)}")
    own = types.FunctionType(
        code, inner.__globals__, inner.__name__, inner.__defaults__, inner.__closure__
    )
    own.__kwdefaults__ = inner.__kwdefaults__
    target = own if owner is None else types.MethodType(own, owner)
    return tf.function(target, **{"autograph": False, **options})


def repeat(
    step: Callable[[tf.Tensor], Sequence[tf.Tensor]],
    num_steps: int | tf.Tensor,
    specs: Sequence[tf.TensorSpec],
) -> list[tf.Tensor]:
    """Runs ``step`` ``num_steps`` times in the graph being built."""
    if isinstance(num_steps, int) and num_steps == 1:
        return list(step(tf.constant(0)))
    # The loop needs initial values; they are never read.
    start = [tf.zeros([d or 0 for d in s.shape], s.dtype) for s in specs]

    def body(index: tf.Tensor, *_previous: tf.Tensor) -> list[tf.Tensor]:
        return [index + 1, *step(index)]

    final = tf.while_loop(
        lambda index, *_: index < num_steps,
        body,
        [tf.constant(0), *start],
        shape_invariants=[tf.TensorShape([]), *(s.shape for s in specs)],
        # Training steps depend on each other: more iterations would only use memory.
        parallel_iterations=1,
    )
    return list(final[1:])


def line_of(stack: Iterable[Any] | None) -> str:
    """The line of a user's code that made an operation: the innermost of its stack."""
    for frame in reversed(list(stack or ())):
        if not _is_library(frame.filename):
            text = linecache.getline(frame.filename, frame.lineno).strip()
            return f"{frame.filename}:{frame.lineno}: {text}"
    return ""


def at_lines(lines: Sequence[str]) -> str:
    """Lines as part of a message; empty without any."""
    known = [line for line in lines if line]
    return f" at {', '.join(known)}" if known else ""


@functools.cache  # a step has thousands of frames, of few files
def _is_library(name: str) -> bool:
    path = Path(name)
    if path.name.startswith("<") or path.is_relative_to(_HERE):
        return True
    parts = path.parts
    for folder in ("site-packages", "dist-packages"):
        if folder in parts:
            return parts[parts.index(folder) + 1] in _FRAMEWORKS
    return path.is_relative_to(_PYTHON)


# Python creates a method object at each access, and programs often create a
# ``functools.partial`` at each call; neither makes a new step. A method is identified
# by its object and its function, a partial by its function and its arguments: each the
# same object, or a number or string of the same type and value. This is safe, because
# the same partial passed twice would also be traced once. Objects that a program
# references, such as a variable passed as an argument, then live as long as the
# function. Functions and lambdas are identified by the object itself, because their
# closures can be rebound.

_PLAIN_TYPES = (bool, int, str, bytes, type(None))


def identity(step_fn: Callable[..., Any]) -> tuple[Hashable, ...]:
    """The key of a step function, valid as long as its parts live."""
    if type(step_fn) is types.FunctionType:
        return (id(step_fn),)
    return tuple(key for key, _ in _parts(step_fn))


def origin_of(step_fn: Any) -> tuple[Any, Any]:
    """What all steps of one piece of code share: the code, and its object if any."""
    while isinstance(step_fn, functools.partial):
        step_fn = step_fn.func
    if isinstance(step_fn, types.MethodType):
        # Methods of different objects are different functions with the same code.
        return getattr(step_fn.__func__, "__code__", None), step_fn.__self__
    code = getattr(step_fn, "__code__", None)
    return (type(step_fn), step_fn) if code is None else (code, None)


def _parts(step_fn: Any) -> Parts:
    if isinstance(step_fn, types.MethodType):
        return [(id(part), part) for part in (step_fn.__self__, step_fn.__func__)]
    if isinstance(step_fn, functools.partial):
        head = "partial", len(step_fn.args), *step_fn.keywords
        arguments = (*step_fn.args, *step_fn.keywords.values())
        with contextlib.suppress(TypeError):
            given = [part for value in arguments for part in _parts_of_argument(value)]
            return [*_parts(step_fn.func), (head, None), *given]
    return [(id(step_fn), step_fn)]


def _parts_of_argument(value: Any) -> Parts:
    """A TypeError where it can neither be compared nor be held weakly."""
    kind = type(value)
    if kind in _PLAIN_TYPES:
        return [((kind, value), None)]
    if kind is float:
        return [((kind, value.hex()), None)]  # 0.0 and -0.0 are equal
    if kind is tuple:
        items = [part for item in value for part in _parts_of_argument(item)]
        return [((kind, len(value)), None), *items]
    if kind in (types.MethodType, functools.partial):
        return [((kind,), None), *_parts(value)]
    weakref.ref(value)
    return [(id(value), value)]


class StepCache:
    """What was made of step functions, each by a key; it is forgotten with them."""

    def __init__(self) -> None:
        self._made: dict[tuple[Hashable, ...], Any] = {}
        self._held: dict[Hashable, list[Any]] = {}  # By step, weakly what makes it up.

    def items(self) -> list[Any]:
        """All that was made, in its order."""
        return list(self._made.values())

    def find(self, step_fn: Callable[..., Any], *key: Hashable) -> tuple[Any, Any]:
        """The whole key, and what was made for it; None if nothing was."""
        full_key = identity(step_fn), optimizer_settings(), *key
        return full_key, self._made.get(full_key)

    def keep(
        self, full_key: Any, made: Any, step_fn: Callable[..., Any], *more: Any
    ) -> None:
        """Keeps what was made while all parts of the step, and ``more``, live."""
        self._made[full_key] = made
        function = full_key[0]
        if function not in self._held:
            parts = [part for _, part in _parts(step_fn) if part is not None]
            self._held[function] = [
                hold(part, self, StepCache._drop, function) for part in [*parts, *more]
            ]

    def _drop(self, function: Hashable) -> None:
        self._held.pop(function, None)
        for key in [each for each in self._made if each[0] == function]:
            del self._made[key]


def hold(part: Any, owner: Any, forget: Callable[..., None], key: Hashable) -> Any:
    """Refers to an object weakly if its type allows it; the owner forgets it then."""
    living = weakref.ref(owner)

    def forgotten(_: Any) -> None:  # at exit, this module may be unloaded before
        alive = living()
        if alive is not None:
            forget(alive, key)

    try:
        return weakref.ref(part, forgotten)
    except TypeError:
        return part
