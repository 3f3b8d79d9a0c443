"""What is counted of a step: collectives, bytes, nodes, dispatches, traces."""

import pytest
import tensorflow as tf

import replicator
from harness.trial.measure import StepCounter
from replicator import PerReplica
from replicator._tf.dispatch import count_functions, recorded

SIZE = 100  # of the only variable, in float32
NAMES = [
    *("graph_nodes", "dispatches", "retraces"),
    *("collectives", "collective_bytes", "variable_bytes"),
]


def counts(*, num_replicas=2, size=SIZE, change=None, sizes=(4, 4), times=1):
    repl = replicator.create("in_graph", num_replicas=num_replicas)
    with repl.context():
        weights = tf.Variable(tf.zeros([size]))
    optimizer = repl.wrap_optimizer(tf.keras.optimizers.SGD(0.1))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(x, weights) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        return loss if change is None else change(loss)

    def run(num_examples):
        x = PerReplica([tf.ones([num_examples, size])] * num_replicas)
        return lambda: [repl.run(step, x) for _ in range(times)]

    counter = StepCounter(recorded, count_functions)
    counter.replicator = repl
    first, last = map(run, sizes)
    first()
    counter.start()
    found = {count["name"]: count["value"] for count in counter.run(last)}
    assert NAMES == list(found)
    return found


def test_a_change_of_the_step_shows_in_its_counts():
    plain = counts()
    assert (1, 4 * SIZE) == (plain["collectives"], plain["collective_bytes"])
    assert (1, 0) == (plain["dispatches"], plain["retraces"])
    assert plain["variable_bytes"] >= 4 * SIZE
    for changes, expected in (
        # Three percent more bytes of a variable that is larger.
        ({"size": SIZE + 3}, {"collective_bytes": 12, "variable_bytes": 12}),
        # One more op is a node of each replica.
        ({"change": tf.sin}, {"graph_nodes": 2}),
        (
            {"change": lambda loss: replicator.all_sum(tf.stack([loss] * 3))},
            {"collectives": 1, "collective_bytes": 12, "graph_nodes": None},
        ),
        # Traced again, for examples of another shape: both steps have collectives.
        (
            {"sizes": (4, 5)},
            {"collectives": 1, "collective_bytes": 4 * SIZE, "retraces": None},
        ),
        ({"times": 2}, {"dispatches": 1, "graph_nodes": plain["graph_nodes"]}),
    ):
        after = counts(**changes)
        found = {n: after[n] - plain[n] for n in plain if after[n] != plain[n]}

        assert found.keys() == expected.keys()
        for name, difference in expected.items():
            assert found[name] > 0 if difference is None else found[name] == difference
    # The collectives of one replica are the identity.
    alone = counts(num_replicas=1)
    assert (0, 0) == (alone["collectives"], alone["collective_bytes"])


def test_where_a_backend_starts_nothing_by_name_its_graph_is_not_counted():
    counter = StepCounter(recorded, count_functions)
    counter.replicator = replicator.create("single")
    counter.start()

    (found,) = counter.run(lambda: None)
    assert ("retraces", 0, 1.0) == tuple(
        found[name] for name in ("name", "value", "confidence")
    )
    with pytest.raises(KeyError), recorded() as started:
        raise KeyError
    replicator.create("single").run(lambda: tf.constant(1.0))
    assert [] == started
