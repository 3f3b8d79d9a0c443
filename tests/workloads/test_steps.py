"""Steps that are queued, and what is counted of a step."""

import pytest
import tensorflow as tf
from small_programs import build as build_small

import replicator
from harness.trial.steps import StepCounter
from replicator import PerReplica
from replicator._tf.dispatch import count_functions, recorded
from results.records import measuring
from workloads import catalog


def build(name, backend, num_replicas):
    tf.keras.utils.set_random_seed(1)
    repl = replicator.create(backend, num_replicas=num_replicas)
    return build_small(name, repl, data="digits")


@pytest.mark.parametrize(
    "case",
    [
        ("resnet50", "single", 1),
        pytest.param(("resnet50", "in_graph", 2), marks=pytest.mark.full),
        pytest.param(("sngan", "in_graph", 2), marks=pytest.mark.full),
    ],
    ids=lambda case: "-".join(map(str, case)),
)
def test_losses_can_be_read_after_later_steps_have_started(case):
    """Equal to the last bit; so are the checks, which count examples."""
    queued = build(*case)
    readers = [queued.dispatch() for _ in range(3)]
    losses, of_replicas = [], []
    for read_loss in readers:
        losses.append(read_loss())
        of_replicas.append(queued.losses_of_replicas())
    one_by_one = build(*case)
    expected, expected_of_replicas = [], []
    for _ in range(3):
        expected.append(one_by_one.run())
        expected_of_replicas.append(one_by_one.losses_of_replicas())

    assert expected == losses
    assert 3 == len(set(losses))
    assert expected_of_replicas == of_replicas
    assert [(c.name, c.is_passed) for c in queued.sanity()] == [
        (c.name, True) for c in one_by_one.sanity()
    ]


def test_a_program_that_cannot_queue_says_why():
    """The planner refuses; a step has ended when it is dispatched."""
    reasons = {name: info.syncs_because for name, info in catalog.WORKLOADS.items()}

    assert {"resnet50": "", "sngan": ""}.items() <= reasons.items()
    assert reasons["d4pg"]


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
    assert [n for n in measuring.UNITS if n not in of_pipelines] == list(found)
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
