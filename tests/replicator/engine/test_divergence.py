"""State that differs between replicas and feeds a gradient is refused by name."""

import keras
import pytest
import tensorflow as tf

import replicator
from replicator.errors import UnsynchronisedUpdateError
from tests.replicator.engine import divergence_variants as variants


def _batches():
    rows = tf.random.stateless_normal([2, variants.NUM_ROWS, variants.WIDTH], [7, 8])
    return replicator.PerReplica(list(rows))


def _run(repl, make):
    with repl.context():
        step = make(repl)
    return repl.run(step, _batches())


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("name", variants.REFUSED)
def test_state_by_which_replicas_train_apart_is_refused(in_graph, name):
    state = name.partition(" ")[0]

    with pytest.raises(
        UnsynchronisedUpdateError,
        match=rf"^variable '{state}:0'.* is assigned a value that differs between "
        rf"replicas at \S+divergence_variants\.py:\d+: {state}\.assign\(.*, and "
        r"gradients that all_reduce\(mean\) joins depend on it.*average the value that "
        rf"you assign, as in {state}\.assign\(replicator\.all_mean\(value\)\)",
    ):
        _run(in_graph, variants.REFUSED[name])


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("name", variants.RIGHT)
def test_state_that_all_agree_on_or_none_trains_by_is_not_refused(in_graph, name):
    _run(in_graph, variants.RIGHT[name])
    in_graph.assert_in_sync()


def _probability_by_two_steps(repl):
    with repl.context():
        weight = tf.Variable(1.0)
        probability = tf.Variable(0.5, trainable=False, name="probability")
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1))

    def update(x):
        probability.assign(tf.reduce_mean(x))

    def train(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(x) * weight * probability
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

    return update, train


@pytest.mark.parametrize("trains_first", [True, False])
def test_state_that_another_step_lets_diverge_is_refused(trains_first):
    repl = replicator.create("in_graph", num_replicas=2)
    update, train = _probability_by_two_steps(repl)
    if trains_first:
        repl.run(train, _batches())
    repl.run(update, _batches())

    with pytest.raises(
        UnsynchronisedUpdateError,
        match=r"^variable 'probability:0' is assigned .* replicas by another step func",
    ):
        repl.run(train, _batches())


def test_statistics_of_batch_norm_that_feed_a_gradient_are_refused(in_graph):
    with pytest.raises(
        UnsynchronisedUpdateError,
        match=r"^variable 'norm/moving_\w+:0' and 1 more is .*: trained = layer\(.* "
        r"for batch norm, use replicator.CrossReplicaBatchNormalization; if each rep",
    ):
        _run(in_graph, variants.batch_norm_in_both_modes)


def test_gradients_reach_weights_through_the_state_of_an_optimizer():
    """Keras' own Adam writes moments, and weights with what it reads from them."""
    repl = replicator.create("in_graph", num_replicas=2)
    with repl.context():
        weight = tf.Variable([1.0])
        moment = tf.Variable([0.0], trainable=False)
        state = tf.Variable([1.0], trainable=False, name="state")

    def step(x):
        gradient = replicator.all_mean(weight * state * x)
        moment.assign(0.9 * moment + gradient)
        weight.assign_sub(moment)
        state.assign(x)

    x = replicator.PerReplica([tf.constant([1.0]), tf.constant([2.0])])
    with pytest.raises(UnsynchronisedUpdateError, match=r"variable 'state"):
        repl.run(step, x)
