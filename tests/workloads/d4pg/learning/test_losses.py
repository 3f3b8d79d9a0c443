"""The losses: values and gradients by hand and by another library."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from workloads.d4pg.learning import losses

ROUNDING = 2e-6  # float32


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
        loss = losses.critic_loss(logits, target)
    to_logits, to_target = tape.gradient(loss, [logits, target])

    np.testing.assert_allclose([np.log(4.0)], loss, atol=ROUNDING)
    np.testing.assert_allclose([[0.15, 0.05, -0.05, -0.15]], to_logits, atol=ROUNDING)
    assert to_target is None


def test_the_critic_loss_is_that_of_rlax(golden):
    """rlax.categorical_td_learning, per example."""
    found = losses.critic_loss(golden["logits"], golden["target"])

    np.testing.assert_allclose(golden["critic_loss"], found, rtol=1e-5)


def test_the_divergence_is_zero_for_a_perfect_prediction(golden):
    """And the cross-entropy less the entropy of the target otherwise."""
    target = tf.nn.softmax(golden["logits"])
    other = np.array([[0.5, 0.5, 0.0]], np.float32)
    found = losses.divergence(tf.math.log([[0.25, 0.25, 0.5]]), tf.constant(other))

    np.testing.assert_allclose(
        np.zeros(6), losses.divergence(golden["logits"], target), atol=ROUNDING
    )
    np.testing.assert_allclose([np.log(2.0)], found, atol=ROUNDING)


def test_the_policy_loss_is_that_of_rlax(golden):
    """Values and gradients of rlax.dpg_loss, with dQ/da cut to norm 1."""
    action = golden["action"]
    with tf.GradientTape() as tape:
        tape.watch(action)
        loss = losses.policy_loss(action, golden["value_gradient"], clip_norm=1.0)

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
        loss = losses.policy_loss(
            action, tf.constant([[3.0, 4.0]]), clip_norm=clip_norm
        )

    np.testing.assert_allclose([expected], tape.gradient(loss, action), rtol=1e-5)


def test_importance_weights_undo_the_probability():
    """Exponent 1 undoes it wholly, 0 not at all, 0.5 by its root."""
    probability = tf.constant([0.25, 0.0625])

    for exponent, expected in ((1.0, [4, 16]), (0.5, [2, 4]), (0.0, [1, 1])):
        found = losses.importance_weights(probability, exponent=exponent)
        np.testing.assert_allclose(expected, found, rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: losses.critic_loss(tf.zeros([3]), tf.zeros([2, 3])),
            r"critic_loss needs logits of rank 2",
        ),
        (
            lambda: losses.critic_loss(tf.zeros([2, 3]), tf.zeros([2, 4])),
            r"two tensors of one shape, but got \(2, 3\) and \(2, 4\)",
        ),
        (
            lambda: losses.policy_loss(
                tf.zeros([2, 3], tf.float16), tf.zeros([2, 3]), clip_norm=1.0
            ),
            r"policy_loss needs action .* 'float16'",
        ),
        (
            lambda: losses.policy_loss(
                tf.zeros([2, 3]), tf.zeros([2, 3]), clip_norm=-1.0
            ),
            r"clip_norm=-1\.0: use 0 for none",
        ),
        (
            lambda: losses.importance_weights(tf.zeros([2, 1]), exponent=0.5),
            r"probability of shape \[examples\]",
        ),
        (
            lambda: losses.importance_weights(tf.ones([2]), exponent=1.5),
            r"exponent=1\.5: use a number from 0 to 1",
        ),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
