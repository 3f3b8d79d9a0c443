"""SN-GAN as it is measured: two kinds of steps, averages, scores, pictures."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import small_programs
import tensorflow as tf

import replicator
from workloads import catalog
from workloads.sngan import config
from workloads.sngan.study import WORKLOAD


def build(backend="single", num_replicas=1, per_replica_batch_size=8, **options):
    return WORKLOAD.build(
        replicator.create(backend, num_replicas=num_replicas),
        preset="smoke",
        data="digits",
        per_replica_batch_size=per_replica_batch_size,
        seed=1,
        options=options,
    )


# One doubling, and two blocks of the discriminator.
SMALL = small_programs.OPTIONS["sngan"]


@dataclasses.dataclass(frozen=True)
class Trained:
    """A program after 5 steps, and what each of them changed."""

    program: object  # The program.
    first_loss: float  # That of the first step.
    # Whether the step changed the generator, and the discriminator.
    changes: list[tuple[bool, bool]]
    # Of a weight after the step, as the program has it and as expected.
    averages: list[tuple[np.ndarray, np.ndarray]]


@pytest.fixture(scope="module")
def trained():
    """Made once: each of its two kinds of steps is traced and optimized for seconds."""
    tf.keras.utils.set_random_seed(3)
    made = build(num_discriminator_steps=3, ema_decay=0.75, **SMALL)
    average = made.training.averages[0].numpy()
    losses, changes, averages = [], [], []
    for _ in range(5):
        before = (
            weights_of(made.training.generator)[0],
            weights_of(made.training.discriminator)[0],
        )
        losses.append(made.run())
        after = (
            weights_of(made.training.generator)[0],
            weights_of(made.training.discriminator)[0],
        )
        changes.append(tuple(not same for same in are_equal(before, after)))
        if changes[-1][0]:
            weights = made.training.generator.trainable_variables[0].numpy()
            average = average + 0.25 * (weights - average)
        averages.append((made.training.averages[0].numpy(), average))
    return Trained(made, losses[0], changes, averages)


@pytest.fixture
def program(trained):
    return trained.program


def weights_of(model):
    return [variable.numpy() for variable in model.variables]


def are_equal(first, second):
    return [np.array_equal(a, b) for a, b in zip(first, second, strict=True)]


def test_measured_windows_hold_both_kinds_of_steps_alike():
    """Otherwise the mean step time would depend on where the window begins."""
    for preset in catalog.WORKLOADS["sngan"].presets:
        every = config.PRESETS[preset.name].num_discriminator_steps
        assert 0 == preset.num_measured_steps % every, preset.name


def test_the_generator_is_updated_in_every_nth_step_and_its_average_with_it(trained):
    """First, then the discriminator alone; average += (1 - decay) * (weights - it)."""
    of_generator, of_discriminator = zip(*trained.changes, strict=True)

    assert (True, False, False, True, False) == of_generator
    assert all(of_discriminator)
    for found, expected in trained.averages:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


def test_pictures_are_made_with_the_average(program):
    """The generator itself would give others."""
    latents = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    labels = np.arange(4, dtype=np.int32)
    program._update_shown()
    shown = program.training.images_of(latents, labels)
    bare = program.training.generator(latents, labels, training=False)

    assert not np.allclose(shown, bare, atol=1e-4)
    for value, average in zip(
        program.training.shown.trainable_variables,
        program.training.averages,
        strict=True,
    ):
        np.testing.assert_array_equal(value.numpy(), average.numpy())


def test_weights_are_copied_once_for_scores_and_pictures(program, monkeypatch):
    """Again after the next step, or pictures would be of the model before it."""
    copies = []
    variable = program.training.shown.trainable_variables[0]
    assign = variable.assign
    monkeypatch.setattr(variable, "assign", lambda v: copies.append(v) or assign(v))
    program.run()
    program.evaluate()
    num_copies = len(copies)
    before = program.samples()

    assert 0 < num_copies == len(copies)
    for _ in range(2):  # one by one: both kinds of steps are traced already
        program.run()
    assert before != program.samples()
    assert 2 * num_copies == len(copies)


def test_quality_has_scores_and_recognised_digits(program):
    """Each with unit, n and interval; the same images again give the same figures."""
    quality = {metric.name: metric for metric in program.evaluate()}

    assert ["fid", "kid", "inception_score", "recognised"] == list(quality)
    assert {200} == {metric.num_examples for metric in quality.values()}
    assert all(m.low <= m.value <= m.high for m in quality.values())
    assert "digits/train" in quality["fid"].protocol
    scale = r"; held-out images score (\S+) and noise (\S+) \(n = 200 each\)$"
    best, worst = map(float, re.search(scale, quality["fid"].protocol).groups())
    assert 0 < best < worst / 50
    assert quality == {metric.name: metric for metric in program.evaluate()}


def test_samples_are_a_grid_of_classes(program):
    """Six rows of ten images of 8 px, enlarged to 32 with a gap of one pixel."""
    grid = tf.io.decode_png(program.samples())

    assert (6 * 33, 10 * 33, 3) == grid.shape


def test_two_replicas_differ_in_what_they_draw_and_agree_in_what_they_learn():
    """Different latents, equal weights, spectral vectors and averages."""
    made = build("in_graph", 2, batch_norm="cross_replica", **SMALL)
    made.run()
    first, second = made.losses_of_replicas()

    assert first != second
    made._repl.assert_in_sync()
    assert made._repl.local_state() == []


def test_a_data_set_with_more_classes_is_refused():
    with pytest.raises(ValueError, match=r"10 classes, but the network has 4: set"):
        build(num_classes=4)


@pytest.mark.full
def test_the_paper_preset_takes_a_step_at_full_size():
    """128 pixels, 1024 channels, 1000 classes: both updates on two random images.

    The hinge loss of an untrained discriminator is 2, less what its first logits add.
    """
    made = WORKLOAD.build(
        replicator.create("single", num_replicas=1),
        preset="paper",
        data="synthetic",
        per_replica_batch_size=2,
        seed=0,
        options={},
    )
    first = made.training.generator.trainable_variables[0].numpy()

    assert 2.0 == pytest.approx(made.run(), abs=0.5)
    assert 72_038_788 == made.num_parameters
    assert not np.array_equal(
        first, made.training.generator.trainable_variables[0].numpy()
    )


@pytest.mark.parametrize(
    ("backend", "num_replicas"),
    [("single", 1), pytest.param("in_graph", 2, marks=pytest.mark.full)],
)
def test_sixteen_bits_train(trained, backend, num_replicas):
    """The loss starts where that of float32 does, and stays finite."""
    assert config.COMPUTE_DTYPES == ("float32", "mixed_bfloat16")
    tf.keras.utils.set_random_seed(3)
    made = build(backend, num_replicas, compute_dtype="mixed_bfloat16", **SMALL)
    losses = [made.run() for _ in range(2)]

    assert "bfloat16" == made.compute_dtype
    assert np.isfinite(losses).all()
    assert trained.first_loss == pytest.approx(losses[0], rel=0.05)
    assert all(check.is_passed for check in made.sanity())
