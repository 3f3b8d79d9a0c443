"""Replica-local state: back per replica, or combined for another number of them."""

import tensorflow as tf

import replicator
from tests.replicator.conftest import make as make_backend


def _local(repl, **options):
    with repl.context():
        variable = tf.Variable(0.0, trainable=False, **options)
        generator = tf.random.Generator.from_seed(7)

    def step():
        replica_id = replicator.get_replica_context().replica_id
        variable.assign_add(tf.cast(replica_id, tf.float32) + 1)
        return variable.read_value(), generator.uniform([3])

    def read():
        return variable.read_value()

    return variable, generator, step, read


def _floats(per_replica):
    return [v.numpy().tolist() for v in per_replica]


def _manager(repl, directory, variable, generator):
    return repl.make_checkpoint_manager(
        directory, variable=variable, generator=generator
    )


def test_replica_local_state_comes_back_per_replica(in_graph, tmp_path):
    variable, generator, step, _ = _local(in_graph)
    in_graph.run(step)
    _manager(in_graph, tmp_path, variable, generator).save(1)
    expected, stream = in_graph.run(step)

    again = type(in_graph)(
        num_replicas=2,
        devices=in_graph.devices,
        variable_placement=in_graph.variable_placement,
    )
    variable, generator, step, read = _local(again)
    _manager(again, tmp_path, variable, generator).restore()

    assert 1.5 == float(variable)
    values, draws = again.run(step)
    assert _floats(expected) == _floats(values) == [2.0, 4.0]
    assert _floats(stream) == _floats(draws)
    assert [2.0, 4.0] == _floats(again.run(read))
    # The user's value reaches all copies, not those of the checkpoint.
    variable.assign(10.0)
    assert [11.0, 12.0] == _floats(again.run(step)[0])
    # Two of four replicas would continue their own streams: the fold is by replica id.
    four = replicator.create("in_graph", num_replicas=4)
    variable, generator, step, _ = _local(four)
    _manager(four, tmp_path, variable, generator).restore()
    assert _floats(stream) == _floats(four.run(step)[1])[:2]


def test_another_number_of_replicas_starts_from_what_was_combined(tmp_path):
    expected = {
        tf.VariableAggregation.NONE: [2.5, 2.5],  # (1 + 2 + 3 + 4) / 4
        tf.VariableAggregation.MEAN: [2.5, 2.5],
        tf.VariableAggregation.SUM: [5.0, 5.0],
        tf.VariableAggregation.ONLY_FIRST_REPLICA: [1.0, 1.0],
    }

    def make(num_replicas):
        repl = replicator.create("in_graph", num_replicas=num_replicas)
        with repl.context():
            variables = [
                tf.Variable(0.0, trainable=False, aggregation=aggregation)
                for aggregation in expected
            ]

        def step():
            replica_id = replicator.get_replica_context().replica_id
            for variable in variables:
                variable.assign_add(tf.cast(replica_id, tf.float32) + 1)

        def read():
            return [variable.read_value() for variable in variables]

        repl.run(step)
        manager = repl.make_checkpoint_manager(
            tmp_path, **{f"v{index}": v for index, v in enumerate(variables)}
        )
        return repl, read, manager

    make(4)[2].save(1)
    two, read, manager = make(2)  # its copies exist already, and hold something else

    restored = manager.restore()

    assert [*expected.values()] == [_floats(values) for values in two.run(read)]
    assert (
        "4 variables, combined from 4 replicas and copied to 2" == restored.local_state
    )


def test_what_another_graph_wrote_before_a_save_is_saved(in_graph, tmp_path):
    """By a raw op and by another replicator, with no run of this one in between."""
    variable, generator, step, read = _local(in_graph)
    in_graph.run(step)
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=10.0)
    replicator.create("single").run(step)
    _manager(in_graph, tmp_path, variable, generator).save(1)
    expected = _floats(in_graph.run(step)[1])
    again = replicator.create("in_graph", num_replicas=2)
    variable, generator, step, read = _local(again)
    _manager(again, tmp_path, variable, generator).restore()

    assert [11.0, 11.0] == _floats(again.run(read))
    assert expected == _floats(again.run(step)[1])


def test_copies_of_a_stock_strategy_come_back_per_replica(tmp_path):
    """ON_READ variables of tf.distribute: 1 and 2, not their sum or mean twice."""

    def make():
        repl = make_backend("tf_mirrored", 2)
        with repl.context():
            variable = tf.Variable(
                0.0,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.MEAN,
            )

        def step():
            replica_id = replicator.get_replica_context().replica_id
            variable.assign_add(tf.cast(replica_id, tf.float32) + 1)
            return variable.read_value()

        return repl, step, repl.make_checkpoint_manager(tmp_path, variable=variable)

    repl, step, manager = make()
    repl.run(step)
    manager.save(1)
    repl, step, manager = make()
    manager.restore()

    assert [2.0, 4.0] == _floats(repl.run(step))
