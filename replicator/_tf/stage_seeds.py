"""Seeds that Keras' layers draw while a stage of a pipeline is traced.

``keras.src.random.SeedGenerator.next`` reads a variable and moves it on. Within a stage
it is replaced, for the thread that traces, by an argument of the stage.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class StageSeeds:
    """The draws of a stage, in the order of its code.

    Attributes:
      generators: The generator of each draw.
    """

    def __init__(self, seeds: Sequence[tf.Tensor] | None = None) -> None:
        self.generators: list[Any] = []
        self._seeds = seeds

    def draw(self, generator: Any) -> tf.Tensor:
        """Returns the seed of the next draw; without seeds, one that is not used."""
        self.generators.append(generator)
        if self._seeds is None:
            return tf.zeros(spec(generator).shape, spec(generator).dtype)
        return self._seeds[len(self.generators) - 1]

    @contextlib.contextmanager
    def installed(self) -> Iterator[StageSeeds]:
        """Answers all draws of Keras in this thread (test_pipeline)."""
        _replace_next()
        token = _ACTIVE.set(self)
        try:
            yield self
        finally:
            _ACTIVE.reset(token)


def spec(generator: Any) -> tf.TensorSpec:
    """What a generator of Keras returns (test_pipeline)."""
    return tf.TensorSpec(generator.state.shape, generator.state.dtype)


_ACTIVE: contextvars.ContextVar[StageSeeds | None] = contextvars.ContextVar(
    "replicator_stage_seeds", default=None
)


@functools.cache  # once per process: what is replaced answers as before elsewhere
def _replace_next() -> None:
    # Inside Keras a layer holds its own generator, so that nothing less than the method
    # reaches every draw.
    from keras.src.random.seed_generator import SeedGenerator

    following = SeedGenerator.next

    @functools.wraps(following)
    def draw(self: Any, *args: Any, **kwargs: Any) -> Any:
        active = _ACTIVE.get()
        if active is None:
            return following(self, *args, **kwargs)
        return active.draw(self)

    SeedGenerator.next = draw
