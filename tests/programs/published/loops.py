"""Programs that were written for ``tf.distribute``: loops of their own."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from published.examples import (
    BATCH,
    LENGTH,
    WORDS,
    batches,
    images,
    labels,
    noise_of,
    numbers,
    results,
    tokens,
)

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


def custom_training(strategy):
    """TensorFlow's guide: train and test steps, metrics, a loss by the global batch."""
    train_data = strategy.experimental_distribute_dataset(batches(images(), labels()))
    test_data = strategy.experimental_distribute_dataset(batches(images(), labels()))
    with strategy.scope():
        losses = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="none"
        )
        test_loss = keras.metrics.Mean(name="test_loss")
        accuracy = keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")
        model = keras.Sequential(
            [
                layers.Conv2D(3, 3, activation="relu", kernel_regularizer="l2"),
                layers.Flatten(),
                layers.Dense(3),
            ]
        )
        optimizer = keras.optimizers.Adam(learning_rate=0.001)

    def compute_loss(truth, predictions, model_losses):
        per_example = losses(truth, predictions)
        loss = tf.nn.compute_average_loss(per_example, global_batch_size=BATCH)
        if model_losses:
            loss += tf.nn.scale_regularization_loss(tf.add_n(model_losses))
        return loss

    def train_step(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            loss = compute_loss(y, predictions, model.losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        accuracy.update_state(y, predictions)
        return loss

    def test_step(inputs):
        x, y = inputs
        test_loss.update_state(losses(y, model(x, training=False)))

    @tf.function
    def distributed_train_step(inputs):
        per_replica = strategy.run(train_step, args=(inputs,))
        return strategy.reduce(SUM, per_replica, axis=None)

    @tf.function
    def distributed_test_step(inputs):
        return strategy.run(test_step, args=(inputs,))

    found = []
    for _ in range(2):
        found += [distributed_train_step(x) for x in train_data]
        for x in test_data:
            distributed_test_step(x)
        found += [test_loss.result(), accuracy.result()]
        test_loss.reset_state()
        accuracy.reset_state()
    return results(model, *map(float, found))


def dcgan(strategy):
    """Two tapes in one step, losses divided by the global batch."""
    data = strategy.experimental_distribute_dataset(batches(images()))
    with strategy.scope():
        generator = keras.Sequential(
            [
                layers.Dense(4 * 4 * 2, use_bias=False),
                layers.LeakyReLU(),
                layers.Reshape((4, 4, 2)),
                layers.Conv2DTranspose(
                    1, 5, strides=2, padding="same", activation="tanh"
                ),
            ]
        )
        discriminator = keras.Sequential(
            [
                layers.Conv2D(3, 5, strides=2, padding="same"),
                layers.LeakyReLU(),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )
        of_generator = keras.optimizers.Adam(1e-4)
        of_discriminator = keras.optimizers.Adam(1e-4)
        entropy = keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")

    def average(truth, output):
        losses = entropy(truth, output)
        return tf.nn.compute_average_loss(losses, global_batch_size=BATCH)

    def train_step(real):
        with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
            made = generator(noise_of(real, 4), training=True)
            on_real = discriminator(real, training=True)
            on_made = discriminator(made, training=True)
            gen_loss = average(tf.ones_like(on_made), on_made)
            disc_loss = average(tf.ones_like(on_real), on_real)
            disc_loss += average(tf.zeros_like(on_made), on_made)
        weights = generator.trainable_variables
        of_generator.apply_gradients(zip(gen_tape.gradient(gen_loss, weights), weights))
        weights = discriminator.trainable_variables
        grads = disc_tape.gradient(disc_loss, weights)
        of_discriminator.apply_gradients(zip(grads, weights))
        return gen_loss, disc_loss

    @tf.function
    def distributed_train_step(batch):
        gen_loss, disc_loss = strategy.run(train_step, args=(batch,))
        gen_loss = strategy.reduce(SUM, gen_loss, axis=None)
        return gen_loss, strategy.reduce(SUM, disc_loss, axis=None)

    losses = [np.array(distributed_train_step(batch)) for batch in data]
    return [*losses, *results(generator), *results(discriminator)]


def convolutional_vae(strategy):
    """Log probabilities by example, and an evidence bound of the global batch."""
    data = strategy.experimental_distribute_dataset(batches(images()))
    with strategy.scope():
        encoder = keras.Sequential(
            [layers.Conv2D(2, 3, strides=2), layers.Flatten(), layers.Dense(4)]
        )
        decoder = keras.Sequential([layers.Dense(64), layers.Reshape((8, 8, 1))])
        optimizer = keras.optimizers.Adam(1e-3)

    def log_normal_pdf(sample, mean, log_var):
        log_2_pi = tf.math.log(2.0 * np.pi)
        squares = (sample - mean) ** 2.0 * tf.exp(-log_var)
        return tf.reduce_sum(-0.5 * (squares + log_var + log_2_pi), axis=1)

    def compute_loss(x):
        mean, log_var = tf.split(encoder(x), 2, axis=1)
        z = noise_of(x, 2) * tf.exp(log_var * 0.5) + mean
        cross = tf.nn.sigmoid_cross_entropy_with_logits(logits=decoder(z), labels=x)
        log_px_z = -tf.reduce_sum(cross, axis=[1, 2, 3])
        bound = (
            log_px_z + log_normal_pdf(z, 0.0, 0.0) - log_normal_pdf(z, mean, log_var)
        )
        return tf.nn.compute_average_loss(-bound, global_batch_size=BATCH)

    def train_step(x):
        weights = encoder.trainable_variables + decoder.trainable_variables
        with tf.GradientTape() as tape:
            loss = compute_loss(x)
            weights = encoder.trainable_variables + decoder.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return loss

    @tf.function
    def distributed_train_step(x):
        return strategy.reduce(SUM, strategy.run(train_step, args=(x,)), axis=None)

    losses = [float(distributed_train_step(x)) for x in data]
    return [*losses, *results(encoder), *results(decoder)]


class Attention(keras.layers.Layer):
    """Additive attention of a query on values."""

    def __init__(self, units):
        super().__init__()
        self.query, self.keys = layers.Dense(units), layers.Dense(units)
        self.score = layers.Dense(1)

    def call(self, query, values):
        """A weighted sum of the values."""
        scores = self.score(tf.nn.tanh(self.query(query)[:, None] + self.keys(values)))
        return tf.reduce_sum(tf.nn.softmax(scores, axis=1) * values, axis=1)


def translation_with_attention(strategy):
    """Teacher forcing in a Python loop; padding counts nothing."""
    source, target = tokens(), tokens(seed=2)
    target[::3, 3:] = 0
    data = strategy.experimental_distribute_dataset(batches(source, target))
    with strategy.scope():
        embed = layers.Embedding(WORDS, 4)
        encoder = layers.GRU(4, return_sequences=True, return_state=True)
        attention, cell = Attention(4), layers.GRUCell(4)
        outputs = layers.Dense(WORDS)
        optimizer = keras.optimizers.Adam()
        entropy = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="none"
        )
    parts = embed, encoder, attention, cell, outputs

    def train_step(inputs):
        sentence, words = inputs
        losses = 0.0
        with tf.GradientTape() as tape:
            values, state = encoder(embed(sentence))
            for place in range(1, LENGTH):
                context = attention(state, values)
                given = tf.concat([embed(words[:, place - 1]), context], axis=-1)
                hidden, (state,) = cell(given, [state])
                mask = tf.cast(words[:, place] != 0, tf.float32)
                losses += entropy(words[:, place], outputs(hidden)) * mask
            loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
            weights = [w for part in parts for w in part.trainable_variables]
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return loss

    @tf.function
    def distributed_train_step(inputs):
        return strategy.reduce(SUM, strategy.run(train_step, args=(inputs,)), axis=None)

    losses = [float(distributed_train_step(inputs)) for inputs in data]
    return [*losses, *(w.numpy() for part in parts for w in part.weights)]


class Line(tf.Module):
    """Variables of TensorFlow's own."""

    def __init__(self):
        super().__init__()
        self.w = tf.Variable(tf.ones([3, 1]), name="w")
        self.b = tf.Variable(tf.zeros([1]), name="b")

    @tf.function
    def __call__(self, x):
        return x @ self.w + self.b


def basic_loop(strategy):
    """Neither Keras nor an optimizer: ``assign_sub`` of summed gradients."""
    x = numbers(16, 3)
    data = strategy.experimental_distribute_dataset(batches(x, x[:, :1]))
    with strategy.scope():
        model = Line()

    def train_step(inputs):
        features, y = inputs
        with tf.GradientTape() as tape:
            squares = tf.square(y - model(features))[:, 0]
            loss = tf.nn.compute_average_loss(squares, global_batch_size=BATCH)
        dw, db = tape.gradient(loss, [model.w, model.b])
        dw, db = tf.distribute.get_replica_context().all_reduce(SUM, [dw, db])
        model.w.assign_sub(0.1 * dw)
        model.b.assign_sub(0.1 * db)
        return loss

    losses = []
    for inputs in data:
        per_replica = strategy.run(train_step, args=(inputs,))
        losses.append(float(strategy.reduce(SUM, per_replica, axis=None)))
    return [*losses, model.w.numpy(), model.b.numpy()]


def graph_attention(strategy):
    """A batch of small graphs; edges weigh what neighbours say."""
    nodes, y = numbers(16, 5, 3), labels(3)
    edges = (numbers(16, 5, 5, seed=2) > 0).astype(np.float32)
    data = strategy.experimental_distribute_dataset(batches(nodes, edges, y))
    with strategy.scope():
        project = layers.Dense(4)
        score, outputs = layers.Dense(1), layers.Dense(3)
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        entropy = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="none"
        )
    parts = project, score, outputs

    def predict(features, adjacency):
        hidden = project(features)
        pairs = score(hidden) + tf.transpose(score(hidden), [0, 2, 1])
        weights = tf.nn.softmax(tf.nn.leaky_relu(pairs) - 1e9 * (1 - adjacency))
        return outputs(tf.reduce_mean(tf.matmul(weights, hidden), axis=1))

    def train_step(inputs):
        features, adjacency, truth = inputs
        with tf.GradientTape() as tape:
            losses = entropy(truth, predict(features, adjacency))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
            weights = [w for part in parts for w in part.trainable_variables]
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return loss

    @tf.function
    def distributed_train_step(inputs):
        return strategy.reduce(SUM, strategy.run(train_step, args=(inputs,)), axis=None)

    losses = [float(distributed_train_step(inputs)) for inputs in data]
    return [*losses, *(w.numpy() for part in parts for w in part.weights)]


def mixed_datasets(strategy):
    """A pipeline per replica from a function, and values by local results."""
    x = numbers(16, 3)

    def dataset_fn(context):
        size = context.get_per_replica_batch_size(BATCH)
        data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(size)
        return data.shard(context.num_input_pipelines, context.input_pipeline_id)

    data = strategy.distribute_datasets_from_function(dataset_fn)
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)

    @tf.function
    def train_step(iterator):
        def step(inputs):
            features, y = inputs
            with tf.GradientTape() as tape:
                squares = tf.square(y - model(features))[:, 0]
                loss = tf.nn.compute_average_loss(squares)
            weights = model.trainable_variables
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
            return loss

        losses = strategy.run(step, args=(next(iterator),))
        return strategy.reduce(SUM, losses, axis=None)

    iterator = iter(data)
    return results(model, *[float(train_step(iterator)) for _ in range(2)])
