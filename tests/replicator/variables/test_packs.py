"""Packs: copies of local vectors that are parts of one vector per replica."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator.variables.packs import pack_of

ON_READ = tf.VariableSynchronization.ON_READ
SIZES = (2, 3, 1)
RATE = 0.5


@pytest.fixture(params=["of one memory", "of their own"])
def repl(request):
    """Two replicas that share memory, or four that do not."""
    if request.param == "of one memory":
        return replicator.create("in_graph", num_replicas=2)
    return replicator.create(
        "in_graph",
        num_replicas=4,
        devices=[f"CPU:{index}" for index in range(4)],
        variable_placement="mirrored",
    )


def statistics(repl, **how):
    """Moving averages, as of three layers of batch normalization."""
    how = {"aggregation": tf.VariableAggregation.MEAN, **how}
    with repl.context():
        return [
            tf.Variable(
                tf.ones([size]), trainable=False, synchronization=ON_READ, **how
            )
            for size in SIZES
        ]


def entries(repl, variables):
    """What replicas use in place of variables."""
    return repl._table.entries_of(variables)


def copies(repl, variable):
    """The values of a variable's copies."""
    (entry,) = entries(repl, [variable])
    return [copy.numpy().tolist() for copy in entry.copies]


def averaging(variables):
    """A step that moves all averages to one plus the replica's id."""

    def step():
        own = replicator.get_replica_context().replica_id
        for variable in variables:
            target = tf.cast(own, tf.float32) + 1.0
            variable.assign(variable * RATE + target * (1.0 - RATE))

    return step


def averages(repl, num_steps, start=1.0):
    """What a copy of each replica is after some steps."""
    values = np.full([repl.num_replicas], start)
    for _ in range(num_steps):
        values = values * RATE + (np.arange(repl.num_replicas) + 1.0) * (1.0 - RATE)
    return values


def assert_are(repl, variables, expected):
    """All copies of all variables, and what they read as outside."""
    for variable in variables:
        size = variable.shape[0]
        assert [[value] * size for value in expected] == copies(repl, variable)
        assert [np.mean(expected)] * size == variable.numpy().tolist()


@pytest.mark.parametrize("num_steps", [1, 3])
def test_each_replica_has_its_own_average_and_the_user_their_mean(repl, num_steps):
    """In steps one by one, and in a loop."""
    variables = statistics(repl)
    step = averaging(variables)
    repl.run(step, num_steps=num_steps)
    repl.run(step, num_steps=num_steps)

    packs = {id(pack_of(entry)) for entry in entries(repl, variables)}
    assert 1 == len(packs)
    assert None not in map(pack_of, entries(repl, variables))
    assert_are(repl, variables, averages(repl, 2 * num_steps))


def test_what_the_user_assigns_reaches_its_own_part_only(repl):
    """The others keep what each replica has."""
    first, second, third = variables = statistics(repl)
    step = averaging(variables)
    repl.run(step)
    second.assign([4.0, 4.0, 4.0])

    assert_are(repl, [second], [4.0] * repl.num_replicas)
    assert_are(repl, [first, third], averages(repl, 1))
    repl.run(step)
    assert_are(repl, [second], averages(repl, 1, start=4.0))
    assert_are(repl, [first, third], averages(repl, 2))


def test_what_a_raw_op_writes_is_found_by_the_next_run(repl):
    """Of one variable: statistics of the others differ by right."""
    first, *others = variables = statistics(repl)
    step = averaging(variables)
    repl.run(step)
    tf.raw_ops.AssignVariableOp(resource=first.handle, value=tf.constant([4.0, 4.0]))
    repl.run(step)

    assert_are(repl, [first], averages(repl, 1, start=4.0))
    assert_are(repl, others, averages(repl, 2))


def test_a_step_may_use_some_of_a_pack(repl):
    """Reads of one, and writes of another."""
    first, second, third = variables = statistics(repl)
    repl.run(averaging(variables))
    repl.run(averaging([second]))
    read = repl.run(lambda: first + 0.0)

    assert_are(repl, [first, third], averages(repl, 1))
    assert_are(repl, [second], averages(repl, 2))
    assert [[v] * 2 for v in averages(repl, 1)] == [r.numpy().tolist() for r in read]


def test_a_step_that_needs_variables_gets_them(repl):
    """In a branch, twice, as an output, and by addition; the rest stays packed."""
    first, second, third = variables = statistics(repl)
    step = averaging(variables)
    repl.run(step)

    def branch():
        own = replicator.get_replica_context().replica_id
        tf.cond(own > 0, lambda: first.assign_add([1.0, 1.0]), lambda: first + 0.0)
        second.assign(second * 2.0)
        second.assign(second + 1.0)
        third.assign(third * 2.0)
        return first.read_value()

    for num_steps in (1, 2):
        found = repl.run(branch, num_steps=num_steps)
    expected = averages(repl, 1)
    added = expected + 3.0 * (np.arange(repl.num_replicas) > 0)
    assert [[value] * 2 for value in added] == [f.numpy().tolist() for f in found]
    assert_are(repl, [first], added)
    assert_are(repl, [second], expected * 8.0 + 7.0)
    assert_are(repl, [third], expected * 8.0)
    repl.run(step)
    targets = (np.arange(repl.num_replicas) + 1.0) * (1.0 - RATE)
    assert_are(repl, [first], added * RATE + targets)
    assert_are(repl, [second], (expected * 8.0 + 7.0) * RATE + targets)


def test_variables_that_do_not_fit_together_are_apart(repl):
    """Of other types, ranks and aggregations."""
    with repl.context():
        made = [
            tf.Variable(value, trainable=False, synchronization=ON_READ, aggregation=of)
            for of in (tf.VariableAggregation.MEAN, tf.VariableAggregation.SUM)
            for value in (
                np.ones([2], np.float32),
                np.ones([3], np.float32),
                np.ones([2], np.float64),
                np.ones([3], np.float64),
                np.float32(1.0),
                np.ones([2, 2], np.float32),
            )
        ]

    def step():
        for variable in made:
            variable.assign(variable * tf.constant(2.0, variable.dtype))

    repl.run(step)
    packs = [pack_of(entry) for entry in entries(repl, made)]
    assert [True] * 4 + [False] * 2 + [True] * 4 + [False] * 2 == [
        pack is not None for pack in packs
    ]
    assert 4 == len({id(pack) for pack in packs if pack is not None})
    # A sum is divided over replicas, and each doubles its part of it.
    assert {2.0} == {float(v) for of in made for v in np.ravel(of.numpy())}


def test_a_step_that_fails_leaves_packs_whole(repl):
    """Each replica has written all of its pack, or nothing."""
    variables = statistics(repl)
    step = averaging(variables)
    repl.run(step)

    def failing():
        step()
        own = replicator.get_replica_context().replica_id
        return tf.debugging.check_numerics(1.0 / tf.cast(own, tf.float32), "injected")

    with pytest.raises(tf.errors.InvalidArgumentError, match="injected"):
        repl.run(failing)
    repl.assert_in_sync()
    once, twice = averages(repl, 1), averages(repl, 2)
    by_variable = [copies(repl, variable) for variable in variables]
    for replica, of_replica in enumerate(zip(*by_variable, strict=True)):
        (value,) = {value for values in of_replica for value in values}
        assert value in (once[replica], twice[replica])
    for variable, of_copies in zip(variables, by_variable, strict=True):
        assert np.mean(of_copies, axis=0).tolist() == variable.numpy().tolist()


def test_checkpoints_have_the_copies_of_each_variable(repl, tmp_path):
    """Restored, each replica goes on from its own."""
    variables = statistics(repl)
    step = averaging(variables)
    repl.run(step)
    saved = tf.train.Checkpoint(variables=variables)
    manager = repl.make_checkpoint_manager(tmp_path, statistics=saved)
    manager.save(1)
    repl.run(step)
    manager.restore()

    assert_are(repl, variables, averages(repl, 1))
    repl.run(step)
    assert_are(repl, variables, averages(repl, 2))


def test_the_memory_of_a_pack_is_counted_with_its_variables(repl):
    """Each replica's part of each variable, on its device."""
    variables = statistics(repl)
    repl.run(averaging(variables))
    found = repl._table.bytes_by_device(variables)

    assert repl.num_replicas * 4 * sum(SIZES) == sum(found.values())
