"""Losses and distributions of returns: by hand, by loops and by another library."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.d4pg import learner

ROUNDING = 2e-6  # float32, sums of tens of numbers below 1
REACH = (-3.0, 3.0, 11)  # of the goldens


@pytest.fixture(scope="module")
def golden():
    """What rlax computes; see write_goldens.py."""
    path = pathlib.Path(__file__).with_name("goldens.json")
    lists = json.loads(path.read_text(encoding="utf-8"))
    return {name: tf.constant(value, tf.float32) for name, value in lists.items()}


def test_a_uniform_prediction_costs_the_logarithm_of_the_atoms():
    """Whatever the target; and the gradient is prediction minus target."""
    logits, target = tf.zeros([1, 4]), tf.constant([[0.1, 0.2, 0.3, 0.4]])
    with tf.GradientTape() as tape:
        tape.watch([logits, target])
        loss = learner.critic_loss(logits, target)
    to_logits, to_target = tape.gradient(loss, [logits, target])

    np.testing.assert_allclose([np.log(4.0)], loss, atol=ROUNDING)
    np.testing.assert_allclose([[0.15, 0.05, -0.05, -0.15]], to_logits, atol=ROUNDING)
    assert to_target is None


def test_the_critic_loss_is_that_of_rlax(golden):
    """rlax.categorical_td_learning, per example."""
    found = learner.critic_loss(golden["logits"], golden["target"])

    np.testing.assert_allclose(golden["critic_loss"], found, rtol=1e-5)


def test_the_divergence_is_zero_for_a_perfect_prediction(golden):
    """And the cross-entropy less the entropy of the target otherwise."""
    target = tf.nn.softmax(golden["logits"])
    other = np.array([[0.5, 0.5, 0.0]], np.float32)
    found = learner.divergence(tf.math.log([[0.25, 0.25, 0.5]]), tf.constant(other))

    np.testing.assert_allclose(
        np.zeros(6), learner.divergence(golden["logits"], target), atol=ROUNDING
    )
    np.testing.assert_allclose([np.log(2.0)], found, atol=ROUNDING)


def test_the_policy_loss_is_that_of_rlax(golden):
    """Values and gradients of rlax.dpg_loss, with dQ/da cut to norm 1."""
    action = golden["action"]
    with tf.GradientTape() as tape:
        tape.watch(action)
        loss = learner.policy_loss(action, golden["value_gradient"], clip_norm=1.0)

    np.testing.assert_allclose(golden["policy_loss"], loss, atol=ROUNDING)
    np.testing.assert_allclose(
        golden["policy_gradient"], tape.gradient(loss, action), atol=ROUNDING
    )


@pytest.mark.parametrize(
    ("clip_norm", "expected"), [(1.0, [-0.6, -0.8]), (10.0, [-3, -4]), (0.0, [-3, -4])]
)
def test_value_gradients_are_cut_by_their_norm(clip_norm, expected):
    """[3, 4] has norm 5; its direction stays."""
    action = tf.constant([[0.5, -0.5]])
    with tf.GradientTape() as tape:
        tape.watch(action)
        loss = learner.policy_loss(
            action, tf.constant([[3.0, 4.0]]), clip_norm=clip_norm
        )

    np.testing.assert_allclose([expected], tape.gradient(loss, action), rtol=1e-5)


def test_importance_weights_undo_the_probability():
    """Exponent 1 undoes it wholly, 0 not at all, 0.5 by its root."""
    probability = tf.constant([0.25, 0.0625])

    for exponent, expected in ((1.0, [4, 16]), (0.5, [2, 4]), (0.0, [1, 1])):
        found = learner.importance_weights(probability, exponent=exponent)
        np.testing.assert_allclose(expected, found, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: learner.critic_loss(tf.zeros([3]), tf.zeros([2, 3])),
            r"critic_loss needs logits of shape \[examples, num_atoms\]",
        ),
        (
            lambda: learner.critic_loss(tf.zeros([2, 3]), tf.zeros([2, 4])),
            r"got logits with num_atoms=3 and target with num_atoms=4: give both",
        ),
        (
            lambda: learner.policy_loss(
                tf.zeros([2, 3], tf.float16), tf.zeros([2, 3]), clip_norm=1.0
            ),
            r"policy_loss needs action .* 'float16'",
        ),
        (
            lambda: learner.policy_loss(
                tf.zeros([2, 3]), tf.zeros([2, 3]), clip_norm=-1.0
            ),
            r"clip_norm=-1\.0: use 0 for none",
        ),
        (
            lambda: learner.importance_weights(tf.zeros([2, 1]), exponent=0.5),
            r"probability of shape \[examples\]",
        ),
        (
            lambda: learner.importance_weights(tf.ones([2]), exponent=1.5),
            r"exponent=1\.5: use a number from 0 to 1",
        ),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def backup(reward, discount, probabilities, atoms):
    arrays = (reward, discount, probabilities, atoms)
    tensors = [tf.constant(np.asarray(a, np.float32)) for a in arrays]
    return [found.numpy() for found in learner.backup(*tensors)]


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


def test_returns_beyond_the_atoms_are_clipped_and_counted():
    """2 + [0, 1, 2] on atoms up to 2: the first fits exactly, 0.7 of it does not."""
    target, clipped = backup([2.0], [1.0], [[0.3, 0.5, 0.2]], [0.0, 1.0, 2.0])

    np.testing.assert_allclose([[0.0, 0.0, 1.0]], target, atol=ROUNDING)
    np.testing.assert_allclose([0.7], clipped, atol=ROUNDING)


def test_an_unchanged_distribution_clips_nothing():
    """Reward 0 and discount 1 leave 101 atoms where they are, in spite of rounding."""
    atoms = learner.make_atoms(-150.0, 150.0, 101)
    probabilities = np.full((1, 101), 1 / 101, np.float32)
    target, clipped = backup([0.0], [1.0], probabilities, atoms)

    np.testing.assert_allclose(probabilities, target, atol=ROUNDING * 10)
    assert 0.0 == clipped[0]


def test_the_backup_is_that_of_rlax(golden):
    """Target distributions of rlax.categorical_l2_project, some of them clipped."""
    probabilities = tf.nn.softmax(golden["next_logits"])
    target, clipped = backup(
        golden["reward"],
        golden["discount"],
        probabilities,
        learner.make_atoms(*REACH),
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
    atoms = learner.make_atoms(-high, high, num_atoms)
    target, clipped = backup(reward, discount, probabilities, atoms)
    expected = slow_backup(reward, discount, probabilities, atoms.astype(np.float64))

    # A place is the difference of two returns over a spacing: both are rounded.
    atol = 1e-5 * (1.0 + reward_scale / high) * num_atoms
    np.testing.assert_allclose(expected, target, atol=atol)
    np.testing.assert_allclose(np.ones(5), target.sum(axis=1), rtol=1e-5)
    inside = clipped == 0.0
    means = reward + discount * (probabilities @ atoms)
    # A return a hair beyond the last atom is moved onto it and not called lost.
    atol = 2e-5 * (high + reward_scale) + learner.RIM * (atoms[1] - atoms[0])
    np.testing.assert_allclose(means[inside], (target @ atoms)[inside], atol=atol)


def test_the_expectation_is_the_mean_of_the_distribution():
    """Equal logits give the middle, one large logit gives its atom."""
    atoms = tf.constant(learner.make_atoms(-150.0, 150.0, 101))
    logits = np.zeros((2, 101), np.float32)
    logits[1, 70] = 100.0
    found = learner.expectation(tf.constant(logits), atoms).numpy()

    np.testing.assert_allclose([0.0, 60.0], found, atol=1e-3)


@pytest.mark.parametrize("ends", [(1.0, 1.0, 5), (2.0, 1.0, 5), (0.0, 1.0, 1)])
def test_atoms_without_a_range_are_refused(ends):
    with pytest.raises(ValueError, match=r"make_atoms got .* 101 from -150 to 150"):
        learner.make_atoms(*ends)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": tf.zeros([2, 1])}, r"reward of shape .* got \(2, 1\)"),
        ({"discount": tf.zeros([2], tf.float64)}, r"discount .* 'float64'"),
        ({"probabilities": tf.zeros([2])}, r"next_probabilities of shape \[examples"),
        (
            {"atoms": tf.zeros([4])},
            r"num_atoms=3 and atoms with num_atoms=4: give both",
        ),
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
        learner.backup(*{**good, **change}.values())
    if "atoms" in change:
        with pytest.raises(ValueError, match="expectation got logits with num_atoms=3"):
            learner.expectation(tf.zeros([2, 3]), change["atoms"])
