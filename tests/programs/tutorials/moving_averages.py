"""Two moving averages of the weights: Keras' ``use_ema`` and TensorFlow's class."""

import keras
import tensorflow as tf

from tutorials.sharing import arrays, mean_of_all, normal, share

NUM_STEPS = 4


def train(repl):
    """Keras overwrites the weights with its average every third step."""
    with repl.context():
        weights = [tf.Variable(normal(1, 3, 2)), tf.Variable(tf.zeros([2]))]
        optimizer = repl.wrap_optimizer(
            keras.optimizers.Adam(
                0.05, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=3
            )
        )
        optimizer.build(weights)
        average = tf.train.ExponentialMovingAverage(0.9)
        average.apply(weights)  # makes its variables, before the step

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.tanh(x @ weights[0] + weights[1]) - y) ** 2)
        grads = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(grads, weights, strict=True))
        average.apply(weights)
        return mean_of_all(loss)

    losses = []
    for index in range(NUM_STEPS):
        batch = share(repl, normal(index, 8, 3), normal(10 + index, 8, 2))
        losses.append(float(repl.run(step, batch)[0]))
    return {
        "losses": losses,
        "weights": arrays(weights),
        "averages": arrays([average.average(weight) for weight in weights]),
        "averages of Keras": arrays(optimizer.wrapped._model_variables_moving_average),
    }
