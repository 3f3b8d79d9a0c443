"""Published programs are equal to one device, or refused.

Each is one function of a strategy.
"""

import functools
from pathlib import Path

import case_cluster
import keras
import numpy as np
import pytest
import tensorflow as tf
from published import fitted, own_steps

import replicator

FOLDER = Path(__file__).parent
# A few steps of Adam on sums over a batch in another order, in float32.
RTOL, ATOL = 1e-4, 2e-6


# By name; who published each, and under which title where it has another.
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
# These have no ``fit``, whose first batch could be verified.
LOOPS = {"custom_training", "distributed_input"}
# What the error says that is raised on several replicas, whose scope verifies; all that
# the others return is equal to one device.
REFUSED = {
    "masked_language_model": "a sum over the batch",
    "nearest_neighbour_contrast": "examples are compared or joined",
}


def run(name, strategy):
    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(7)
    values = PROGRAMS[name](strategy)
    return [np.asarray(value).tolist() for value in values]


def run_on(name, repl):
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


def check(name, expected, found):
    if name in REFUSED:
        assert isinstance(found, str), f"{name} was not refused"
        assert REFUSED[name] in found
        return
    assert len(expected) == len(found)
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        np.testing.assert_allclose(
            other, one, rtol=RTOL, atol=ATOL, err_msg=f"{name}: value {number}"
        )


# What a cluster runs; see ``case_cluster``.
CASES = {name: functools.partial(run_on, name) for name in PROGRAMS}


def set_up(_folder, backend):
    return (replicator.create(backend, num_replicas=2),)


# A loss that Keras divides, one that the step takes, text, and a loop of
# ``tf.distribute`` in a function: what is done differently.
OFTEN = {
    "shared": ("custom_training", "structured_data"),
    "mirrored": (
        "distributed_input",
        "nearest_neighbour_contrast",
        "variational_autoencoder",
    ),
}
PLACED = [
    pytest.param(
        name,
        placement,
        id=f"{name}-{placement}",
        marks=[] if name in often else pytest.mark.full,
    )
    for placement, often in OFTEN.items()
    for name in PROGRAMS
]


@functools.cache
def _on_one_device(name):
    return run(name, tf.distribute.get_strategy())


@pytest.mark.parametrize(("name", "placement"), PLACED)
def test_a_published_program_is_equal_or_refused(name, placement):
    devices = {"devices": ["CPU:0", "CPU:1"]} if placement == "mirrored" else {}
    repl = replicator.create(
        "in_graph", num_replicas=2, variable_placement=placement, **devices
    )

    found = run_on(name, repl)

    check(name, _on_one_device(name), found)


@pytest.fixture(scope="module", params=["multi_worker", "multi_worker_in_graph"])
def workers(request, tmp_path_factory):
    served = {"runners": [("worker", 0)]} if "in_graph" in request.param else {}
    return case_cluster.ran(
        "test_published",
        tmp_path_factory.mktemp(request.param),
        path=FOLDER,
        num_workers=2,
        options={"backend": request.param},
        **served,
    )


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_published_program_on_workers_is_equal_or_refused(workers, name):
    for found in workers.values(name):
        check(name, _on_one_device(name), found)
