"""Variables that are created while a step function is traced.

As ``tf.function`` has it, the first trace may make them: a model that is built by its
first batch, a metric or an optimizer that makes its state when it is needed. They are
made outside the step, and the step is traced again, which must not make others. So is
Keras' global seed generator, from which ``keras.random.normal(shape)`` and others draw
that get no seed; each replica has its own stream of it.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.errors import CreateVariableInStepError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_Traced = TypeVar("_Traced")


def _ignore(_variable: Any) -> None:
    """Nobody has to know."""


class _State(threading.local):
    is_allowed = False
    made: Callable[[Any], None] = staticmethod(_ignore)
    place: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


_STATE = _State()


@contextlib.contextmanager
def allowed() -> Iterator[None]:
    """Lets the library itself create variables (optimizer slots) during a trace."""
    before, _STATE.is_allowed = _STATE.is_allowed, True
    try:
        yield
    finally:
        _STATE.is_allowed = before


def own_variable(value: Any, **how: Any) -> tf.Variable:
    """Makes a variable of the library's own, of which a user's graph knows nothing.

    ``tf.function`` traces twice what makes variables the first time (test_run).
    """
    return tf.Variable(
        value, trainable=False, experimental_enable_variable_lifting=False, **how
    )


@contextlib.contextmanager
def created_in(
    scope: Callable[[], contextlib.AbstractContextManager[Any]],
    made: Callable[[Any], None] = _ignore,
) -> Iterator[None]:
    """Makes what a step creates in a scope of variables."""
    before = _STATE.place, _STATE.made
    _STATE.place, _STATE.made = scope, made
    try:
        yield
    finally:
        _STATE.place, _STATE.made = before


def place() -> contextlib.AbstractContextManager[Any]:
    """The scope in which what a step creates is made."""
    return _STATE.place()


@contextlib.contextmanager
def made_outside(
    note: Callable[[Any], None] | None = None, device: str | None = None
) -> Iterator[None]:
    """Makes variables that a step creates inside it outside of the step."""

    def create(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        initial_value = kwargs.get("initial_value")
        if not tf.executing_eagerly():  # not yet outside, as libraries may be
            initial_value = _tf_compat.outside_of_step(initial_value)
            next_creator = (
                _tf_compat.make_variable
            )  # not as tf.function would, in its graph
        if initial_value is None:
            raise _refused(kwargs)
        with (
            tf.init_scope(),
            allowed(),
            place() if device is None else tf.device(device),
        ):
            variable = next_creator(**{**kwargs, "initial_value": initial_value})
        _STATE.made(variable)
        if note is not None:
            note(variable)
        return variable

    with _creating(create):
        yield


def in_first_trace(trace: Callable[[], _Traced]) -> _Traced:
    """Traces a step; its first trace may create variables."""
    made: list[Any] = []  # which keeps them until the step was traced again
    with made_outside(made.append):
        traced = trace()
    if not made:
        return traced
    with forbidden_in_steps():
        return trace()


@contextlib.contextmanager
def forbidden_in_steps() -> Iterator[None]:
    """Makes the creation of variables inside it raise an actionable error."""

    def create(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        del next_creator
        raise _refused(kwargs)

    with _creating(create):
        yield


@contextlib.contextmanager
def _creating(create: Callable[..., Any]) -> Iterator[None]:
    """Lets a function make variables, but for those of the library itself."""

    def creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        if _STATE.is_allowed:
            variable = next_creator(**kwargs)
            _STATE.made(variable)
            return variable
        return create(next_creator, **kwargs)

    with tf.variable_creator_scope(creator):
        yield


def _refused(kwargs: dict[str, Any]) -> CreateVariableInStepError:
    name = kwargs.get("name") or "Variable"
    return CreateVariableInStepError(
        f"the step function created a variable ({name!r}) that it cannot create once "
        "for all steps, but a step runs many times and on many replicas; create "
        "models, metrics and other variables before it, inside `with repl.context():` "
        "(a Keras model creates its variables when it is built: call it once, or call "
        "model.build(shape))"
    )


class StepGenerator:
    """Keras' generator that a step draws from; keep it as long as its program."""

    def __init__(self) -> None:
        self.made = _tf_compat.global_seed_generator()  # None until one is needed

    @contextlib.contextmanager
    def installed(self) -> Iterator[StepGenerator]:
        """Makes it this thread's global generator while a step is traced inside."""
        before = _tf_compat.global_seed_generator()
        _tf_compat.set_global_seed_generator(self.made or _LazyGenerator(self))
        try:
            yield self
        finally:
            _tf_compat.set_global_seed_generator(before or self.made)

    def make(self) -> Any:
        """Returns Keras' generator, created outside the step if necessary."""
        if self.made is None:
            with tf.init_scope(), allowed(), place():
                self.made = _tf_compat.make_global_seed_generator()
        return self.made


class _LazyGenerator:
    """A placeholder for a generator that is created on first use."""

    def __init__(self, generator: StepGenerator) -> None:
        self._generator = generator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator.make(), name)
