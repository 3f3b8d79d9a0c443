"""Private names of TensorFlow's random ops: steps whose numbers are constants."""

from __future__ import annotations

import contextlib
import functools
import re
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from keras.src.random.seed_generator import SeedGenerator
from tensorflow.python.eager import context as eager_context
from tensorflow.python.ops import gen_random_ops, gen_stateless_random_ops_v2

from replicator._tf.compat import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


# Uniform numbers are above the usual thresholds, so that dropout and augmentation do
# nothing; integers are the middle of their range.
_VALUES = {"uniform": 0.9, "normal": 0.4, "uniform_int": None}
_NAMES = {
    gen_random_ops: {
        "random_uniform": "uniform",
        "random_standard_normal": "normal",
        "truncated_normal": "normal",
        "random_uniform_int": "uniform_int",
    },
    gen_stateless_random_ops_v2: {
        "stateless_random_uniform_v2": "uniform",
        "stateless_random_normal_v2": "normal",
        "stateless_truncated_normal_v2": "normal",
        "stateless_random_uniform_int_v2": "uniform_int",
    },
}
_IS_RANDOM = re.compile(r"Random|Multinomial|StatelessShuffle|TruncatedNormal|^Rng")


@contextlib.contextmanager
def constants() -> Iterator[None]:
    """In the graph that is being built, random numbers are constants (test_verify)."""
    with contextlib.ExitStack() as stack:
        for module, names in _NAMES.items():
            for name, kind in names.items():
                constant = functools.partial(_constant, _VALUES[kind])
                stack.enter_context(replaced(module, name, constant))
        yield


def _constant(
    value: float | None, _: Any, shape: Any, *args: Any, **options: Any
) -> Any:
    if value is not None:
        return tf.fill(shape, tf.cast(value, options.get("dtype") or args[0]))
    low, high = args[:2] if args else (options["minval"], options["maxval"])
    return tf.fill(shape, low + (high - low) // 2)


def left(graph: Any) -> list[Any]:
    """The operations of a graph that draw, also within the functions that it calls."""
    drawing = {
        function.definition.signature.name
        for function in graph._functions.values()  # noqa: SLF001
        if any(_IS_RANDOM.search(node.op) for node in function.definition.node_def)
    }
    return [
        op
        for op in graph.get_operations()
        if _IS_RANDOM.search(op.type) or drawing & _called(op)
    ]


def _called(op: Any) -> set[str]:
    attributes = op.node_def.attr.values()
    return {value.func.name for value in attributes if value.func.name}


def eager_state() -> Any:
    """From what eager operations without a seed draw theirs (test_verify)."""
    # None in a process without a global seed: each then has one of its own.
    generator = getattr(eager_context.context(), "_rng", None)
    return None if generator is None else generator.getstate()


def set_eager_state(state: Any) -> None:
    if state is not None:
        eager_context.context()._rng.setstate(state)  # noqa: SLF001


# ``keras.src.random.SeedGenerator.next`` reads a variable and moves it on. Within a
# stage it is replaced, for the thread that traces, by an argument of the stage.


class StageSeeds:
    """The draws of a stage, in the order of its code."""

    def __init__(self, seeds: Sequence[tf.Tensor] | None = None) -> None:
        self.generators: list[Any] = []  # The generator of each draw.
        self._seeds = seeds

    def draw(self, generator: Any) -> tf.Tensor:
        """Returns the seed of the next draw; without seeds, one that is not used."""
        self.generators.append(generator)
        if self._seeds is None:
            return tf.zeros(
                generator_spec(generator).shape, generator_spec(generator).dtype
            )
        return self._seeds[len(self.generators) - 1]

    @contextlib.contextmanager
    def installed(self) -> Iterator[StageSeeds]:
        """Answers all draws of Keras in this thread (test_pipeline)."""

        # Inside Keras a layer holds its own generator, so that nothing less than the
        # method reaches every draw.
        def draw(_: Any, generator: Any, *_args: Any, **_options: Any) -> tf.Tensor:
            return self.draw(generator)

        with replaced(SeedGenerator, "next", draw, in_all_graphs=True):
            yield self


def generator_spec(generator: Any) -> tf.TensorSpec:
    """What a generator of Keras returns (test_pipeline)."""
    return tf.TensorSpec(generator.state.shape, generator.state.dtype)
