"""Prints the losses of a training on two replicas, first without XLA, then with it.

A line between them separates what TensorFlow wrote to standard error, too.
"""

from __future__ import annotations

import sys

import tensorflow as tf

import replicator

SEPARATOR = "now with XLA"


def train() -> None:
    repl = replicator.create("in_graph", num_replicas=2, devices=["CPU:0"] * 2)
    with repl.context():
        weight = tf.Variable([[1.0, 2.0], [3.0, 4.0]])

    def step(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            y = tf.nn.relu(tf.matmul(x, weight) + 1.0) / 3.0
            loss = tf.reduce_mean(y * y)
        weight.assign_sub(0.01 * replicator.all_mean(tape.gradient(loss, weight)))
        return loss

    xs = replicator.PerReplica([tf.eye(2), 2 * tf.eye(2)])
    for _ in range(3):
        print(*(float(loss) for loss in repl.run(step, xs)))  # noqa: T201


if __name__ == "__main__":
    tf.config.optimizer.set_jit(False)
    train()
    for stream in (sys.stdout, sys.stderr):
        print(SEPARATOR, file=stream, flush=True)
    tf.config.optimizer.set_jit(True)
    train()
