"""Which programs there are, who published them, and what becomes of them."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

import replicator
from published import compiled, own_steps, strategies

if TYPE_CHECKING:
    from collections.abc import Callable

# A few steps of Adam on sums over a batch in another order, in float32.
RTOL, ATOL = 1e-4, 2e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """One program."""

    function: Callable[[Any], list[Any]]  # Takes a strategy; returns numbers.
    source: str  # Who published it, and under which title.
    # What the error says that it raises on several replicas, whose scope verifies; None
    # if all that it returns is that of one device.
    refusal: str | None = None


PROGRAMS = {
    program.function.__name__: program
    for program in (
        Program(
            function=compiled.transfer_learning,
            source="TensorFlow: transfer learning and fine-tuning",
        ),
        Program(
            function=compiled.recurrent_text_classification,
            source="TensorFlow: text classification with an RNN",
        ),
        Program(
            function=compiled.structured_data,
            source="TensorFlow: preprocessing layers",
        ),
        Program(
            function=compiled.several_outputs,
            source="Keras: functional API, several inputs and outputs",
        ),
        Program(
            function=compiled.collaborative_filtering,
            source="Keras: collaborative filtering",
        ),
        Program(
            function=compiled.translation_with_padding,
            source="TensorFlow: Transformer",
        ),
        Program(function=own_steps.wasserstein_gan, source="Keras: WGAN-GP"),
        Program(function=own_steps.cycle_gan, source="Keras: CycleGAN"),
        Program(
            function=own_steps.variational_autoencoder,
            source="Keras: variational autoencoder",
        ),
        Program(
            function=own_steps.vector_quantized_autoencoder, source="Keras: VQ-VAE"
        ),
        Program(
            function=own_steps.knowledge_distillation,
            source="Keras: knowledge distillation",
        ),
        Program(
            function=own_steps.masked_language_model,
            source="Keras: masked language modelling",
            refusal="a sum over the batch",
        ),
        Program(
            function=own_steps.nearest_neighbour_contrast,
            source="Keras: NNCLR",
            refusal="examples are compared or joined",
        ),
        Program(
            function=strategies.custom_training,
            source="TensorFlow: custom training with tf.distribute.Strategy",
        ),
        Program(
            function=strategies.distributed_input,
            source="TensorFlow: distributed input",
        ),
    )
}


def run(name: str, strategy: Any) -> list[Any]:
    """What a program returns with a strategy, from the same initial weights."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(7)
    values = PROGRAMS[name].function(strategy)
    return [np.asarray(value).tolist() for value in values]


def run_on(name: str, repl: replicator.Replicator) -> Any:
    """What a program returns on replicas; the text of its error if it is refused.

    Those that end in ``fit`` are verified on their first batch.
    """
    program = PROGRAMS[name]
    repl.scope(verify=program.function.__module__ != strategies.__name__)
    try:
        return run(name, repl.as_strategy())
    except replicator.ReplicatorError as error:
        if program.refusal is None:
            raise
        return str(error)


def check(name: str, expected: list[Any], found: Any) -> None:
    """Asserts that a program is equal, or was refused as it says."""
    refusal = PROGRAMS[name].refusal
    if refusal is not None:
        assert isinstance(found, str), f"{name} was not refused"
        assert refusal in found
        return
    assert len(expected) == len(found)
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        np.testing.assert_allclose(
            other, one, rtol=RTOL, atol=ATOL, err_msg=f"{name}: value {number}"
        )


CASES = {name: functools.partial(run_on, name) for name in PROGRAMS}
"""As those of a cluster; see ``case_cluster``."""


def set_up(_folder: str, backend: str) -> tuple[Any, ...]:
    """The replicator of all cases."""
    return (replicator.create(backend, num_replicas=2),)
