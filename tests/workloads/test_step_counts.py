"""What is counted of a step, against changes of a step whose counts are known."""

import pytest
import tensorflow as tf

import replicator
from harness.trial.step_counts import StepCounter
from replicator import PerReplica
from replicator._tf.dispatch import count_functions, recorded
from results.records import step_counts

SIZE = 100  # of the only variable, in float32


def counts(
    *, num_replicas=2, size=SIZE, change=lambda loss: loss, sizes=(4, 4), times=1
):
    """Counts the last of some steps of linear regression."""
    repl = replicator.create("in_graph", num_replicas=num_replicas)
    with repl.context():
        weights = tf.Variable(tf.zeros([size]))
    optimizer = repl.wrap_optimizer(tf.keras.optimizers.SGD(0.1))

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(x, weights) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        return change(loss)

    def run(num_examples):
        x = tf.ones([num_examples, size])
        return lambda: [
            repl.run(step, PerReplica([x] * num_replicas)) for _ in range(times)
        ]

    counter = StepCounter(recorded, count_functions)
    counter.replicator = repl
    first, last = map(run, sizes)
    first()
    counter.start()
    found = {count["name"]: count["value"] for count in counter.run(last)}
    of_pipelines = {"activation_bytes"}
    assert [n for n in step_counts.UNITS if n not in of_pipelines] == list(found)
    return found


def differences(**changes):
    """What a change of the step adds to its counts."""
    before, after = counts(), counts(**changes)
    return {
        name: after[name] - before[name]
        for name in before
        if after[name] != before[name]
    }


def test_a_step_without_a_change_has_the_same():
    """One bucket with the gradient; the weights and what the optimizer keeps."""
    found = counts()

    assert {} == differences()
    assert (1, 4 * SIZE) == (found["collectives"], found["collective_bytes"])
    assert (1, 0) == (found["dispatches"], found["retraces"])
    assert found["variable_bytes"] >= 4 * SIZE


def test_one_replica_gives_nothing_to_anybody():
    """Its collectives are the identity."""
    found = counts(num_replicas=1)

    assert (0, 0) == (found["collectives"], found["collective_bytes"])


def test_one_more_collective_and_its_bytes_are_counted():
    """Beside the nodes that carry it out."""
    found = differences(change=lambda loss: replicator.all_sum(tf.stack([loss] * 3)))

    assert (1, 12) == (found.pop("collectives"), found.pop("collective_bytes"))
    assert found.pop("graph_nodes") > 1
    assert {} == found


def test_three_percent_more_bytes_are_three_percent():
    """Of a variable that is larger; nothing else changes."""
    more = 3 * SIZE // 100
    found = differences(size=SIZE + more)

    assert {"collective_bytes": 4 * more, "variable_bytes": 4 * more} == found


def test_one_more_op_is_a_node_of_each_replica():
    """Where it is not one that the optimizer of graphs removes."""
    assert {"graph_nodes": 2} == differences(change=tf.sin)


def test_a_step_that_is_traced_again_is_counted():
    """For examples of another shape, say; the steps of both shapes have collectives."""
    found = differences(sizes=(4, 5))

    assert found.pop("retraces") >= 1
    assert {"collectives": 1, "collective_bytes": 4 * SIZE} == found


def test_a_step_that_starts_twice_as_much_is_counted():
    """Each start has its nodes."""
    once, twice = counts(), counts(times=2)

    assert 2 == twice["dispatches"]
    assert 2 * once["graph_nodes"] == twice["graph_nodes"]


def test_where_a_backend_starts_nothing_by_name_its_graph_is_not_counted():
    """A number that is not known is left out, and is not 0."""
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
