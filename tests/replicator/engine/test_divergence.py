"""State that differs between replicas and feeds a gradient is refused by name."""

import functools

import keras
import pytest
import tensorflow as tf

import replicator
from replicator import UnsynchronisedUpdateError

# Training steps in the shape of published code, with state that replicas keep. Each is
# a function that makes variables and an optimizer and returns a step of one batch of 4
# rows of 3 numbers. ``REFUSED`` are those whose state differs between replicas and
# feeds a gradient, by the name of the state; ``RIGHT`` are those that it does not.

NUM_ROWS = 4
WIDTH = 3


def _training(repl, num_outputs=WIDTH, seed=0):
    values = tf.random.stateless_normal([WIDTH, num_outputs], [seed, 1])
    weight = tf.Variable(values, name="weight")
    optimizer = repl.wrap_optimizer(keras.optimizers.Adam(0.1))

    def train(loss_fn):
        with tf.GradientTape() as tape:
            loss = loss_fn(weight)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return loss

    return weight, train


def _state(value, name, **options):
    return tf.Variable(value, trainable=False, name=name, **options)


def ada_probability(repl, *, join=tf.identity, trainable=False, **options):
    """Karras et al. 2020: the probability of augmentation follows the discriminator."""
    _, train = _training(repl, 1)
    probability = tf.Variable(0.0, name="probability", trainable=trainable, **options)

    def step(x):
        noise = tf.random.stateless_uniform([NUM_ROWS, 1], [5, 6])

        def loss(weight):
            augmented = tf.where(noise < probability, tf.reverse(x, [1]), x)
            logits = augmented @ weight
            accuracy = tf.reduce_mean(tf.cast(logits > 0, tf.float32))
            signal = join(tf.sign(accuracy - 0.6))
            probability.assign(tf.clip_by_value(probability + signal * 0.01, 0.0, 1.0))
            return tf.reduce_mean(tf.nn.softplus(-logits))

        return train(loss)

    return step


def _observations(repl, use):
    """Schulman et al. 2017, as commonly written: observations by a running mean."""
    _, train = _training(repl)
    running = _state(tf.zeros([WIDTH]), "running")

    def step(x):
        running.assign(0.9 * running + 0.1 * tf.reduce_mean(x, 0))
        return train(lambda weight: tf.reduce_mean(use(running, x) @ weight))

    return step


def _in_branch(running, x):
    return tf.cond(x[0, 0] > 0, lambda: x - running, lambda: x + running)


def _in_loop(running, x):
    def shift(index, value):
        return index + 1, value - running

    return tf.while_loop(lambda index, _: index < 3, shift, (0, x))[1]


def _in_function(running, x):
    @tf.function
    def shift(value):
        return value - running

    return shift(x)


def _as_predicate(running, x):
    return tf.cond(running[0] > 0, lambda: x, lambda: 2 * x)


def batch_norm_in_both_modes(repl, kind=keras.layers.BatchNormalization):
    """As of a generator that also makes images as it will after training."""
    _, train = _training(repl)
    layer = kind(name="norm")
    layer.build([NUM_ROWS, WIDTH])

    def step(x):
        def loss(weight):
            trained = layer(x @ weight, training=True)
            return tf.reduce_mean(trained * layer(x @ weight, training=False))

        return train(loss)

    return step


def batch_norm_in_branch(repl):
    """As with a flag that is a tensor: the branch that updates returns outputs, too."""
    _, train = _training(repl)
    layer = keras.layers.BatchNormalization()
    layer.build([NUM_ROWS, WIDTH])

    def step(x):
        def loss(weight):
            hidden = x @ weight
            normalize = functools.partial(layer, hidden, training=True)
            return tf.reduce_mean(tf.cond(x[0, 0] > 0, normalize, lambda: hidden))

        return train(loss)

    return step


def fused_batch_norm(repl):
    _, train = _training(repl)
    mean, variance = _state(tf.zeros([WIDTH]), "mean"), _state(tf.ones([3]), "var")

    def step(x):
        def loss(weight):
            outputs, new_mean, new_variance = tf.compat.v1.nn.fused_batch_norm(
                tf.reshape(x @ weight, [NUM_ROWS, 1, 1, WIDTH]),
                tf.ones([WIDTH]),
                tf.zeros([WIDTH]),
                mean=mean,
                variance=variance,
                exponential_avg_factor=0.1,
            )
            mean.assign(new_mean)
            variance.assign(new_variance)
            return tf.reduce_mean(outputs**3)

        return train(loss)

    return step


def metrics(repl):
    _, train = _training(repl, 1)
    kept = [keras.metrics.Mean(), keras.metrics.BinaryAccuracy(), keras.metrics.AUC()]
    targets = tf.constant([[0.0], [1.0], [0.0], [1.0]])
    kept[0].update_state(0.0)
    for metric in kept[1:]:
        metric.update_state(targets, targets)

    def step(x):
        def loss(weight):
            predictions = tf.sigmoid(x @ weight)
            for metric in kept[1:]:
                metric.update_state(targets, predictions)
            return tf.reduce_mean((predictions - targets) ** 2)

        kept[0].update_state(train(loss))
        return replicator.all_mean([metric.result() for metric in kept])

    return step


def counters(repl):
    _, train = _training(repl)
    steps = _state(0, "steps")
    examples = _state(0, "examples")

    def step(x):
        is_counted = tf.cast(tf.reduce_any(x > 0, 1), tf.int32)
        examples.assign_add(tf.reduce_sum(is_counted))
        warmth = tf.minimum(1.0, tf.cast(steps.assign_add(1), tf.float32) / 10)
        return train(
            lambda weight: warmth * tf.reduce_mean(x @ weight)
        ), examples.value()

    return step


def spectral_norm(repl):
    """Miyato et al. 2018: a vector that follows from the weight."""
    weight, train = _training(repl)
    u = _state(tf.ones([1, WIDTH]), "u")

    def step(x):
        v = tf.math.l2_normalize(u @ tf.transpose(weight))
        u.assign(tf.math.l2_normalize(v @ weight))
        sigma = tf.reduce_sum(v @ weight * u)
        return train(lambda weight: tf.reduce_mean(x @ weight / sigma))

    return step


def compiled_spectral_norm(repl, u_of=lambda u, _: u):
    """In one function with what depends on the batch, and with batch norm."""
    weight, train = _training(repl)
    u = _state(tf.ones([1, WIDTH]), "u")
    layer = keras.layers.BatchNormalization()
    layer.build([NUM_ROWS, WIDTH])

    @tf.function(jit_compile=True)
    def compiled(x):
        v = tf.math.l2_normalize(u @ tf.transpose(weight))
        sigma = tf.reduce_sum(v @ weight * u)
        outputs = layer(x @ weight / sigma, training=True)
        return tf.reduce_mean(outputs**3), tf.math.l2_normalize(v @ weight)

    def step(x):
        def loss(_):
            total, new = compiled(x)
            u.assign(u_of(new, total))
            return total

        return train(loss)

    return step


def reduced_on_read(repl):
    _, train = _training(repl)
    scale = _state(1.0, "scale")

    def step(x):
        scale.assign(0.9 * scale + 0.1 * tf.reduce_mean(tf.abs(x)))
        mean = replicator.all_mean(scale)
        return train(lambda weight: tf.reduce_mean(x @ weight / mean))

    return step


REFUSED = {
    "probability": ada_probability,
    "running in a layer": functools.partial(_observations, use=lambda r, x: x - r),
    "running in a branch": functools.partial(_observations, use=_in_branch),
    "running in a loop": functools.partial(_observations, use=_in_loop),
    "running in a function": functools.partial(_observations, use=_in_function),
    "u of the batch in a compiled function": functools.partial(
        compiled_spectral_norm, u_of=lambda u, total: u * total
    ),
    "running as predicate": functools.partial(_observations, use=_as_predicate),
}
RIGHT = {
    "averaged probability": functools.partial(
        ada_probability, join=replicator.all_mean, trainable=True
    ),
    "joined batch norm": functools.partial(
        batch_norm_in_both_modes, kind=replicator.CrossReplicaBatchNormalization
    ),
    **{
        variant.__name__: variant
        for variant in (
            batch_norm_in_branch,
            fused_batch_norm,
            metrics,
            counters,
            spectral_norm,
            compiled_spectral_norm,
            reduced_on_read,
        )
    },
}


def _batches():
    rows = tf.random.stateless_normal([2, NUM_ROWS, WIDTH], [7, 8])
    return replicator.PerReplica(list(rows))


def _run(repl, make):
    with repl.context():
        step = make(repl)
    return repl.run(step, _batches())


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("name", REFUSED)
def test_state_by_which_replicas_train_apart_is_refused(in_graph, name):
    state = name.partition(" ")[0]

    with pytest.raises(
        UnsynchronisedUpdateError,
        match=rf"^variable '{state}:0'.* is assigned a value that differs between "
        rf"replicas at \S+test_divergence\.py:\d+: {state}\.assign\(.*, and "
        r"gradients that all_reduce\(mean\) joins depend on it.*average the value that "
        rf"you assign, as in {state}\.assign\(replicator\.all_mean\(value\)\)",
    ):
        _run(in_graph, REFUSED[name])


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("name", RIGHT)
def test_state_that_all_agree_on_or_none_trains_by_is_not_refused(in_graph, name):
    _run(in_graph, RIGHT[name])
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
        _run(in_graph, batch_norm_in_both_modes)


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
