"""N replicas of b examples train like one device on N x b, in layers and stages too."""

import keras
import numpy as np
import tensorflow as tf
from conformance_cases.cases import case, share
from conformance_cases.state import split_in_order

import replicator

NUM_STEPS = 10
GLOBAL_BATCH_SIZE = 8
NUM_EXAMPLES = 32

# Losses are sums over 8 examples in another order, ten steps deep.
RTOL_LOSSES = 1e-4
ATOL_WEIGHTS = 1e-5


def sgd():
    return keras.optimizers.SGD(0.1)


def momentum():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def adam():
    return keras.optimizers.Adam(0.01)


def _scheduled():
    rates = keras.optimizers.schedules.PiecewiseConstantDecay([4, 8], [0.1, 0.05, 0.01])
    return keras.optimizers.SGD(rates, momentum=0.9)


def normal_features(*size):
    """Examples of a size, always the same."""
    rng = np.random.default_rng(3)
    return rng.normal(size=(NUM_EXAMPLES, *size)).astype(np.float32)


def _labels():
    rng = np.random.default_rng(4)
    return rng.normal(size=(NUM_EXAMPLES, 3)).astype(np.float32)


def dense_net():
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(16, activation="tanh"),
            keras.layers.Dense(3),
        ]
    )


def one_layer():
    """A kernel and a bias: tracing an update takes as long as it has variables."""
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])


def _convolutional():
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            # Normalization takes a bias out again: its gradient is rounding alone,
            # which Adam would blow up to full steps.
            keras.layers.Conv2D(4, 3, use_bias=False),
            replicator.CrossReplicaBatchNormalization(momentum=0.9),
            keras.layers.Activation("tanh"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(3),
        ]
    )


def _embedding():
    return keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            keras.layers.Embedding(11, 5),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )


def train(repl, make_model, optimizers, features, **options):
    """Trains a copy of a model per optimizer side by side, so that one trace serves.

    An optimizer is a function that makes one, or a tuple of it and further options.
    """
    models, wrapped = {}, {}
    with repl.context():
        for name, of_name in optimizers.items():
            make, own = of_name if isinstance(of_name, tuple) else (of_name, {})
            # Workers other than 0 start from other weights, and must not notice.
            keras.utils.set_random_seed(7 + repl.worker_id)
            models[name] = make_model()
            wrapped[name] = repl.wrap_optimizer(make(), **options, **own)
            # A step that makes slots is traced twice; other cases have such steps.
            wrapped[name].build(models[name].trainable_variables)

    def step(batch):
        x, y = batch
        losses = {}
        for name, model in models.items():
            with tf.GradientTape() as tape:
                losses[name] = tf.reduce_mean(tf.square(model(x, training=True) - y))
                scaled = wrapped[name].scale_loss(losses[name])
            weights = model.trainable_variables
            grads = tape.gradient(scaled, weights)
            wrapped[name].apply_gradients(zip(grads, weights, strict=True))
        return losses

    inputs = repl.make_input_iterator(
        split_in_order(GLOBAL_BATCH_SIZE, features, _labels())
    )
    means = [repl.reduce("mean", repl.run(step, inputs)) for _ in range(NUM_STEPS)]
    repl.assert_in_sync()
    return {
        name: {
            "losses": np.float32([losses[name] for losses in means]),
            "weights": [weight.numpy() for weight in model.weights],
            "num_updates": np.int64(wrapped[name].iterations.numpy()),
        }
        for name, model in models.items()
    }


LIKE_ONE = {
    "like_single_device": True,
    "rtol": RTOL_LOSSES,
    "atol": ATOL_WEIGHTS,
    "max_replicas": GLOBAL_BATCH_SIZE,
}


@case("synchronous_training", **LIKE_ONE)
def trains_with_optimizers_and_options(repl):
    """Momentum, RMSprop, weight decay, a schedule; clipped, and with a scaled loss."""
    optimizers = {
        "momentum": momentum,
        "rmsprop": lambda: keras.optimizers.RMSprop(0.01),
        "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
        "schedule": _scheduled,
        "clipped by Keras": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.05),
        # Of the averaged gradients, and above the limit.
        "clipped": (adam, {"global_clipnorm": 0.05}),
        # By a power of two, which changes no bit of the unscaled gradients.
        "scaled": (adam, {"loss_scale": 1024.0}),
    }
    return train(repl, one_layer, optimizers, normal_features(6))


@case("synchronous_training", **LIKE_ONE)
def trains_convolutional_with_cross_replica_norm(repl):
    """CrossReplicaBatchNormalization: gradients flow through global statistics."""
    optimizers = {"momentum": momentum}
    return train(repl, _convolutional, optimizers, normal_features(6, 6, 1))


def _train_embedding(repl, optimizer):
    rng = np.random.default_rng(3)
    words = rng.integers(0, 11, size=(NUM_EXAMPLES, 4)).astype(np.int32)
    return train(repl, _embedding, {"words": optimizer}, words)


@case("synchronous_training", "sparse_gradients", **LIKE_ONE)
def trains_embedding(repl):
    """Sparse gradients of an embedding follow the single device."""
    return _train_embedding(repl, momentum)


@case("synchronous_training", "shared_rows", **LIKE_ONE)
def trains_embedding_by_adam(repl):
    """Words that occur several times are summed before they are squared."""
    return _train_embedding(repl, adam)


def _mixed_precision():
    policy = keras.mixed_precision.Policy("mixed_bfloat16")
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="relu", dtype=policy),
            keras.layers.Dense(3, dtype="float32"),
        ]
    )


# bfloat16 keeps 8 bits: sums in another order differ by parts in a thousand.
@case("synchronous_training", like_single_device=True, rtol=2e-2, atol=2e-3)
def trains_in_mixed_precision(repl):
    """bfloat16 activations, float32 weights."""
    return train(repl, _mixed_precision, {"sgd": sgd}, normal_features(6))


@case(
    "compiled_functions",
    reference=lambda _: {
        "loss": np.float32(14.0),
        "gradient": np.float32([2.0, 4.0, 6.0]),
    },
)
def differentiates_in_a_compiled_function(repl):
    """Forward and backward pass of a replica, compiled by XLA, read a variable."""
    with repl.context():
        weight = tf.Variable([1.0, 2.0, 3.0], name="weight")

    @tf.function(jit_compile=True, autograph=False)
    def differentiate(scale):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(scale * tf.square(weight))
        return loss, tape.gradient(loss, weight)

    def step():
        loss, gradient = differentiate(tf.constant(1.0))
        return {"loss": loss, "gradient": gradient}

    return repl.reduce("mean", repl.run(step))


@case("fit", **LIKE_ONE)
def fits_like_one_device(repl):
    """``fit`` of a model that was compiled in ``scope()``: history and weights."""
    keras.utils.set_random_seed(7)
    with repl.scope():
        model = one_layer()
        model.compile("adam", "mse", metrics=["mae"])
    x, y = normal_features(6), _labels()
    history = model.fit(
        x, y, batch_size=GLOBAL_BATCH_SIZE, epochs=2, shuffle=False, verbose=0
    ).history
    weights = [weight.numpy() for weight in model.trainable_variables]
    return {"history": history, "weights": weights}


@case("synchronous_training", "compiled_functions", **LIKE_ONE)
def trains_with_compiled_gradients(repl):
    """The update reads the gradients of a program of XLA."""
    with repl.context():
        keras.utils.set_random_seed(7 + repl.worker_id)
        model = one_layer()
        optimizer = repl.wrap_optimizer(momentum())
    inputs = repl.make_input_iterator(
        split_in_order(GLOBAL_BATCH_SIZE, normal_features(6), _labels())
    )

    @tf.function(jit_compile=True, autograph=False)
    def differentiate(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
        return loss, tape.gradient(loss, model.trainable_variables)

    def step(batch):
        loss, gradients = differentiate(*batch)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        return loss

    losses = [float(repl.reduce("mean", repl.run(step, inputs))) for _ in range(5)]
    repl.assert_in_sync()
    return {
        "losses": np.float32(losses),
        "weights": [weight.numpy() for weight in model.weights],
    }


@case("synchronous_training", like_single_device=True)
def an_optimizer_of_keras(repl):
    """compile() takes a wrapped one, and apply(grads, variables) averages, too."""
    with repl.context():
        weight = tf.Variable([1.0, 2.0])
        optimizer = repl.wrap_optimizer(keras.optimizers.Adam(0.1))
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer=optimizer, loss="mse")
    assert model.optimizer is optimizer
    assert isinstance(optimizer, keras.optimizers.Adam)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(x, weight) ** 2)
        optimizer.apply([tape.gradient(loss, weight)], [weight])

    features = np.float32([[1, 2], [3, 4], [5, 6], [7, 8]])
    parts = share(repl, np.split(features, repl.num_replicas))
    for _ in range(3):
        repl.run(step, parts)
    return weight.numpy()


@case("synchronous_training", "fixed_inputs", **LIKE_ONE)
def two_steps_share_variables(repl):
    """Two players, as in a GAN: each step reads what the other wrote."""
    with repl.context():
        generator = tf.Variable([0.5, -0.5], name="generator")
        critic = tf.Variable([1.0, 2.0], name="critic")
        of_generator = repl.wrap_optimizer(keras.optimizers.Adam(0.05))
        of_critic = repl.wrap_optimizer(keras.optimizers.SGD(0.1, momentum=0.5))

    def train_critic(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x - generator) @ critic[:, None]) + tf.reduce_sum(
                critic**2
            )
        of_critic.apply_gradients([(tape.gradient(loss, critic), critic)])
        return loss

    def train_generator(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square((x + generator) @ critic[:, None]))
        of_generator.apply_gradients([(tape.gradient(loss, generator), generator)])
        return loss

    values = share(repl, np.split(normal_features(2), repl.num_replicas))
    losses = [
        float(repl.reduce("mean", repl.run(step, values)))
        for _ in range(4)
        for step in (train_critic, train_critic, train_generator)
    ]
    repl.assert_in_sync()
    return np.float32(losses)


class _Split(tf.Module):
    """Two layers on two logical devices."""

    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(1)
        with replicator.logical_device(0):
            self.first = tf.Variable(rng.normal(size=(6, 5)).astype(np.float32))
        with replicator.logical_device(1):
            self.second = tf.Variable(rng.normal(size=(5, 3)).astype(np.float32))

    @property
    def weights(self):
        return list(self.trainable_variables)

    def __call__(self, x, *, training):
        del training
        with replicator.logical_device(0):
            hidden = tf.tanh(tf.matmul(x, self.first))
        with replicator.logical_device(1):
            return tf.matmul(hidden, self.second)


@case("synchronous_training", "model_parallelism", num_logical_devices=2, **LIKE_ONE)
def trains_model_parallel(repl):
    """Replicas that are split over two devices each follow the single device."""
    return train(repl, _Split, {"adam": adam}, normal_features(6))


_CHANNELS = 3


def _batch():
    rng = np.random.default_rng(6)
    x = rng.normal(size=(GLOBAL_BATCH_SIZE, 4, _CHANNELS)) * [1, 2, 3] + 0.5
    weights = rng.normal(size=x.shape)
    return x.astype(np.float32), weights.astype(np.float32)


def _norm_layer(kind):
    layer = kind(momentum=0.8)
    layer.build((None, 4, _CHANNELS))
    layer.gamma.assign([0.5, 1.0, 1.5])
    layer.beta.assign([-1.0, 0.0, 1.0])
    return layer


def _outputs_and_gradients(layer, x, weights):
    with tf.GradientTape() as tape:
        tape.watch(x)
        out = layer(x, training=True)
        loss = tf.reduce_sum(weights * out**2)
    gradients = tape.gradient(loss, [x, layer.gamma.value, layer.beta.value])
    return out, *gradients


def _of_whole_batch(topology):
    layer = _norm_layer(keras.layers.BatchNormalization)
    x, weights = map(tf.constant, _batch())
    for _ in range(2):
        out, of_x, of_gamma, of_beta = _outputs_and_gradients(layer, x, weights)

    def dealt(values):
        return replicator.PerReplica(np.split(values.numpy(), topology.num_replicas))

    def everywhere(value):
        return replicator.PerReplica([value.numpy()] * topology.num_replicas)

    return {
        "out": dealt(out),
        "gradient of x": dealt(of_x),
        "gradients of weights": [everywhere(of_gamma), everywhere(of_beta)],
        "moving mean": layer.moving_mean.numpy(),
        "moving variance": layer.moving_variance.numpy(),
    }


@case(
    "synchronous_training",
    "fixed_inputs",
    reference=_of_whole_batch,
    max_replicas=GLOBAL_BATCH_SIZE,
    # The variance is a difference of sums that are taken in another order.
    rtol=2e-4,
    atol=1e-4,
)
def normalizes_over_all_replicas(repl):
    """CrossReplicaBatchNormalization: outputs, gradients, moving statistics."""
    with repl.context():
        layer = _norm_layer(replicator.CrossReplicaBatchNormalization)

    def step(batch):
        out, of_x, *of_weights = _outputs_and_gradients(layer, *batch)
        return out, of_x, replicator.all_sum(of_weights)

    dealt = tuple(
        share(repl, np.split(values, repl.num_replicas)) for values in _batch()
    )
    for _ in range(2):
        out, of_x, of_weights = repl.run(step, dealt)
    repl.assert_in_sync()
    return {
        "out": out,
        "gradient of x": of_x,
        "gradients of weights": list(of_weights),
        "moving mean": layer.moving_mean.numpy(),
        "moving variance": layer.moving_variance.numpy(),
    }


_NUM_STEPS_OF_PIPELINES = 8
NUM_STAGES = 2


def _stage_layer(stage, width):
    with replicator.logical_device(stage):
        layer = keras.layers.Dense(width, activation="tanh")
        layer.build([None, 6])
    return layer


@case(
    *("synchronous_training", "pipelines"),
    num_logical_devices=NUM_STAGES,
    like_single_device=True,
    rtol=RTOL_LOSSES,
    atol=ATOL_WEIGHTS,
    max_replicas=GLOBAL_BATCH_SIZE // 2,
)
def trains_a_pipeline(repl):
    """Two stages, two micro-batches, with what a stage keeps and without."""
    with repl.context():
        keras.utils.set_random_seed(7 + repl.worker_id)
        models = [[_stage_layer(0, 6), _stage_layer(1, 3)] for _ in range(2)]
        optimizers = [repl.wrap_optimizer(keras.optimizers.Adam(0.01)) for _ in models]
    pipelines = [
        replicator.Pipeline(model, num_microbatches=2, recompute=recompute)
        for model, recompute in zip(models, (False, True), strict=True)
    ]

    def mean_squared(outputs, targets):
        return tf.reduce_mean(tf.square(outputs - targets))

    def step(batch):
        losses = []
        for pipeline, optimizer in zip(pipelines, optimizers, strict=True):
            loss, found = pipeline.loss_and_gradients(batch, mean_squared)
            optimizer.apply_gradients(found)
            losses.append(loss)
        return losses

    rng = np.random.default_rng(5)
    features = rng.normal(size=(NUM_EXAMPLES, 6)).astype(np.float32)
    targets = rng.normal(size=(NUM_EXAMPLES, 3)).astype(np.float32)
    inputs = repl.make_input_iterator(
        split_in_order(GLOBAL_BATCH_SIZE, features, targets)
    )
    losses = [
        repl.reduce("mean", repl.run(step, inputs))
        for _ in range(_NUM_STEPS_OF_PIPELINES)
    ]
    repl.assert_in_sync()
    return {
        "losses": np.float32(losses),
        "weights": [w.numpy() for model in models for x in model for w in x.weights],
    }


# Of bfloat16; float16 keeps three bits more.
UNIT_ROUNDOFF = 2.0**-8


@case(
    "synchronous_training",
    "gradient_compression",
    like_single_device=True,
    # Ten updates by gradients of about 1, each rounded twice, at a rate of 0.1. What is
    # linear in gradients follows their rounding; Adam divides by their size, so a
    # component that is nearly zero may go anywhere.
    rtol=2 * UNIT_ROUNDOFF,
    atol=2 * UNIT_ROUNDOFF * 0.1 * NUM_STEPS,
)
def trains_with_gradients_in_16_bits(repl):
    """Losses and weights of one device, up to the rounding of sent gradients."""
    optimizers = {
        name: (momentum, {"compression": name}) for name in ("bfloat16", "float16")
    }
    return train(repl, one_layer, optimizers, normal_features(6))


def _accumulating():
    return keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2)


@case("synchronous_training", "gradient_accumulation", **LIKE_ONE)
def trains_with_accumulated_gradients(repl):
    """Every other call updates, with the mean of both; Keras' own option, too."""
    optimizers = {
        "momentum": (momentum, {"accumulation_steps": 2}),
        "adam": (adam, {"accumulation_steps": 2}),
        "keras": _accumulating,
    }
    return train(repl, one_layer, optimizers, normal_features(6))


@case(
    "synchronous_training",
    "fixed_inputs",
    # Averages (3, 0) and 4 have norm 5; clipping before would see a norm above 50.
    reference=lambda _: {
        "vector": np.float32([1.0 - 0.5 * 0.6, 2.0]),
        "scalar": np.float32(3.0 - 0.5 * 0.8),
    },
)
def global_clipping_comes_after_reduction(repl):
    """Gradients that cancel across replicas are averaged first; one norm for all."""
    n = repl.num_replicas
    with repl.context():
        vector, scalar = tf.Variable([1.0, 2.0]), tf.Variable(3.0)
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.5), global_clipnorm=1.0)
    signs = [0.0] if n == 1 else [(-1.0) ** r for r in range(n)]
    grads = (
        share(repl, [np.float32([3.0, 50.0 * sign]) for sign in signs]),
        share(repl, [np.float32(4.0)] * n),
    )

    def step(pair):
        optimizer.apply_gradients(zip(pair, (vector, scalar), strict=True))
        return tf.constant(0)

    repl.run(step, grads)
    repl.assert_in_sync()
    return {"vector": vector.numpy(), "scalar": scalar.numpy()}


@case(
    "synchronous_training",
    "dynamic_loss_scale",
    "fixed_inputs",
    reference=lambda t: {
        # Gradient 2^15 * (mean of r + 1) / 2^15; the second step is skipped.
        "weight": np.float32(1.0 - 2 * 0.5 * (t.num_replicas + 1) / 2),
        "scale": np.float32(2.0**14),
        "num_skipped": np.int64(1),
        "num_updates": np.int64(2),
    },
)
def a_dynamic_loss_scale_skips_on_all_replicas(repl):
    """One replica overflows: none updates, and the scale is halved for all."""
    n = repl.num_replicas
    with repl.context():
        weight = tf.Variable(1.0)
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.5), loss_scale="dynamic")

    def step(x):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(weight * x)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return loss

    fine = [np.float32(r + 1) for r in range(n)]
    overflowing = [*fine[:-1], np.float32(np.inf)]
    for values in (fine, overflowing, fine):
        repl.run(step, share(repl, values))
    repl.assert_in_sync()
    state = optimizer.loss_scale
    return {
        "weight": weight.numpy(),
        "scale": np.float32(state.scale.numpy()),
        "num_skipped": np.int64(state.num_skipped_steps.numpy()),
        "num_updates": np.int64(optimizer.iterations.numpy()),
    }


def _train_sharded(repl, **options):
    # As many variables as there are replicas, so that each of them owns one.
    optimizers = {"sharded": (adam, options)}
    return train(repl, dense_net, optimizers, normal_features(6))


@case("synchronous_training", "sharded_update", **LIKE_ONE)
def trains_with_a_sharded_update(repl):
    """One replica updates each variable; the weights are those of a full update."""
    return _train_sharded(repl, sharded_update=True)


@case("synchronous_training", "sharded_gradients", **LIKE_ONE)
def trains_with_sharded_gradients(repl):
    """Sums are kept by owners, clipped by the norm of all of them."""
    return _train_sharded(repl, sharded_update="gradients", global_clipnorm=0.05)


@case("synchronous_training", "sharded_parameters", **LIKE_ONE)
def trains_with_sharded_parameters(repl):
    """Weights are on their owners' devices and are read from there."""
    return _train_sharded(repl, sharded_update="parameters")
