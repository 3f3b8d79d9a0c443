"""A recurrent network: an LSTM under a GRU, masked, trained with Adam."""

import keras
import tensorflow as tf

from tutorials.sharing import arrays, mean_of_all, normal, share

NUM_STEPS = 2


def train(repl):
    """Regression of a sequence's sum."""
    with repl.context():
        model = keras.Sequential(
            [
                keras.Input((5, 2)),
                keras.layers.Masking(mask_value=0.0),
                keras.layers.LSTM(4, return_sequences=True),
                keras.layers.GRU(3),
                keras.layers.Dense(1),
            ]
        )
        optimizer = repl.wrap_optimizer(keras.optimizers.Adam(1e-2))
    weights = model.trainable_variables

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        grads = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(grads, weights, strict=True))
        return mean_of_all(loss)

    losses = []
    for index in range(NUM_STEPS):
        x = normal(index, 8, 5, 2)
        x[::2, 3:] = 0.0  # every other sequence is shorter
        batch = share(repl, x, x.sum(axis=(1, 2))[:, None])
        losses.append(float(repl.run(step, batch)[0]))
    return {"losses": losses, "weights": arrays(weights)}
