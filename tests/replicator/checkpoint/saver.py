"""A process that trains and saves without end, to be killed at any moment."""

import pathlib
import sys

import tensorflow as tf

import replicator

NUM_WEIGHTS = 400_000  # a save takes long enough to be hit


def make(directory):
    repl = replicator.create("in_graph", num_replicas=2)
    with repl.context():
        weights = tf.Variable(tf.zeros([NUM_WEIGHTS]), trainable=False)
        local = tf.Variable(tf.zeros([1000]), trainable=False)
    inputs = repl.make_input_iterator(lambda _: tf.data.Dataset.range(1 << 40))

    def step(number):
        replica_id = replicator.get_replica_context().replica_id
        weights.assign_add(tf.ones_like(weights))
        local.assign_add(tf.fill([1000], tf.cast(replica_id + 1, tf.float32)))
        return number, local.read_value()

    manager = repl.make_checkpoint_manager(
        directory, max_to_keep=2, inputs=inputs, weights=weights, local=local
    )
    return repl, inputs, step, weights, manager


def train(directory):
    """Continues from the last checkpoint; saves after every step."""
    repl, inputs, step, weights, manager = make(directory)
    done = pathlib.Path(directory) / "last_completed"
    restored = manager.restore()
    number = restored.step if restored else 0
    while True:
        number += 1
        batches, local = repl.run(step, inputs)
        # What was restored is whole: every part belongs to the same step.
        assert [2 * number - 2, 2 * number - 1] == [int(b) for b in batches]
        for replica_id in range(2):
            assert bool(tf.reduce_all(local[replica_id] == number * (replica_id + 1)))
        assert bool(tf.reduce_all(weights == float(number)))
        manager.save(number)
        temporary = done.with_suffix(".new")
        temporary.write_text(str(number), encoding="utf-8")
        temporary.rename(done)


if __name__ == "__main__":
    train(sys.argv[1])
