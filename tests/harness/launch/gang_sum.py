"""A program of a gang that sums the ranks of its workers, in TensorFlow."""

import sys

import tensorflow as tf

import replicator


def sum_of_ranks():
    repl = replicator.create("multi_worker", num_replicas=2, timeout_sec=60.0)

    def step(_):
        rank = tf.cast(replicator.get_replica_context().replica_id, tf.float32)
        return replicator.all_sum(rank + 1.0)

    inputs = repl.make_input_iterator(
        lambda _: tf.data.Dataset.from_tensors(tf.zeros([1])).repeat()
    )
    result = repl.reduce("mean", repl.run(step, inputs))
    return float(result), repl.worker_id


def main():
    total, worker_id = sum_of_ranks()
    sys.stdout.write(f"sum {total:g} on worker {worker_id}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
