"""TensorFlow: a training loop of one's own over a distributed dataset.

The model is built by its first batch, and the loss is divided by the global batch.
"""

import keras
import tensorflow as tf

from communities.data import GLOBAL_BATCH, regression, weights_of


def train(strategy):
    """The steps run in a ``tf.function``, and sums come back."""
    whole = 2 * GLOBAL_BATCH  # complete batches
    data = tf.data.Dataset.from_tensor_slices(tuple(a[:whole] for a in regression()))
    batches = strategy.experimental_distribute_dataset(data.batch(GLOBAL_BATCH))
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.Dense(6, activation="relu"), keras.layers.Dense(1)]
        )
        optimizer = keras.optimizers.Adam(0.01)
        losses = keras.losses.MeanSquaredError(reduction="none")
        error = keras.metrics.MeanAbsoluteError()

    def train_step(inputs):
        x, y = inputs
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            loss = tf.nn.compute_average_loss(
                losses(y, predictions), global_batch_size=GLOBAL_BATCH
            )
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        error.update_state(y, predictions)
        return loss

    @tf.function
    def distributed_train_step(inputs):
        per_replica = strategy.run(train_step, args=(inputs,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)

    results = []
    for _ in range(2):
        results += [distributed_train_step(batch) for batch in batches]
        results.append(error.result())
        error.reset_state()
    return [*map(float, results), *weights_of(model)]
