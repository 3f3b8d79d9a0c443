"""Programs of tf.distribute that follow gradients to the pixels."""

import keras
import tensorflow as tf
from keras import layers

from published.examples import (
    BATCH,
    batches,
    images,
    labels,
)


def neural_style(strategy):
    """Images are what is trained: a batch of them, each towards the same style."""
    with strategy.scope():
        features = layers.Conv2D(3, 3)
        picture = tf.Variable(tf.ones([1, 8, 8, 1]) * 0.5)
        optimizer = keras.optimizers.Adam(learning_rate=0.02, beta_1=0.99, epsilon=1e-1)
    targets = strategy.experimental_distribute_dataset(batches(images()))

    def gram(x):
        product = tf.linalg.einsum("bijc,bijd->bcd", x, x)
        return product / tf.cast(tf.shape(x)[1] * tf.shape(x)[2], tf.float32)

    def train_step(styles):
        with tf.GradientTape() as tape:
            apart = gram(features(picture)) - gram(features(styles))
            losses = tf.reduce_mean(tf.square(apart), axis=[1, 2])
            loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
            variation = tf.reduce_sum(tf.image.total_variation(picture))
            loss += tf.nn.scale_regularization_loss(1e-3 * variation)
        optimizer.apply_gradients([(tape.gradient(loss, picture), picture)])
        picture.assign(tf.clip_by_value(picture, 0.0, 1.0))
        return loss

    @tf.function
    def distributed_train_step(styles):
        return strategy.reduce(
            "SUM", strategy.run(train_step, args=(styles,)), axis=None
        )

    losses = [float(distributed_train_step(styles)) for styles in targets]
    return [*losses, picture.numpy()]


def deep_dream(strategy):
    """Gradients by the input, of images that come in and go out."""
    with strategy.scope():
        layer = layers.Conv2D(2, 3, activation="relu")

    def ascend(image):
        for _ in range(3):
            with tf.GradientTape() as tape:
                tape.watch(image)
                loss = tf.reduce_sum(tf.reduce_mean(layer(image), axis=[1, 2, 3]))
            slope = tape.gradient(loss, image)
            spread = tf.math.reduce_std(slope, axis=[1, 2, 3], keepdims=True)
            image = tf.clip_by_value(image + 0.01 * slope / (spread + 1e-8), -1.0, 1.0)
        return image

    data = strategy.experimental_distribute_dataset(batches(images()))
    made = [strategy.run(ascend, args=(image,)) for image in data]
    return [strategy.gather(image, axis=0).numpy() for image in made]


def integrated_gradients(strategy):
    """Gradients along the way from a black image."""
    with strategy.scope():
        model = keras.Sequential([layers.Flatten(), layers.Dense(3, "softmax")])

    def attributions(image):
        alphas = tf.linspace(0.0, 1.0, 4)[:, None, None, None, None]
        path = tf.reshape(alphas * image, [-1, 8, 8, 1])
        with tf.GradientTape() as tape:
            tape.watch(path)
            target = model(path)[:, 0]
        slopes = tf.reshape(tape.gradient(target, path), [4, -1, 8, 8, 1])
        return image * tf.reduce_mean((slopes[:-1] + slopes[1:]) / 2.0, axis=0)

    @tf.function
    def distributed(image):
        return strategy.run(attributions, args=(image,))

    data = strategy.experimental_distribute_dataset(batches(images()))
    return [strategy.gather(distributed(image), axis=0).numpy() for image in data]


def fast_gradient_sign(strategy):
    """Images that a trained network takes for something else."""
    with strategy.scope():
        model = keras.Sequential([layers.Flatten(), layers.Dense(3)])
        losses = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="none"
        )

    def attack(inputs):
        image, label = inputs
        with tf.GradientTape() as tape:
            tape.watch(image)
            loss = losses(label, model(image))
        moved = image + 0.1 * tf.sign(tape.gradient(loss, image))
        return tf.argmax(model(moved), axis=1), moved

    data = strategy.experimental_distribute_dataset(batches(images(), labels()))
    found = []
    for inputs in data:
        classes, moved = strategy.run(attack, args=(inputs,))
        found += [strategy.gather(v, axis=0).numpy() for v in (classes, moved)]
    return found
