"""The networks of SN-GAN that are written in TensorFlow again: those of ours."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from workloads.peers import export
from workloads.sngan.config import PRESETS
from workloads.sngan.networks import Discriminator, Generator

if TYPE_CHECKING:
    import pytest

FILE = Path(__file__).resolve().parents[3] / "workloads/peers/horovod/sngan.py"
ROUNDING = 1e-4  # of sums in float32 in another order


def assert_close(ours: Any, found: Any) -> None:
    """Compares with the largest number of an array, since sums can be near zero.

    All of them are where a bias precedes a batch normalization.
    """
    largest = max(np.abs(ours).max(), 0.1)
    np.testing.assert_allclose(ours, found, rtol=0, atol=ROUNDING * largest)


def test_horovod_trains_our_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images, logits, their gradients, and what a call keeps; without Horovod."""
    # Its process alone needs Horovod.
    name = "workloads.peers.horovod.process"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(Process=None))
    networks_of = runpy.run_path(str(FILE))["Networks"]
    config = PRESETS["smoke"]
    ours = {
        "generator": Generator(config, seed=0),
        "discriminator": Discriminator(config, seed=0),
    }
    rng = np.random.default_rng(0)
    for model in ours.values():
        for of in model.trainable_variables:  # scales and shifts differ between classes
            of.assign(of.numpy() + 0.1 * rng.standard_normal(of.shape, np.float32))

    def values() -> dict[str, np.ndarray]:
        return {
            path: value
            for root, model in ours.items()
            for path, value in export.variables_of(model, root)
        }

    first = values()
    exported = SimpleNamespace(part={"weights": first}.get)
    process = SimpleNamespace(export=exported, compiled=lambda function: function)
    found = networks_of(process)
    latents = rng.standard_normal((6, config.latent_size), np.float32)
    labels = np.arange(6, dtype=np.int32) % config.num_classes
    with tf.GradientTape(persistent=True) as tape:
        images = found.images(tf.constant(latents), tf.constant(labels))
        logits = found.logits(images, tf.constant(labels))
        our_images = ours["generator"](latents, labels, training=True)
        our_logits = ours["discriminator"](our_images, labels, training=True)

    assert_close(our_images, images)
    assert_close(our_logits, logits)
    for name, model in ours.items():
        trained = model.trainable_variables
        paths = [
            path
            for of in trained
            for path, value in first.items()
            if np.array_equal(value, of)  # drawn at random
        ]
        assert {*map(id, found.trained[name])} == {
            id(found.variables[path]) for path in paths
        }
        gradients = tape.gradient(logits, [found.variables[path] for path in paths])
        for of, gradient in zip(
            tape.gradient(our_logits, trained), gradients, strict=True
        ):
            assert_close(tf.convert_to_tensor(of), gradient)
    for path, value in values().items():
        assert_close(value, found.variables[path])
