"""Trains a small network on one device, or on two parts of it: ``... gpu|cpu N``.

Prints the loss of each step. The global batch is the same for any number of replicas.
"""

from __future__ import annotations

import sys

import keras
import tensorflow as tf

import replicator

GLOBAL_BATCH_SIZE = 32
NUM_STEPS = 20
PART_MIB = 2048


def main(kind: str, num_replicas: int) -> None:
    device = tf.config.list_physical_devices(kind.upper())[0]
    limit = PART_MIB if kind == "gpu" else None
    parts = [tf.config.LogicalDeviceConfiguration(limit) for _ in range(num_replicas)]
    tf.config.set_logical_device_configuration(device, parts)
    # Its products would differ from float32 by 1e-3, and more with another batch.
    tf.config.experimental.enable_tensor_float_32_execution(enabled=False)
    keras.utils.set_random_seed(7)
    names = [f"{kind.upper()}:{index}" for index in range(num_replicas)]
    repl = replicator.create("in_graph", num_replicas=num_replicas, devices=names)
    size = GLOBAL_BATCH_SIZE // num_replicas
    images = tf.random.stateless_normal([GLOBAL_BATCH_SIZE, 16, 16, 3], [1, 2])
    labels = tf.range(GLOBAL_BATCH_SIZE) % 10
    with repl.context():
        model = keras.Sequential(
            [
                keras.Input((16, 16, 3)),
                keras.layers.Conv2D(16, 3, activation="relu"),
                keras.layers.Flatten(),
                keras.layers.Dense(10),
            ]
        )
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.05, momentum=0.9))
        optimizer.build(model.trainable_variables)

    def step(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        x, y = batch
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(
                y, logits, from_logits=True
            )
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return replicator.all_mean(loss)

    split = [slice(r * size, (r + 1) * size) for r in range(num_replicas)]
    x = replicator.PerReplica([images[part] for part in split])
    y = replicator.PerReplica([labels[part] for part in split])
    for _ in range(NUM_STEPS):
        loss = repl.run(step, (x, y))
        values = loss.values if isinstance(loss, replicator.PerReplica) else [loss]
        sys.stdout.write(f"{float(values[0]):.9f}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
