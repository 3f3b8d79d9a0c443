"""The learner step: two replicas against one, targets, and who trains what."""

import numpy as np
import pytest
import tensorflow as tf

from workloads.d4pg.learning import distribution

# Adam divides gradients by their size, so what is rounded off small ones shows.
ROUNDING = 2e-5


def weights_of(networks):
    return [v.numpy() for network in networks for v in network.trainable_variables]


def are_equal(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    "options",
    [
        # Gradients of the halves differ, so clipping before averaging would show.
        {
            "network": "layer_norm_mlp",
            "replay": "prioritized",
            "global_clip_norm": 0.01,
        },
        {"network": "mlp", "observations": "pixels"},
    ],
)
def test_two_replicas_learn_what_one_does_with_the_same_global_batch(
    make_learner, make_transitions, feed, options
):
    """Losses and weights agree after six learner steps, a target copy among them."""
    uses_pixels = options.get("observations") == "pixels"
    transitions = make_transitions(8, uses_pixels=uses_pixels)
    losses, weights = [], []
    for num_replicas in (1, 2):
        made = make_learner(num_replicas, target_update_period=4, **options)
        inputs = feed(made, transitions)
        outputs = [made.run(inputs) for _ in range(6)]
        losses.append([np.mean([float(v) for v in o["loss"]]) for o in outputs])
        weights.append(weights_of(made._networks))
        made._repl.assert_in_sync()

    assert losses[0][-1] < losses[0][0]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    for one, two in zip(*weights, strict=True):
        np.testing.assert_allclose(one, two, atol=ROUNDING)


def test_targets_are_copied_before_every_nth_learner_step(
    make_learner, make_transitions, feed
):
    """Exactly then, exactly the weights of that moment, and never in between."""
    made = make_learner(2, target_update_period=3)
    inputs = feed(made, make_transitions(8))
    for count in range(8):
        before = weights_of(made._networks)
        targets_before = [t.numpy() for ts in made._targets for t in ts]
        made.run(inputs)
        targets = [t.numpy() for ts in made._targets for t in ts]

        assert not are_equal(before, weights_of(made._networks))
        assert are_equal(targets, before if count % 3 == 0 else targets_before)


def test_the_paper_copies_every_100_learner_steps(make_learner):
    """Barth-Maron et al. 2018 and Tassa et al. 2018."""
    assert 100 == make_learner()._config.target_update_period


@pytest.mark.parametrize(
    "trained", [pytest.param("critic", marks=pytest.mark.full), "policy"]
)
def test_only_the_critic_trains_the_torso(
    make_learner, make_transitions, feed, trained
):
    """With the other rate at zero, torso and critic move together or not at all.

    The full run adds the first: in tests above, torso and critic learn as they should.
    """
    rates = {f"{n}_learning_rate": 1e-2 * (n == trained) for n in ("critic", "policy")}
    made = make_learner(observations="pixels", **rates)
    before = [weights_of([network]) for network in made._networks]
    inputs = feed(made, make_transitions(4, uses_pixels=True))
    made.run(inputs)
    after = [weights_of([network]) for network in made._networks]
    moved = [not are_equal(*pair) for pair in zip(before, after, strict=True)]

    assert [trained == "policy", *(2 * [trained == "critic"])] == moved


def test_the_policy_climbs_the_value(make_learner, make_transitions):
    """Without the cut, its gradient is that of minus the mean value."""
    made = make_learner(value_gradient_clip_norm=0.0)
    for variable in made.critic.trainable_variables:
        variable.assign(variable.numpy() * 5.0)  # a critic that cares
    atoms = tf.constant(made._atoms)
    states = tf.constant(make_transitions(16)["observation"])
    with tf.GradientTape() as tape:
        logits = made.critic(states, made.policy(states))
        loss = -tf.reduce_mean(distribution.expectation(logits, atoms))
    expected = tape.gradient(loss, made.policy.trainable_variables)
    found, value = made._policy_gradients(states, atoms)

    np.testing.assert_allclose(-loss, value, rtol=1e-5)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-6)


def test_the_target_is_made_by_the_target_networks(make_learner, make_transitions):
    """R + gamma D z of the target policy's action, clipped to the atoms."""
    made = make_learner(highest_return=6.0, lowest_return=-6.0)
    made._copy()
    batch = {k: tf.constant(v) for k, v in make_transitions(8).items()}
    atoms = tf.constant(made._atoms)
    states = batch["next_observation"]
    probabilities = tf.nn.softmax(made.critic(states, made.policy(states)))
    expected, share = distribution.backup(
        batch["reward"], tf.fill([8], np.float32(0.99**5)), probabilities, atoms
    )
    for network in made._networks:  # the online networks play no part
        for variable in network.trainable_variables:
            variable.assign(variable.numpy() + 1.0)
    found, clipped = made._target_distribution(batch, atoms)

    np.testing.assert_allclose(expected, found, atol=1e-6)
    np.testing.assert_allclose(share, clipped, atol=1e-6)
    assert 0.0 < clipped[-1] < 1.0
