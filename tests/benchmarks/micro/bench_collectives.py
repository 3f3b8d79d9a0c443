"""One collective of a megabyte over four replicas, dispatch included."""

import pytest
import tensorflow as tf

import replicator
from replicator.core import devices

NUM_REPLICAS = 4
NUM_FLOATS = 2**18
COLLECTIVES = {
    "all_sum": replicator.all_sum,
    "all_mean": replicator.all_mean,
    "all_gather": replicator.all_gather,
    "broadcast": lambda value: replicator.broadcast(value, 1),
}

# Virtual devices must exist before TensorFlow runs its first op.
devices.split_cpu(NUM_REPLICAS)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_megabyte_over_4_replicas(benchmark, name):
    """What differs by replica, so that nothing is left out as invariant."""
    repl = replicator.create(
        "in_graph",
        num_replicas=NUM_REPLICAS,
        devices=[f"CPU:{index}" for index in range(NUM_REPLICAS)],
        variable_placement="mirrored",
    )

    def step():
        replica = replicator.get_replica_context().replica_id
        value = tf.fill([NUM_FLOATS], tf.cast(replica, tf.float32))
        return tf.reduce_sum(COLLECTIVES[name](value))

    found = benchmark(lambda: float(repl.run(step)[0]))

    total = {"all_sum": 6, "all_mean": 1.5, "all_gather": 6, "broadcast": 1}[name]
    assert total * NUM_FLOATS == found
