"""Programs that were written for ``tf.distribute``: loops of their own."""

import keras
import tensorflow as tf
from keras import layers

from published.examples import BATCH, batches, images, labels, numbers, results

SUM = tf.distribute.ReduceOp.SUM


def custom_training(strategy):
    """Train and test steps, metrics, and an epoch that is a loop in one function."""
    train_data = strategy.experimental_distribute_dataset(batches(images(), labels()))
    test_data = strategy.experimental_distribute_dataset(batches(images(), labels()))
    with strategy.scope():
        loss_object = keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="none"
        )
        test_loss = keras.metrics.Mean(name="test_loss")
        train_accuracy, test_accuracy = (
            keras.metrics.SparseCategoricalAccuracy(name=name)
            for name in ("train_accuracy", "test_accuracy")
        )
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(3, 3, activation="relu", kernel_regularizer="l2"),
                layers.MaxPooling2D(),
                layers.Flatten(),
                layers.Dense(3),
            ]
        )
        optimizer = keras.optimizers.Adam(learning_rate=0.001)
        optimizer.build(model.trainable_variables)

    def compute_loss(truth, predictions, model_losses):
        per_example = loss_object(truth, predictions)
        loss = tf.nn.compute_average_loss(per_example, global_batch_size=BATCH)
        return loss + tf.nn.scale_regularization_loss(tf.add_n(model_losses))

    def train_step(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            loss = compute_loss(y, predictions, model.losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        train_accuracy.update_state(y, predictions)
        return loss

    def test_step(inputs):
        x, y = inputs
        predictions = model(x, training=False)
        test_loss.update_state(loss_object(y, predictions))
        test_accuracy.update_state(y, predictions)

    @tf.function
    def distributed_test_step(inputs):
        return strategy.run(test_step, args=(inputs,))

    @tf.function
    def distributed_train_epoch(iterator, num_batches):
        total_loss = 0.0
        for _ in tf.range(num_batches):
            per_replica = strategy.run(train_step, args=(next(iterator),))
            total_loss += strategy.reduce(SUM, per_replica, axis=None)
        return total_loss / tf.cast(num_batches, tf.float32)

    found = []
    for _ in range(2):
        found.append(distributed_train_epoch(iter(train_data), tf.constant(2)))
        for inputs in test_data:
            distributed_test_step(inputs)
        for metric in (train_accuracy, test_loss, test_accuracy):
            found.append(metric.result())
            metric.reset_state()
    return results(model, *map(float, found))


def distributed_input(strategy):
    """A pipeline per replica from a function, its iterator in a function."""
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
