"""A subclass of ``keras.Model`` with metrics that the step updates."""

import keras
import numpy as np
import tensorflow as tf

from tutorials.sharing import arrays, normal, share

NUM_STEPS = 3


class Classifier(keras.Model):
    """Two dense layers and dropout, which is off: masks would differ."""

    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(8, activation="relu")
        self.dropout = keras.layers.Dropout(0.0)
        self.logits = keras.layers.Dense(3)
        self.mean_loss = keras.metrics.Mean()
        self.accuracy = keras.metrics.SparseCategoricalAccuracy()

    def call(self, x, *, training=False):
        return self.logits(self.dropout(self.hidden(x), training=training))


def train(repl):
    """Metrics are read and reset outside, as at the end of an epoch."""
    with repl.context():
        model = Classifier()
        model(tf.zeros([1, 4]))
        optimizer = repl.wrap_optimizer(keras.optimizers.Nadam(1e-2))
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            loss = loss_of(y, logits)
        weights = model.trainable_variables
        grads = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(grads, weights, strict=True))
        model.mean_loss.update_state(loss)
        model.accuracy.update_state(y, logits)

    results = []
    for epoch in range(2):
        for index in range(NUM_STEPS):
            x = normal(10 * epoch + index, 8, 4)
            repl.run(step, share(repl, x, np.argmax(x[:, :3], axis=1)))
        results.append(
            [float(model.mean_loss.result()), float(model.accuracy.result())]
        )
        model.mean_loss.reset_state()
        model.accuracy.reset_state()
    return {"results": results, "weights": arrays(model.trainable_variables)}
