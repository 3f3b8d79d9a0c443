"""Programs as libraries publish them give with a strategy what they give without.

Programs of libraries that are not locked are skipped by name; ``make test-communities``
installs these and runs all.
"""

import functools
import importlib
import importlib.util
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator

FOLDER = Path(__file__).parent / "communities"
NEEDS = {
    "keras_hub_classifier": "keras_hub",
    "keras_tuner_search": "keras_tuner",
    "orbit_controller": "orbit",
    "sonnet_vqvae": "sonnet",
    "sonnet_vqvae_ema": "sonnet",
    "tf_agents_dqn": "tf_agents",
    "tf_keras_fit": "tf_keras",
    "tfp_variational": "tensorflow_probability",
}
PROGRAMS = sorted({path.stem for path in FOLDER.glob("*.py")} - {"__init__", "data"})
# Sums over a batch in another order, a few steps of Adam deep, in float32.
RTOL, ATOL = 2e-5, 2e-6


def installed(name):
    return importlib.util.find_spec(NEEDS.get(name, "keras")) is not None


def _module(name):
    if not installed(name):
        pytest.skip(f"{NEEDS[name]} is not installed: make test-communities has it")
    return importlib.import_module(f"communities.{name}")


@functools.cache
def _on_one_device(name):
    return _run(name, tf.distribute.get_strategy())


def _run(name, strategy):
    keras.utils.set_random_seed(7)
    return _module(name).train(strategy)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("placement", ["shared", "mirrored"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_differs_in_its_strategy_only(name, placement):
    """One device, and two replicas that share variables or have copies."""
    expected = _on_one_device(name)
    devices = {"devices": ["CPU:0", "CPU:1"]} if placement == "mirrored" else {}
    repl = replicator.create(
        "in_graph", num_replicas=2, variable_placement=placement, **devices
    )

    got = _run(name, repl.as_strategy())

    assert len(expected) == len(got)
    for one, other in zip(expected, got, strict=True):
        np.testing.assert_allclose(other, one, rtol=RTOL, atol=ATOL, err_msg=name)
    weights = np.concatenate([np.ravel(value) for value in expected])
    assert np.all(np.isfinite(weights))
