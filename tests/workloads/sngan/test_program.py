"""SN-GAN as it is measured: two kinds of steps, averages, scores, pictures."""

import re

import numpy as np
import pytest
import small_programs
import tensorflow as tf

from workloads import WORKLOADS


def build(*backend, **settings):
    settings = {"data": "digits", "per_replica_batch_size": 8, **settings}
    return small_programs.build_whole("sngan", *backend, **settings)


# One doubling, and two blocks of the discriminator.
SMALL = small_programs.OPTIONS["sngan"]
# They change with the initial values, the order of the digits, latents, networks,
# losses and updates, and by rounding with the kernels of other machines.
GOLDEN_LOSSES = (3.476029, 2.987664, 3.074198, 2.889107, 2.882480)


@pytest.fixture(scope="module")
def trained():
    tf.keras.utils.set_random_seed(3)
    made = build(num_discriminator_steps=3, ema_decay=0.75, **SMALL)
    networks = (made.training.generator, made.training.discriminator)
    average = made.training.averages[0].numpy()
    losses, changes = [], []
    for _ in range(5):
        before = [network.variables[0].numpy() for network in networks]
        losses.append(made.run())
        after = [network.variables[0].numpy() for network in networks]
        changes.append(
            [not np.array_equal(*pair) for pair in zip(before, after, strict=True)]
        )
        if changes[-1][0]:
            weights = networks[0].trainable_variables[0].numpy()
            average = average + 0.25 * (weights - average)
        found = made.training.averages[0].numpy()
        np.testing.assert_allclose(found, average, rtol=1e-5, atol=1e-7)
    return made, losses, changes


@pytest.fixture
def program(trained):
    return trained[0]


# Otherwise the mean step time would depend on where the window begins.
def test_measured_windows_hold_both_kinds_of_steps_alike():
    for preset in WORKLOADS["sngan"].presets:
        config = WORKLOADS["sngan"].make_config(preset.name, {})
        assert 0 == preset.num_measured_steps % config.num_discriminator_steps


def test_the_generator_is_updated_in_every_nth_step_and_its_average_with_it(trained):
    of_generator, of_discriminator = zip(*trained[2], strict=True)

    assert list(GOLDEN_LOSSES) == pytest.approx(trained[1], rel=5e-4)
    assert (True, False, False, True, False) == of_generator
    assert all(of_discriminator)


def test_pictures_are_made_with_the_average(program):
    latents = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    labels = np.arange(4, dtype=np.int32)
    generator, averages = program.training.generator, program.training.averages
    shown = program.training.generate()(latents, labels)
    bare = generator(latents, labels, training=False)
    before = [variable.numpy() for variable in generator.trainable_variables]
    for variable, average in zip(generator.trainable_variables, averages, strict=True):
        variable.assign(average.numpy())
    averaged = generator(latents, labels, training=False)
    for variable, value in zip(generator.trainable_variables, before, strict=True):
        variable.assign(value)

    assert not np.allclose(shown, bare, atol=1e-4)
    np.testing.assert_allclose(averaged, shown, rtol=0, atol=1e-6)


def test_pictures_are_those_of_the_last_step(program):
    before = program.samples()
    for _ in range(2):  # one by one: both kinds of steps are traced already
        program.run()
    grid = program.samples()

    assert before != grid
    assert (6 * 33, 10 * 33, 3) == tf.io.decode_png(grid).shape


def test_quality_has_scores_and_recognised_digits(program):
    quality = {metric.name: metric for metric in program.evaluate()}

    assert ["fid", "kid", "inception_score", "recognised"] == list(quality)
    assert {200} == {metric.num_examples for metric in quality.values()}
    assert all(m.low <= m.value <= m.high for m in quality.values())
    assert "digits/train" in quality["fid"].protocol
    scale = r"; held-out images score (\S+) and noise (\S+) \(n = 200 each\)$"
    best, worst = map(float, re.search(scale, quality["fid"].protocol).groups())
    assert 0 < best < worst / 50
    assert quality == {metric.name: metric for metric in program.evaluate()}


@pytest.mark.full
@pytest.mark.parametrize(("backend", "num_replicas"), [("single", 1), ("in_graph", 2)])
def test_sixteen_bits_train(trained, backend, num_replicas):
    tf.keras.utils.set_random_seed(3)
    made = build(backend, num_replicas, compute_dtype="mixed_bfloat16", **SMALL)
    losses = [made.run() for _ in range(2)]

    assert "bfloat16" == made.compute_dtype
    assert np.isfinite(losses).all()
    assert trained[1][0] == pytest.approx(losses[0], rel=0.05)
    small_programs.sane(made)
