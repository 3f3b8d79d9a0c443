"""Keras' global seed generator in steps: random functions without a seed.

``keras.random.normal(shape)`` draws from a generator that Keras makes when it is first
asked, and keeps. A step that asks first would make a variable while it is traced; so it
is made outside, as Keras would have, and is random state like any other: each replica
has a stream of its own.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.step import creation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _Place(threading.local):
    scope: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


_PLACE = _Place()


@contextlib.contextmanager
def created_in(scope: Callable[[], contextlib.AbstractContextManager[Any]]) -> Any:
    """Makes a generator that a step asks for inside it in a scope of variables."""
    before, _PLACE.scope = _PLACE.scope, scope
    try:
        yield
    finally:
        _PLACE.scope = before


class StepGenerator:
    """The generator that a step draws from; keep it as long as the step's program.

    Attributes:
      made: Keras' generator; None until one is needed.
    """

    def __init__(self) -> None:
        self.made = _tf_compat.global_seed_generator()

    @contextlib.contextmanager
    def installed(self) -> Iterator[StepGenerator]:
        """Makes it the global one of this thread, while the step is traced in it."""
        before = _tf_compat.global_seed_generator()
        _tf_compat.set_global_seed_generator(self.made or _LazyGenerator(self))
        try:
            yield self
        finally:
            _tf_compat.set_global_seed_generator(before or self.made)

    def make(self) -> Any:
        """Returns Keras' generator, made outside the step if there is none yet."""
        if self.made is None:
            with tf.init_scope(), creation.allowed(), _PLACE.scope():
                self.made = _tf_compat.make_global_seed_generator()
        return self.made


class _LazyGenerator:
    """Stands for a generator that nobody has asked for yet."""

    def __init__(self, generator: StepGenerator) -> None:
        self._generator = generator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator.make(), name)
