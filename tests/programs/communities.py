"""Programs of libraries that are not locked, each with what it imports, on small data.

They are cases of a cluster, which runs them on one strategy.
"""

import functools
import tempfile

import keras
import numpy as np
import tensorflow as tf

import replicator

NUM_EXAMPLES = 20  # no multiple of a batch: the last one is smaller
GLOBAL_BATCH = 8


def regression():
    numbers = np.random.default_rng(0)
    x = numbers.normal(size=(NUM_EXAMPLES, 4)).astype(np.float32)
    return x, np.tanh(x.sum(axis=1, keepdims=True))


def weights_of(model):
    return [np.asarray(variable.numpy()) for variable in model.trainable_variables]


def dm_control_policy(strategy):
    """dm-control: episodes of the suite, and a policy gradient on what was seen."""
    from dm_control import suite

    env = suite.load("cartpole", "balance", task_kwargs={"random": 1})
    size = env.action_spec().shape[0]
    with strategy.scope():
        policy = keras.Sequential(
            [keras.Input((5,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(size)]
        )
        optimizer = keras.optimizers.SGD(0.1)

    def learn(observations, actions, returns):
        with tf.GradientTape() as tape:
            distances = tf.reduce_sum((policy(observations) - actions) ** 2, axis=1)
            loss = tf.nn.compute_average_loss(
                distances * returns, global_batch_size=GLOBAL_BATCH
            )
        grads = tape.gradient(loss, policy.trainable_variables)
        optimizer.apply_gradients(zip(grads, policy.trainable_variables, strict=True))
        return loss

    noise = np.random.default_rng(1)
    losses = []
    for _ in range(2):
        seen, step = [], env.reset()
        for _ in range(GLOBAL_BATCH):
            flat = np.concatenate([np.ravel(v) for v in step.observation.values()])
            flat = flat.astype(np.float32)
            action = policy(flat[np.newaxis]).numpy()[0]
            action = (action + noise.normal(size=size)).astype(np.float32)
            step = env.step(np.clip(action, -1, 1))
            seen.append((flat, action, np.float32(step.reward)))
        arrays = tuple(map(np.stack, zip(*seen, strict=True)))
        data = tf.data.Dataset.from_tensor_slices(arrays).batch(GLOBAL_BATCH)
        for batch in strategy.experimental_distribute_dataset(data):
            loss = strategy.run(learn, args=batch)
            losses.append(float(strategy.reduce("SUM", loss, axis=None)))
    return [*losses, *weights_of(policy)]


def keras_hub_classifier(strategy):
    """KerasHub: a small encoder of texts, and its task of classification."""
    import keras_hub

    keras.utils.set_random_seed(1)
    numbers = np.random.default_rng(0)
    length = 5
    shape = NUM_EXAMPLES, length
    features = {
        "token_ids": numbers.integers(1, 20, shape),
        "segment_ids": np.zeros(shape, np.int32),
        "padding_mask": np.ones(shape, np.int32),
    }
    labels = features["token_ids"][:, 0] % 2
    with strategy.scope():
        backbone = keras_hub.models.BertBackbone(
            vocabulary_size=20,
            num_layers=1,
            num_heads=2,
            hidden_dim=8,
            intermediate_dim=16,
            max_sequence_length=length,
            dropout=0.0,
        )
        classifier = keras_hub.models.BertTextClassifier(
            backbone, num_classes=2, preprocessor=None, dropout=0.0
        )
        classifier.compile(
            optimizer=keras.optimizers.SGD(0.1),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = classifier.fit(
        features, labels, batch_size=GLOBAL_BATCH, epochs=2, verbose=0
    )
    return [*history.history.values(), classifier.predict(features, verbose=0)]


def _tuned_model(hyperparameters):
    keras.utils.set_random_seed(1)
    width = hyperparameters.Choice("width", [4, 8])
    rate = hyperparameters.Choice("rate", [0.1, 0.01])
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(width, "relu"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(rate), "mse")
    return model


def keras_tuner_search(strategy):
    """KerasTuner: a search, each of whose trials trains on all replicas."""
    import keras_tuner

    x, y = regression()
    with tempfile.TemporaryDirectory() as folder:
        tuner = keras_tuner.GridSearch(
            _tuned_model,
            objective="val_loss",
            distribution_strategy=strategy,
            directory=folder,
        )
        tuner.search(
            x, y, batch_size=GLOBAL_BATCH, epochs=2, validation_data=(x, y), verbose=0
        )
        trials = tuner.oracle.get_best_trials(4)
    return [trial.score for trial in trials]


def orbit_controller(strategy):
    """Orbit: a controller drives a trainer, with Orbit's own options."""
    import orbit

    class Trainer(orbit.StandardTrainer):
        """Steps run in a loop within one ``tf.function``."""

        def __init__(self, strategy):
            self.strategy = strategy
            data = tf.data.Dataset.from_tensor_slices(regression()).repeat()
            data = data.batch(GLOBAL_BATCH, drop_remainder=True)
            with strategy.scope():
                self.model = keras.Sequential(
                    [keras.Input((4,)), keras.layers.Dense(1)]
                )
                self.optimizer = keras.optimizers.Adam(0.01)
                self.loss = keras.metrics.Mean()
                self.global_step = tf.Variable(0, dtype=tf.int64, trainable=False)
            super().__init__(strategy.experimental_distribute_dataset(data))

        def train_loop_begin(self):
            self.loss.reset_state()

        def train_step(self, iterator):
            def step(batch):
                x, y = batch
                with tf.GradientTape() as tape:
                    errors = tf.reduce_sum((self.model(x) - y) ** 2, axis=1)
                    loss = tf.nn.compute_average_loss(
                        errors, global_batch_size=GLOBAL_BATCH
                    )
                weights = self.model.trainable_variables
                grads = tape.gradient(loss, weights)
                self.optimizer.apply_gradients(zip(grads, weights, strict=True))
                self.loss.update_state(errors)

            self.strategy.run(step, args=(next(iterator),))
            self.global_step.assign_add(1)

        def train_loop_end(self):
            return {"loss": self.loss.result()}

    trainer = Trainer(strategy)
    controller = orbit.Controller(
        strategy=strategy,
        trainer=trainer,
        global_step=trainer.global_step,
        steps_per_loop=3,
    )
    logs = controller.train(steps=6, checkpoint_at_completion=False)
    loss = float(logs["loss"]) if logs else float(trainer.loss.result())
    return [loss, int(trainer.global_step), *weights_of(trainer.model)]


def _steps_of_sonnet(strategy, model, optimizer):
    """The losses of three steps, whose gradients ``all_reduce`` averages."""

    def step(x):
        with tf.GradientTape() as tape:
            loss = model(x)
        parameters = model.trainable_variables
        context = tf.distribute.get_replica_context()
        grads = context.all_reduce("mean", tape.gradient(loss, parameters))
        optimizer.apply(grads, parameters)
        return context.all_reduce("mean", loss)

    @tf.function
    def train_step(batch):
        return strategy.experimental_local_results(strategy.run(step, args=(batch,)))

    data = tf.data.Dataset.from_tensor_slices(regression()[0]).repeat()
    batches = strategy.experimental_distribute_dataset(data.batch(GLOBAL_BATCH))
    return [
        float(train_step(batch)[0]) for batch, _ in zip(batches, range(3), strict=False)
    ]


def sonnet_vqvae(strategy):
    """Sonnet: a vector-quantized autoencoder; the step itself averages gradients."""
    import sonnet as snt

    class Autoencoder(snt.Module):
        """Statistics of the encoder are those of the global batch."""

        def __init__(self):
            super().__init__()
            initializers = {"w_init": snt.initializers.Constant(0.3)}
            self.encoder = snt.Linear(3, with_bias=False, **initializers)
            self.norm = snt.distribute.CrossReplicaBatchNorm(
                create_scale=True,
                create_offset=True,
                moving_mean=snt.ExponentialMovingAverage(0.9),
                moving_variance=snt.ExponentialMovingAverage(0.9),
            )
            self.quantizer = snt.nets.VectorQuantizer(
                embedding_dim=3, num_embeddings=5, commitment_cost=0.25
            )
            self.decoder = snt.nets.MLP([4, 4], **initializers)

        def __call__(self, x):
            encoded = self.norm(self.encoder(x) + x[:, :3], is_training=True)
            quantized = self.quantizer(encoded, is_training=True)
            restored = self.decoder(quantized["quantize"])
            return tf.reduce_mean((restored - x) ** 2) + quantized["loss"]

    tf.random.set_seed(1)
    with strategy.scope():
        model = Autoencoder()
        values = tf.reshape(tf.linspace(-1.0, 1.0, 15), [3, 5])
        model.quantizer.embeddings.assign(values)
        optimizer = snt.optimizers.Adam(0.01)
    return [*_steps_of_sonnet(strategy, model, optimizer), *weights_of(model)]


def sonnet_vqvae_ema(strategy, *, averages_all=True):
    """Sonnet: codes are moving averages, of all replicas or as Sonnet has them."""
    import sonnet as snt

    class OfAllReplicas(snt.ExponentialMovingAverage):
        """An average of sums over the global batch."""

        def update(self, value):
            """Sums over replicas first; on one device, this is that value."""
            context = tf.distribute.get_replica_context()
            super().update(context.all_reduce("sum", value))

    class Autoencoder(snt.Module):
        def __init__(self):
            super().__init__()
            initializers = {"w_init": snt.initializers.Constant(0.3)}
            self.encoder = snt.Linear(3, with_bias=False, **initializers)
            self.quantizer = snt.nets.VectorQuantizerEMA(
                embedding_dim=3, num_embeddings=5, commitment_cost=0.25, decay=0.9
            )
            codes = tf.reshape(tf.linspace(-1.0, 1.0, 15), [3, 5])
            self.quantizer.embeddings.assign(codes)
            if averages_all:
                self.quantizer.ema_cluster_size = OfAllReplicas(decay=0.9)
                self.quantizer.ema_cluster_size.initialize(tf.zeros([5]))
                self.quantizer.ema_dw = OfAllReplicas(decay=0.9)
                self.quantizer.ema_dw.initialize(codes)
            self.decoder = snt.nets.MLP([4, 4], **initializers)

        def __call__(self, x):
            quantized = self.quantizer(self.encoder(x) + x[:, :3], is_training=True)
            restored = self.decoder(quantized["quantize"])
            return tf.reduce_mean((restored - x) ** 2) + quantized["loss"]

    with strategy.scope():
        model = Autoencoder()
        optimizer = snt.optimizers.Adam(0.01)
    losses = _steps_of_sonnet(strategy, model, optimizer)
    codes = model.quantizer.embeddings.numpy()
    return [*losses, codes, *weights_of(model)]


def tf_agents_dqn(strategy):
    """TF-Agents: its learner trains a DQN agent on trajectories that were seen."""
    import tf_keras
    from tf_agents.agents.dqn import dqn_agent
    from tf_agents.networks import sequential
    from tf_agents.specs import tensor_spec
    from tf_agents.train import learner
    from tf_agents.trajectories import time_step, trajectory
    from tf_agents.utils import common

    num_actions = 3

    def experience():
        numbers = np.random.default_rng(0)
        shape = GLOBAL_BATCH, 2
        return trajectory.Trajectory(
            step_type=np.ones(shape, np.int32),
            observation=numbers.normal(size=(*shape, 4)).astype(np.float32),
            action=numbers.integers(0, num_actions, shape).astype(np.int32),
            policy_info=(),
            next_step_type=np.ones(shape, np.int32),
            reward=numbers.normal(size=shape).astype(np.float32),
            discount=np.ones(shape, np.float32),
        )

    tf_keras.utils.set_random_seed(1)
    with strategy.scope():
        network = sequential.Sequential(
            [
                tf_keras.layers.Dense(8, activation="relu"),
                tf_keras.layers.Dense(num_actions),
            ]
        )
        counter = tf.Variable(0, dtype=tf.int64, trainable=False)
        agent = dqn_agent.DqnAgent(
            time_step.time_step_spec(tensor_spec.TensorSpec([4], tf.float32)),
            tensor_spec.BoundedTensorSpec([], tf.int32, 0, num_actions - 1),
            q_network=network,
            optimizer=tf_keras.optimizers.Adam(0.01),
            td_errors_loss_fn=common.element_wise_squared_loss,
            train_step_counter=counter,
        )
        agent.initialize()

    def dataset_fn():
        data = tf.data.Dataset.from_tensor_slices(experience()).repeat()
        return data.batch(GLOBAL_BATCH, drop_remainder=True).map(lambda x: (x, ()))

    with tempfile.TemporaryDirectory() as folder:
        trainer = learner.Learner(
            folder,
            counter,
            agent,
            experience_dataset_fn=dataset_fn,
            strategy=strategy,
            run_optimizer_variable_init=False,
        )
        loss = trainer.run(iterations=3).loss
    return [float(loss), *(v.numpy() for v in network.trainable_variables)]


def tf_keras_fit(strategy):
    """tf_keras, which is Keras 2: a subclassed model, built by ``fit``."""
    import tf_keras

    class Regressor(tf_keras.Model):
        def __init__(self):
            super().__init__()
            self.hidden = tf_keras.layers.Dense(
                6, activation="relu", kernel_regularizer="l2"
            )
            self.outputs = tf_keras.layers.Dense(1)

        def call(self, x):
            return self.outputs(self.hidden(x))

    tf_keras.utils.set_random_seed(1)
    x, y = regression()
    with strategy.scope():
        model = Regressor()
        optimizer = tf_keras.optimizers.Adam(0.01, global_clipnorm=0.5)
        model.compile(optimizer, "mse", metrics=["mae"])
    history = model.fit(
        x, y, batch_size=GLOBAL_BATCH, epochs=2, validation_data=(x, y), verbose=0
    )
    predicted = model.predict(x, batch_size=GLOBAL_BATCH, verbose=0)
    return [*history.history.values(), predicted, *weights_of(model)]


def tfds_pipeline(strategy):
    """TensorFlow Datasets: a builder's splits through ``tf.data`` into ``fit``."""
    import tensorflow_datasets as tfds

    with tfds.testing.mock_data(num_examples=50):
        builder = tfds.builder("mnist")
        train_data, test_data = builder.as_dataset(
            split=["train", "test"], as_supervised=True
        )

    def scaled(image, label):
        return tf.cast(image, tf.float32) / 255.0, label

    batches = train_data.map(scaled).cache()
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((28, 28, 1)),
                keras.layers.AveragePooling2D(4),
                keras.layers.Flatten(),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            optimizer=keras.optimizers.SGD(0.1),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.SparseCategoricalAccuracy()],
        )
    history = model.fit(
        batches.batch(16).prefetch(tf.data.AUTOTUNE),
        epochs=2,
        validation_data=test_data.map(scaled).batch(16),
        verbose=0,
    )
    return [*history.history.values(), *weights_of(model)]


def _distributions():
    import tensorflow_probability as tfp

    return tfp.distributions


def surrogate():
    import tensorflow_probability as tfp
    import tf_keras

    scale = tfp.util.DeferredTensor(tf.Variable([0.1, 0.2]), tf.nn.softplus)
    location = tf.Variable([0.0, 0.0])
    posterior = tfp.distributions.MultivariateNormalDiag(location, scale)
    return posterior, tf_keras.optimizers.Adam(0.05)


def prior(z):
    """The logarithm of the probability of samples."""
    unit = _distributions().MultivariateNormalDiag(tf.zeros([2]), tf.ones([2]))
    return unit.log_prob(z)


def likelihood(z, values):
    """The logarithm of the probability of examples, by sample."""
    scale = tf.nn.softplus(z[..., 1:]) + 0.1
    return tf.reduce_sum(
        _distributions().Normal(z[..., :1], scale).log_prob(values), axis=-1
    )


def tfp_variational(strategy):
    """TensorFlow Probability: a variational posterior, one step of Adam at a time."""
    import tensorflow_probability as tfp

    with strategy.scope():
        posterior, optimizer = surrogate()

    def step(values, seed):
        # All replicas draw the same samples, and divide what is no sum over examples.
        num_replicas = tf.distribute.get_replica_context().num_replicas_in_sync

        def target(z):
            return prior(z) + num_replicas * likelihood(z, values)

        with tf.GradientTape() as tape:
            loss = tfp.vi.monte_carlo_variational_loss(
                target, posterior, sample_size=3, seed=seed
            )
            loss = loss / num_replicas
        variables = posterior.trainable_variables
        grads = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(grads, variables, strict=True))
        return loss

    @tf.function
    def train_step(values, seed):
        loss = strategy.run(step, args=(values, seed))
        return strategy.reduce("SUM", loss, axis=None)

    data = tf.data.Dataset.from_tensor_slices(regression()[0][:, 0]).repeat()
    data = data.batch(GLOBAL_BATCH, drop_remainder=True)
    batches = strategy.experimental_distribute_dataset(data)
    losses = [
        float(train_step(values, tf.constant([1, index])))
        for index, values in zip(range(4), batches, strict=False)
    ]
    return [*losses, *(v.numpy() for v in posterior.trainable_variables)]


PROGRAMS = {
    program.__name__: program
    for program in (
        dm_control_policy,
        keras_hub_classifier,
        keras_tuner_search,
        orbit_controller,
        sonnet_vqvae,
        sonnet_vqvae_ema,
        tf_agents_dqn,
        tf_keras_fit,
        tfds_pipeline,
        tfp_variational,
    )
}


def set_up(_folder):
    return (replicator.create("multi_worker", num_replicas=2).as_strategy(),)


def run(name, strategy=None):
    keras.utils.set_random_seed(7)
    found = PROGRAMS[name](strategy or tf.distribute.get_strategy())
    return [np.asarray(value).tolist() for value in found]


CASES = {name: functools.partial(run, name) for name in PROGRAMS}
