"""The networks, and the learner step: two replicas against one, and who trains what."""

import numpy as np
import pytest
import tensorflow as tf

from workloads.d4pg import actor as actor_lib
from workloads.d4pg import config, learner
from workloads.d4pg.networks import Critic, Policy, Torso

ROUNDING_SUMS = 1e-5  # float32 sums in another order
KINDS = ("mlp", "layer_norm_mlp")


def make_spec(kind, shape=(5,), **fields):
    return actor_lib.PolicySpec(
        **{
            "observation_shape": shape,
            "action_size": 2,
            "hidden_sizes": (12, 10, 9),
            "kind": kind,
            **fields,
        }
    )


def randomized(network, rng):
    """Gives all weights values that matter: first biases are zero, scales one."""
    for variable in network.trainable_variables:
        values = rng.normal(scale=0.3, size=tuple(variable.shape))
        variable.assign(variable.numpy() + values.astype(np.float32))
    return network


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(5,), (23, 18, 9)])
def test_actors_compute_what_the_learner_would(kind, shape):
    """NumPy from a flat vector equals Keras, for states and for frames."""
    rng = np.random.default_rng(0)
    spec = make_spec(kind, shape, num_conv_filters=6, num_features=11)
    network = randomized(Policy(spec, seed=1), rng)
    if spec.uses_pixels:
        torso = randomized(Torso(spec, seed=2), rng)
        observations = rng.integers(0, 256, (9, *shape)).astype(np.uint8)
        expected = network(torso(tf.constant(observations)))
        variables = [*torso.trainable_variables, *network.ordered_variables]
    else:
        observations = rng.normal(size=(9, *shape)).astype(np.float32)
        expected = network(tf.constant(observations))
        variables = network.ordered_variables
    assert [shape for _, shape in spec.variables] == [tuple(v.shape) for v in variables]
    actor = actor_lib.Policy(spec)
    actor.load(np.concatenate([np.ravel(v.numpy()) for v in variables]))
    found = actor(observations)

    assert np.float32 == found.dtype
    assert 0.1 < np.abs(found).max() <= 1.0
    np.testing.assert_allclose(expected, found, atol=ROUNDING_SUMS)


def test_the_paper_s_networks_have_the_paper_s_numbers_of_weights():
    """Counted by hand for walker: 24 numbers or 84 pixels, 6 actions, 101 atoms."""
    paper = config.PRESETS["paper"]

    def count(shape):
        spec = make_spec(
            paper.network, shape, action_size=6, hidden_sizes=paper.policy_layers
        )
        critic = Critic(spec, paper.critic_layers, num_atoms=paper.num_atoms, seed=0)
        return spec.num_floats, critic.count_params()

    of_policy = (24 + 1) * 300 + (300 + 1) * 200 + (200 + 1) * 6
    of_critic = (24 + 1) * 400 + (400 + 1) * 300 + 6 * 300 + (300 + 1) * 101
    assert (of_policy, of_critic) == count((24,))

    convs = (9 * 9 + 1) * 32 + (9 * 32 + 1) * 32
    features = (39 * 39 * 32 + 1) * 50 + 2 * 50
    difference = (50 - 24) * 300, (50 - 24) * 400
    assert (
        convs + features + of_policy + difference[0],
        features + of_critic + difference[1],
    ) == count((84, 84, 9))


def test_the_action_joins_at_the_second_layer():
    """The first layer of the paper's critic sees the state only; Acme's sees both."""
    widths = {}
    for kind in KINDS:
        critic = Critic(make_spec(kind), (7, 9), num_atoms=11, seed=0)
        widths[kind] = critic.hidden[0].kernel.shape[0]
        states = tf.random.stateless_normal([4, 5], seed=(1, 2))
        logits = [critic(states, tf.fill([4, 2], value)) for value in (-1.0, 1.0)]

        assert (4, 11) == logits[0].shape
        assert not np.allclose(*logits)
    assert {"mlp": 5, "layer_norm_mlp": 7} == widths


def test_a_fresh_critic_knows_nothing_and_a_fresh_policy_acts_little():
    """Small last layers: all returns are about as likely, all actions about 0."""
    critic = Critic(make_spec("mlp"), (400, 300), num_atoms=51, seed=0)
    states = tf.random.stateless_normal([16, 5], seed=(1, 2))
    actions = Policy(make_spec("mlp"), seed=0)(states)
    probabilities = tf.nn.softmax(critic(states, actions))

    assert np.abs(actions).max() < 0.02
    np.testing.assert_allclose(np.full((16, 51), 1 / 51), probabilities, rtol=0.05)


def test_wrong_weights_and_observations_are_named():
    actor = actor_lib.Policy(make_spec("mlp"))
    frames = actor_lib.Policy(make_spec("mlp", (23, 18, 9)))

    with pytest.raises(ValueError, match=r"weights of shape \(\d+,\) .* got \(3,\)"):
        actor.load(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"and type float32, but got .* float64"):
        actor.load(np.zeros(actor.spec.num_floats))
    with pytest.raises(ValueError, match=r"\[examples, 5\] .* got \(2, 4\)"):
        actor(np.zeros((2, 4), np.float32))
    with pytest.raises(ValueError, match=r"23, 18, 9\] and type uint8, .* float32"):
        frames(np.zeros((2, 23, 18, 9), np.float32))
    with pytest.raises(ValueError, match=r"network='cnn' must be one of 'mlp', "):
        make_spec("cnn")
    with pytest.raises(ValueError, match="at least one hidden layer"):
        make_spec("mlp", hidden_sizes=())


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


@pytest.mark.parametrize(
    "trained", [pytest.param("critic", marks=pytest.mark.full), "policy"]
)
def test_only_the_critic_trains_the_torso(
    make_learner, make_transitions, feed, trained
):
    """With the other rate at zero, torso and critic move together or not at all."""
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
        loss = -tf.reduce_mean(learner.expectation(logits, atoms))
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
    expected, share = learner.backup(
        batch["reward"], tf.fill([8], np.float32(0.99**5)), probabilities, atoms
    )
    for network in made._networks:  # the online networks play no part
        for variable in network.trainable_variables:
            variable.assign(variable.numpy() + 1.0)
    found, clipped = made._target_distribution(batch, atoms)

    np.testing.assert_allclose(expected, found, atol=1e-6)
    np.testing.assert_allclose(share, clipped, atol=1e-6)
    assert 0.0 < clipped[-1] < 1.0
