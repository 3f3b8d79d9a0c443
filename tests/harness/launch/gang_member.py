"""A member of a gang that says who it is in JSON; with ``sum``, what all sum."""

import json
import sys

from replicator.cluster import environment


def identity():
    config = environment.detect().config()
    return {
        "worker_id": config.worker_id,
        "local_worker_id": config.local_worker_id,
        "num_workers_on_host": config.num_workers_on_host,
        "addresses": list(config.addresses["worker"]),
    }


def sum_of_ranks():
    import tensorflow as tf

    import replicator

    repl = replicator.create("multi_worker", num_replicas=2, timeout_sec=60.0)

    def step(_):
        rank = tf.cast(replicator.get_replica_context().replica_id, tf.float32)
        return replicator.all_sum(rank + 1.0)

    inputs = repl.make_input_iterator(
        lambda _: tf.data.Dataset.from_tensors(tf.zeros([1])).repeat()
    )
    total = repl.reduce("mean", repl.run(step, inputs))
    return {"worker_id": repl.worker_id, "sum": float(total)}


if __name__ == "__main__":
    answer = sum_of_ranks() if sys.argv[1:] == ["sum"] else identity()
    sys.stdout.write(f"{json.dumps(answer)}\n")
