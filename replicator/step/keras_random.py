"""Keras' global seed generator in steps: random functions without a seed.

``keras.random.normal(shape)`` draws from a generator that Keras creates on first use
and keeps. If the first use is in a step, that would create a variable during tracing;
so the generator is created outside, as Keras would have done. It is random state like
any other: each replica has its own stream.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.step import creation

if TYPE_CHECKING:
    from collections.abc import Iterator


class StepGenerator:
    """The generator that a step draws from; keep it as long as the step's program.

    Attributes:
      made: Keras' generator; None until one is needed.
    """

    def __init__(self) -> None:
        self.made = _tf_compat.global_seed_generator()

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
            with tf.init_scope(), creation.allowed(), creation.place():
                self.made = _tf_compat.make_global_seed_generator()
        return self.made


class _LazyGenerator:
    """A placeholder for a generator that is created on first use."""

    def __init__(self, generator: StepGenerator) -> None:
        self._generator = generator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generator.make(), name)
