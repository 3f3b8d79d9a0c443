"""Training with every source of randomness, as a program and for import."""

import sys

import keras
import tensorflow as tf

import replicator

NUM_REPLICAS = 2


def train(seed, num_steps=2):
    replicator.set_determinism(seed)
    repl = replicator.create("in_graph", num_replicas=NUM_REPLICAS)
    with repl.context():
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(4, 3),
                keras.layers.BatchNormalization(),
                keras.layers.Flatten(),
                keras.layers.Dropout(0.5),
                keras.layers.Dense(1),
            ]
        )
        optimizer = repl.wrap_optimizer(keras.optimizers.Adam(0.01))

    def input_fn(ctx):
        data = tf.data.Dataset.range(64).shuffle(64)
        data = data.map(
            lambda i: tf.random.normal([8, 8, 1]) + tf.cast(i, tf.float32) / 64,
            num_parallel_calls=4,
        )
        return data.repeat().batch(ctx.get_per_replica_batch_size(16))

    inputs = repl.make_input_iterator(input_fn)

    def step(x):
        with tf.GradientTape() as tape:
            noise = tf.random.uniform([tf.shape(x)[0], 1])
            loss = tf.reduce_mean((model(x, training=True) - noise) ** 2)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return loss

    losses = [repl.run(step, inputs) for _ in range(num_steps)]
    return [float(loss).hex() for per_replica in losses for loss in per_replica]


if __name__ == "__main__":
    sys.stdout.write(" ".join(train(int(sys.argv[1]))))
