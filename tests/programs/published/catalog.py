"""Which programs there are, who published them, and what becomes of them."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
from published import fitted, own_steps

import replicator

# A few steps of Adam on sums over a batch in another order, in float32.
RTOL, ATOL = 1e-4, 2e-6


PROGRAMS = {
    program.__name__: program
    for program in (
        fitted.transfer_learning,  # TensorFlow: transfer learning and fine-tuning
        fitted.recurrent_text_classification,  # TensorFlow: classification by an RNN
        fitted.structured_data,  # TensorFlow: preprocessing layers
        fitted.several_outputs,  # Keras: functional API
        fitted.collaborative_filtering,  # Keras
        fitted.translation_with_padding,  # TensorFlow: Transformer
        own_steps.wasserstein_gan,  # Keras: WGAN-GP
        own_steps.cycle_gan,  # Keras: CycleGAN
        own_steps.variational_autoencoder,  # Keras
        own_steps.vector_quantized_autoencoder,  # Keras: VQ-VAE
        own_steps.knowledge_distillation,  # Keras
        own_steps.masked_language_model,  # Keras
        own_steps.nearest_neighbour_contrast,  # Keras: NNCLR
        fitted.custom_training,  # TensorFlow: custom training with tf.distribute
        fitted.distributed_input,  # TensorFlow
    )
}
"""By name; who published each, and under which title where it has another."""

# These have no ``fit``, whose first batch could be verified.
LOOPS = {"custom_training", "distributed_input"}
# What the error says that is raised on several replicas, whose scope verifies; all that
# the others return is equal to one device.
REFUSED = {
    "masked_language_model": "a sum over the batch",
    "nearest_neighbour_contrast": "examples are compared or joined",
}


def run(name: str, strategy: Any) -> list[Any]:
    keras.backend.clear_session()
    keras.utils.set_random_seed(7)
    values = PROGRAMS[name](strategy)
    return [np.asarray(value).tolist() for value in values]


def run_on(name: str, repl: replicator.Replicator) -> Any:
    """What a program returns on replicas; the text of its error if it is refused.

    Those that end in ``fit`` are verified on their first batch.
    """
    repl.scope(verify=name not in LOOPS)
    try:
        return run(name, repl.as_strategy())
    except replicator.ReplicatorError as error:
        if name not in REFUSED:
            raise
        return str(error)


def check(name: str, expected: list[Any], found: Any) -> None:
    if name in REFUSED:
        assert isinstance(found, str), f"{name} was not refused"
        assert REFUSED[name] in found
        return
    assert len(expected) == len(found)
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        np.testing.assert_allclose(
            other, one, rtol=RTOL, atol=ATOL, err_msg=f"{name}: value {number}"
        )


CASES = {name: functools.partial(run_on, name) for name in PROGRAMS}
"""As those of a cluster; see ``case_cluster``."""


def set_up(_folder: str, backend: str) -> tuple[Any, ...]:
    return (replicator.create(backend, num_replicas=2),)
