"""The networks, the losses and the learner step, against rlax, loops and NumPy."""

import dataclasses
import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from small_programs import published

import replicator
from workloads import WORKLOADS, d4pg
from workloads.d4pg import EnvironmentSpec, Learner, Policy

ROUNDING = 2e-6  # float32, sums of tens of numbers below 1
ROUNDING_SUMS = 1e-5  # float32 sums in another order
STATE, FRAMES = (5,), (20, 16, 9)


def make_spec(shape=STATE, action_size=2):
    """Of an environment of which a policy sees so much."""
    *around, width = shape
    return EnvironmentSpec(
        observation_shape=(*around, width // 3) if around else shape,
        observation_dtype="uint8" if around else "float32",
        action_size=action_size,
    )


def observing(shape):
    return "state" if shape == STATE else "pixels"


def randomized(network, rng):
    """Gives all weights values that matter: first biases are zero, scales one."""
    for variable in network.trainable_variables:
        values = rng.normal(scale=0.3, size=tuple(variable.shape))
        variable.assign(variable.numpy() + values.astype(np.float32))
    return network


@pytest.mark.parametrize(
    ("kind", "shape"), [("mlp", (23, 18, 9)), ("layer_norm_mlp", STATE)]
)
def test_actors_compute_what_the_learner_would(kind, shape):
    rng = np.random.default_rng(0)
    config = published(
        "d4pg",
        network=kind,
        policy_sizes="12,10,9",
        observations=observing(shape),
        num_conv_filters=6,
        num_features=11,
    )
    made = Learner(replicator.create("single"), config, make_spec(shape), seed=1)
    randomized(made.policy, rng)
    if shape == STATE:
        observations = rng.normal(size=(9, *shape)).astype(np.float32)
        expected = made.policy(tf.constant(observations))
    else:
        randomized(made.torso, rng)
        observations = rng.integers(0, 256, (9, *shape)).astype(np.uint8)
        expected = made.policy(made.torso(tf.constant(observations)))
    found = Policy(config, made.policy_weights())(observations)

    assert 0.1 < np.abs(found).max() <= 1.0
    np.testing.assert_allclose(expected, found, atol=ROUNDING_SUMS)


def test_the_paper_s_networks_have_the_paper_s_numbers_of_weights():
    """Counted by hand for walker: 24 numbers or 84 pixels, 6 actions, 101 atoms.

    The action joins at the second layer; in Acme's networks at the first.
    """
    paper = WORKLOADS["d4pg"].make_config("paper", {})

    def count(shape, observations):
        config = dataclasses.replace(paper, observations=observations)
        spec = make_spec(shape, action_size=6)
        made = Learner(replicator.create("single"), config, spec, seed=0)
        num_seeing = made.torso.count_params() if made.torso else 0
        return num_seeing + made.policy.count_params(), made.critic.count_params()

    of_policy = (24 + 1) * 300 + (300 + 1) * 200 + (200 + 1) * 6
    of_critic = (24 + 1) * 400 + (400 + 1) * 300 + 6 * 300 + (300 + 1) * 101
    assert (of_policy, of_critic) == count((24,), "state")
    convs = (9 * 9 + 1) * 32 + (9 * 32 + 1) * 32
    features = (39 * 39 * 32 + 1) * 50 + 2 * 50
    of_features = (50 - 24) * 300, (50 - 24) * 400
    assert (
        convs + features + of_policy + of_features[0],
        features + of_critic + of_features[1],
    ) == count((84, 84, 9), "pixels")
    config = published(
        "d4pg", network="layer_norm_mlp", critic_sizes="7,9", num_atoms=11
    )
    acme = Learner(replicator.create("single"), config, make_spec(), seed=0)
    assert (5 + 2, 7) == tuple(acme.critic.get_layer("dense_0").kernel.shape)


def test_losses_and_gradients_are_those_of_rlax():
    path = pathlib.Path(__file__).with_name("goldens.json")
    golden = {
        name: tf.constant(value, tf.float32)
        for name, value in json.loads(path.read_text(encoding="utf-8")).items()
    }
    action, target = golden["action"], golden["target"]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([action, target])
        policy_loss = d4pg.policy_loss(action, golden["value_gradient"], clip_norm=1.0)
        critic_loss = d4pg.critic_loss(golden["logits"], target)
    found, clipped = d4pg.backup(
        golden["reward"],
        golden["discount"],
        tf.nn.softmax(golden["next_logits"]),
        tf.constant(make_atoms(-3.0, 3.0, 11)),
    )

    np.testing.assert_allclose(golden["critic_loss"], critic_loss, rtol=1e-5)
    assert tape.gradient(critic_loss, target) is None
    np.testing.assert_allclose(golden["policy_loss"], policy_loss, atol=ROUNDING)
    np.testing.assert_allclose(
        golden["policy_gradient"], tape.gradient(policy_loss, action), atol=ROUNDING
    )
    np.testing.assert_allclose(target, found, atol=ROUNDING)
    assert 0 < np.count_nonzero(clipped) < len(clipped)
    perfect = d4pg.divergence(golden["logits"], tf.nn.softmax(golden["logits"]))
    np.testing.assert_allclose(np.zeros(6), perfect, atol=ROUNDING)
    other = d4pg.divergence(
        tf.math.log([[0.25, 0.25, 0.5]]), tf.constant([[0.5, 0.5, 0.0]])
    )
    np.testing.assert_allclose([np.log(2.0)], other, atol=ROUNDING)


def make_atoms(low, high, num_atoms):
    return np.linspace(low, high, num_atoms, dtype=np.float32)


def backup(reward, discount, probabilities, atoms):
    arrays = (reward, discount, probabilities, atoms)
    tensors = [tf.constant(np.asarray(a, np.float32)) for a in arrays]
    return [found.numpy() for found in d4pg.backup(*tensors)]


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


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_atoms=st.sampled_from([2, 3, 7, 20]),
    high=st.floats(0.5, 200.0),
    reward_scale=st.floats(0.0, 300.0),
)
def test_the_backup_is_equation_7(seed, num_atoms, high, reward_scale):
    rng = np.random.default_rng(seed)
    reward = (rng.normal(size=5) * reward_scale).astype(np.float32)
    discount = rng.choice([0.0, 0.5, 0.99, 1.0], 5).astype(np.float32)
    probabilities = rng.dirichlet(np.ones(num_atoms), 5).astype(np.float32)
    atoms = make_atoms(-high, high, num_atoms)
    target, clipped = backup(reward, discount, probabilities, atoms)
    expected = slow_backup(reward, discount, probabilities, atoms.astype(np.float64))

    # A place is the difference of two returns over a spacing: both are rounded.
    atol = 1e-5 * (1.0 + reward_scale / high) * num_atoms
    np.testing.assert_allclose(expected, target, atol=atol)
    np.testing.assert_allclose(np.ones(5), target.sum(axis=1), rtol=1e-5)
    inside = clipped == 0.0
    means = reward + discount * (probabilities @ atoms)
    # A return a hair beyond the last atom is moved onto it and not called lost.
    atol = 2e-5 * (high + reward_scale) + 1e-3 * (atoms[1] - atoms[0])
    np.testing.assert_allclose(means[inside], (target @ atoms)[inside], atol=atol)


def test_returns_beyond_the_atoms_are_counted_and_rounding_is_not():
    """2 + [0, 1, 2] on atoms up to 2: the first fits exactly, 0.7 of it does not."""
    _, clipped = backup([2.0], [1.0], [[0.3, 0.5, 0.2]], [0.0, 1.0, 2.0])
    np.testing.assert_allclose([0.7], clipped, atol=ROUNDING)
    atoms = make_atoms(-150.0, 150.0, 101)
    same = np.full((1, 101), 1 / 101, np.float32)
    target, clipped = backup([0.0], [1.0], same, atoms)

    np.testing.assert_allclose(same, target, atol=ROUNDING * 10)
    assert 0.0 == clipped[0]


def make_learner(num_replicas=1, **options):
    config = WORKLOADS["d4pg"].make_config(
        "smoke",
        {
            "policy_sizes": "8,6",
            "critic_sizes": "7,9",
            "num_conv_filters": 4,
            "num_features": 10,
            "num_atoms": 11,
            **options,
        },
    )
    spec = make_spec(FRAMES if config.observations == "pixels" else STATE)
    backend = "single" if num_replicas == 1 else "in_graph"
    repl = replicator.create(backend, num_replicas=num_replicas)
    return Learner(repl, config, spec, seed=3)


def make_transitions(count, *, uses_pixels=False):
    rng = np.random.default_rng(count)

    def observe():
        if uses_pixels:
            return rng.integers(0, 256, (count, *FRAMES)).astype(np.uint8)
        return rng.normal(size=(count, *STATE)).astype(np.float32)

    return {
        "observation": observe(),
        "action": rng.uniform(-1, 1, (count, 2)).astype(np.float32),
        # The halves differ, so that gradients of two replicas do.
        "reward": np.linspace(0, 5, count, dtype=np.float32),
        "discount": np.full(count, 0.99**4, np.float32),
        "next_observation": observe(),
        "index": np.arange(count),
        "probability": rng.uniform(0.01, 0.2, count).astype(np.float32),
    }


def feed(made, transitions):
    count = len(transitions["reward"]) // made._repl.num_replicas
    dataset = tf.data.Dataset.from_tensor_slices(transitions)
    dataset = dataset.batch(count, drop_remainder=True).repeat()
    return made._repl.make_input_iterator(lambda _: dataset)


def weights_of(networks):
    return [v.numpy() for network in networks for v in network.trainable_variables]


def are_equal(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_two_replicas_learn_what_one_does_with_the_same_global_batch():
    options = {
        "network": "layer_norm_mlp",
        "observations": "pixels",
        "replay": "prioritized",
        "global_clip_norm": 0.01,
    }
    transitions = make_transitions(8, uses_pixels=True)
    losses, weights = [], []
    for num_replicas in (1, 2):
        made = make_learner(num_replicas, target_update_period=4, **options)
        inputs = feed(made, transitions)
        outputs = [made.learn(inputs) for _ in range(6)]
        losses.append([np.mean([float(v) for v in o["loss"]]) for o in outputs])
        weights.append(weights_of(made._networks))
        made._repl.assert_in_sync()

    # It changes with initial values, both networks and the weights of transitions.
    assert 1.325894 == pytest.approx(losses[0][0], rel=1e-4)
    assert losses[0][-1] < losses[0][0]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    for one, two in zip(*weights, strict=True):
        # Adam divides gradients by their size, so rounding of small ones shows.
        np.testing.assert_allclose(one, two, atol=2e-5)


def test_targets_are_copied_and_the_policy_trains_nothing_else():
    made = make_learner(
        observations="pixels",
        target_update_period=3,
        critic_learning_rate=0.0,
        policy_learning_rate=1e-2,
    )
    inputs = feed(made, make_transitions(4, uses_pixels=True))
    for count in range(5):
        before = [weights_of([network]) for network in made._networks]
        targets_before = [t.numpy() for ts in made._targets for t in ts]
        made.learn(inputs)
        after = [weights_of([network]) for network in made._networks]
        targets = [t.numpy() for ts in made._targets for t in ts]

        moved = [not are_equal(*pair) for pair in zip(before, after, strict=True)]
        assert [True, False, False] == moved
        copied = [weights for of in before for weights in of]
        assert are_equal(targets, targets_before if count % 3 else copied)


def test_the_policy_climbs_the_value():
    made = make_learner(value_gradient_clip_norm=0.0)
    for variable in made.critic.trainable_variables:
        variable.assign(variable.numpy() * 5.0)  # a critic that cares
    atoms = tf.constant(made._atoms)
    states = tf.constant(make_transitions(16)["observation"])
    with tf.GradientTape() as tape:
        logits = made.critic([states, made.policy(states)])
        loss = -tf.reduce_mean(tf.linalg.matvec(tf.nn.softmax(logits), atoms))
    expected = tape.gradient(loss, made.policy.trainable_variables)
    found, value = made._policy_gradients(states, atoms)

    np.testing.assert_allclose(-loss, value, rtol=1e-5)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-6)


def test_the_target_is_made_by_the_target_networks():
    made = make_learner(highest_return=6.0, lowest_return=-6.0)
    made.copy_targets()
    batch = {k: tf.constant(v) for k, v in make_transitions(8).items()}
    atoms = tf.constant(made._atoms)
    states = batch["next_observation"]
    probabilities = tf.nn.softmax(made.critic([states, made.policy(states)]))
    expected, share = d4pg.backup(
        batch["reward"], tf.fill([8], np.float32(0.99**5)), probabilities, atoms
    )
    for network in made._networks:  # the online networks play no part
        for variable in network.trainable_variables:
            variable.assign(variable.numpy() + 1.0)
    found, clipped = made._target_distribution(batch, atoms)

    np.testing.assert_allclose(expected, found, atol=1e-6)
    np.testing.assert_allclose(share, clipped, atol=1e-6)
    assert 0.0 < clipped[-1] < 1.0
