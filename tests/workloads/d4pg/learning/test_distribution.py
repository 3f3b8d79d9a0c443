"""Distributions of returns: the projection by hand, by loops and by another library."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.d4pg.learning import distribution

GOLDENS = pathlib.Path(__file__).with_name("goldens.json")
ROUNDING = 2e-6  # float32, sums of tens of numbers below 1
REACH = (-3.0, 3.0, 11)  # of the goldens


def backup(reward, discount, probabilities, atoms):
    arrays = (reward, discount, probabilities, atoms)
    tensors = [tf.constant(np.asarray(a, np.float32)) for a in arrays]
    return [found.numpy() for found in distribution.backup(*tensors)]


def slow_backup(reward, discount, probabilities, atoms):
    """Equation 7 as it is written, in float64, one probability at a time."""
    low, high = atoms[0], atoms[-1]
    spacing = (high - low) / (len(atoms) - 1)
    target = np.zeros((len(reward), len(atoms)))
    for example in range(len(reward)):
        for i, atom in enumerate(atoms):
            for j, other in enumerate(atoms):
                moved = reward[example] + discount[example] * other
                distance = abs(min(max(moved, low), high) - atom) / spacing
                share = min(max(1.0 - distance, 0.0), 1.0)
                target[example, i] += share * probabilities[example, j]
    return target


def test_a_return_between_atoms_is_shared_by_them():
    """All on atom 1 of 0, 1, 2, then 0.25 + 0.5 * 1 = 0.75: a quarter to the left."""
    target, clipped = backup([0.25], [0.5], [[0.0, 1.0, 0.0]], [0.0, 1.0, 2.0])

    np.testing.assert_allclose([[0.25, 0.75, 0.0]], target, atol=ROUNDING)
    assert 0.0 == clipped[0]


def test_the_last_step_puts_everything_at_its_reward():
    """With discount 0 the next distribution does not matter."""
    target, _ = backup([1.5], [0.0], [[0.2, 0.3, 0.5]], [0.0, 1.0, 2.0])

    np.testing.assert_allclose([[0.0, 0.5, 0.5]], target, atol=ROUNDING)


def test_returns_beyond_the_atoms_are_clipped_and_counted():
    """2 + [0, 1, 2] on atoms up to 2: the first fits exactly, 0.7 of it does not."""
    target, clipped = backup([2.0], [1.0], [[0.3, 0.5, 0.2]], [0.0, 1.0, 2.0])

    np.testing.assert_allclose([[0.0, 0.0, 1.0]], target, atol=ROUNDING)
    np.testing.assert_allclose([0.7], clipped, atol=ROUNDING)


def test_an_unchanged_distribution_clips_nothing():
    """Reward 0 and discount 1 leave 101 atoms where they are, in spite of rounding."""
    atoms = distribution.make_atoms(-150.0, 150.0, 101)
    probabilities = np.full((1, 101), 1 / 101, np.float32)
    target, clipped = backup([0.0], [1.0], probabilities, atoms)

    np.testing.assert_allclose(probabilities, target, atol=ROUNDING * 10)
    assert 0.0 == clipped[0]


def test_the_backup_is_that_of_rlax():
    """Target distributions of rlax.categorical_l2_project, some of them clipped."""
    golden = {name: np.array(v) for name, v in json.loads(GOLDENS.read_text()).items()}
    probabilities = tf.nn.softmax(tf.constant(golden["next_logits"], tf.float32))
    target, clipped = backup(
        golden["reward"],
        golden["discount"],
        probabilities,
        distribution.make_atoms(*REACH),
    )

    np.testing.assert_allclose(golden["target"], target, atol=ROUNDING)
    assert 0 < np.count_nonzero(clipped) < len(clipped)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_atoms=st.sampled_from([2, 3, 7, 20]),
    high=st.floats(0.5, 200.0),
    reward_scale=st.floats(0.0, 300.0),
)
def test_the_backup_is_equation_7(seed, num_atoms, high, reward_scale):
    """Loops in float64 give the same; probabilities add up to 1, means are kept."""
    rng = np.random.default_rng(seed)
    reward = (rng.normal(size=5) * reward_scale).astype(np.float32)
    discount = rng.choice([0.0, 0.5, 0.99, 1.0], 5).astype(np.float32)
    probabilities = rng.dirichlet(np.ones(num_atoms), 5).astype(np.float32)
    atoms = distribution.make_atoms(-high, high, num_atoms)
    target, clipped = backup(reward, discount, probabilities, atoms)
    expected = slow_backup(reward, discount, probabilities, atoms.astype(np.float64))

    # A place is the difference of two returns over a spacing: both are rounded.
    atol = 1e-5 * (1.0 + reward_scale / high) * num_atoms
    np.testing.assert_allclose(expected, target, atol=atol)
    np.testing.assert_allclose(np.ones(5), target.sum(axis=1), rtol=1e-5)
    inside = clipped == 0.0
    means = reward + discount * (probabilities @ atoms)
    # A return a hair beyond the last atom is moved onto it and not called lost.
    atol = 2e-5 * (high + reward_scale) + distribution.RIM * (atoms[1] - atoms[0])
    np.testing.assert_allclose(means[inside], (target @ atoms)[inside], atol=atol)


def test_the_expectation_is_the_mean_of_the_distribution():
    """Equal logits give the middle, one large logit gives its atom."""
    atoms = tf.constant(distribution.make_atoms(-150.0, 150.0, 101))
    logits = np.zeros((2, 101), np.float32)
    logits[1, 70] = 100.0
    found = distribution.expectation(tf.constant(logits), atoms).numpy()

    np.testing.assert_allclose([0.0, 60.0], found, atol=1e-3)


@pytest.mark.parametrize("ends", [(1.0, 1.0, 5), (2.0, 1.0, 5), (0.0, 1.0, 1)])
def test_atoms_without_a_range_are_refused(ends):
    """With the given values and those of the paper."""
    with pytest.raises(ValueError, match=r"make_atoms got .* 101 from -150 to 150"):
        distribution.make_atoms(*ends)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": tf.zeros([2, 1])}, r"reward of rank 1 .* got \(2, 1\)"),
        ({"discount": tf.zeros([2], tf.float64)}, r"discount .* 'float64'"),
        ({"probabilities": tf.zeros([2])}, r"next_probabilities of shape \[examples"),
        ({"atoms": tf.zeros([4])}, r"over 3 atoms and 4 atoms: it needs as many"),
    ],
)
def test_wrong_shapes_and_types_are_named(change, message):
    good = {
        "reward": tf.zeros([2]),
        "discount": tf.zeros([2]),
        "probabilities": tf.zeros([2, 3]),
        "atoms": tf.zeros([3]),
    }
    with pytest.raises(ValueError, match=message):
        distribution.backup(*{**good, **change}.values())
    if "atoms" in change:
        with pytest.raises(ValueError, match="expectation got distributions over 3"):
            distribution.expectation(tf.zeros([2, 3]), change["atoms"])
