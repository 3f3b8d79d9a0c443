"""Variables that nobody else can write are not checked, and are once somebody can."""

import keras
import pytest
import tensorflow as tf

import replicator


def write_raw(handle, value):
    tf.raw_ops.AssignVariableOp(resource=handle, value=tf.convert_to_tensor(value))


class Case:
    def __init__(self, repl, *, is_outside=False):
        self.repl = repl
        self.handle = None

        def make():
            self.weight = tf.Variable(1.0, name="weight")
            self.statistic = tf.Variable(
                0.0, trainable=False, synchronization=tf.VariableSynchronization.ON_READ
            )

        if is_outside:
            make()
        else:
            with repl.context():
                make()

        def step(x):
            self.statistic.assign_add(x)
            self.weight.assign_add(replicator.all_mean(tf.ones([])))
            return self.weight.read_value(), self.statistic.read_value()

        self.step = step
        self.inputs = replicator.PerReplica([tf.constant(1.0), tf.constant(3.0)])

    def run(self):
        weights, statistics = self.repl.run(self.step, self.inputs)
        return [float(w) for w in weights], [float(s) for s in statistics]

    def num_checked(self):
        table = self.repl._table
        return sum(table.is_checked(entry) for entry in table.entries())


def _raw_op(case):
    write_raw(case.weight.handle, 10.0)
    write_raw(case.statistic.handle, 10.0)


def _kept_handles(case):
    for handle in case.handle:
        write_raw(handle, 10.0)


def _keep_handles(case):
    case.handle = [case.weight.handle, case.statistic.handle]


def _make_function(case, write=lambda variable: variable.assign(10.0)):
    @tf.function
    def both():
        write(case.weight)
        write(case.statistic)

    both.get_concrete_function()
    case.function = both


def _function_of(write):
    return lambda case: _make_function(case, write), lambda case: case.function()


def _stacked_handles(case):
    for handle in tf.unstack(tf.stack([case.weight.handle, case.statistic.handle])):
        write_raw(handle, 10.0)


def _make_pipeline(case):
    def write(index):
        case.weight.assign(10.0)
        case.statistic.assign(10.0)
        return index

    case.pipeline = tf.data.Dataset.range(1).map(write)


WAYS = {
    "raw op": (None, _raw_op),
    "a handle that was kept": (_keep_handles, _kept_handles),
    "a function": _function_of(lambda variable: variable.assign(10.0)),
    "the result of a write": _function_of(lambda v: v.assign(0.0).assign_add(10.0)),
    "a branch": _function_of(
        lambda v: tf.cond(v < 100.0, lambda: v.assign(10.0), v.read_value)
    ),
    "stacked handles": (None, _stacked_handles),
    "a pipeline": (_make_pipeline, lambda case: next(iter(case.pipeline))),
}


@pytest.mark.parametrize(
    ("name", "is_early"),
    [(name, True) for name in WAYS]
    + [("a function", False), ("a handle that was kept", False)],
)
def test_what_others_write_reaches_all_replicas(mirrored, name, is_early):
    prepare, write = WAYS[name]
    case = Case(mirrored())
    if prepare and is_early:
        prepare(case)
    assert ([2.0, 2.0], [1.0, 3.0]) == case.run()
    assert ([3.0, 3.0], [2.0, 6.0]) == case.run()
    if prepare and not is_early:
        prepare(case)
        assert ([4.0, 4.0], [3.0, 9.0]) == case.run()
    for _ in range(2):
        write(case)
        assert ([11.0, 11.0], [11.0, 13.0]) == case.run()
        assert ([12.0, 12.0], [12.0, 16.0]) == case.run()

    assert 2 == case.num_checked()
    case.repl.assert_in_sync()


def test_a_function_that_could_write_and_does_not_changes_nothing(mirrored):
    case = Case(mirrored())

    @tf.function
    def write(is_on):
        if is_on:
            case.statistic.assign(10.0)

    case.run()
    write(tf.constant(False))
    assert ([3.0, 3.0], [2.0, 6.0]) == case.run()
    write(tf.constant(True))
    assert ([4.0, 4.0], [11.0, 13.0]) == case.run()


def _gradient(variable):
    with tf.GradientTape() as tape:
        loss = variable * variable
    return tape.gradient(loss, [variable])


def _watched_gradient(variable):
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(variable)
        loss = variable * variable
    return tape.gradient(loss, variable)


READS = {
    "value": lambda v: v.value(),
    "read_value": lambda v: v.read_value(),
    "arithmetic": lambda v: v + 1.0,
    "initialized": lambda v: v.is_initialized(),
    "gradient": _gradient,
    "watched gradient": _watched_gradient,
}
ROWS = {
    "gather": lambda v: tf.gather(v, [0]),
    "lookup": lambda v: tf.nn.embedding_lookup(v, [1]),
    "gather_nd": lambda v: v.gather_nd([[0, 0]]),
    "slice": lambda v: v[0],
}
EAGER = {
    "numpy": lambda v: v.numpy(),
    "facts": lambda v: (v.device, v.shape, v.name, v.dtype, str(v)),
}


def _in_function(read, variable):
    tf.function(lambda: read(variable), autograph=False)()


def test_without_others_nothing_is_checked(mirrored, tmp_path):
    case = Case(mirrored())
    with case.repl.context():
        rows = tf.Variable([[1.0, 2.0], [3.0, 4.0]], trainable=False)
    plain = case.step

    def step(x):
        tf.cond(x > 0, lambda: rows.assign_add(tf.ones([2, 2])), rows.read_value)
        for _ in tf.range(2):
            rows.assign_sub(tf.ones([2, 2]))
        write_raw(rows.handle, tf.ones([2, 2]))
        return plain(x)

    case.step = step
    case.run()
    for variable, reads in ((case.weight, READS), (rows, ROWS | READS)):
        for read in (reads | EAGER).values():
            read(variable)
        for read in reads.values():
            _in_function(read, variable)
    assert 0 == case.num_checked()
    case.weight.assign(5.0)
    case.statistic.assign(5.0)
    assert ([6.0, 6.0], [6.0, 8.0]) == case.run()
    manager = case.repl.make_checkpoint_manager(
        tmp_path / "own", weight=case.weight, statistic=case.statistic
    )
    manager.save(step=1)
    tf.train.Checkpoint(statistic=case.statistic).save(str(tmp_path / "all"))
    case.run()
    manager.restore()
    assert ([7.0, 7.0], [7.0, 11.0]) == case.run()

    assert 0 == case.num_checked()


def test_fit_trains_unchecked_until_somebody_writes(mirrored):
    repl = mirrored()
    with repl.as_strategy().scope():
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse")
    x, y = tf.ones([8, 3]), tf.zeros([8, 1])
    model.fit(x, y, batch_size=4, verbose=0)
    model.evaluate(x, y, verbose=0)
    table, weight = repl._table, model.trainable_variables[0].value
    copied = [entry for entry in table.entries() if entry.last_synced is not None]
    assert len(copied) >= 4
    assert not any(map(table.is_checked, copied))

    write_raw(weight.handle, [[5.0]] * 3)
    model.fit(x, y, batch_size=4, verbose=0)
    assert all(map(table.is_checked, copied))
    assert [5.0] * 3 == [float(of) for of in weight[:, 0]]
    repl.assert_in_sync()


def test_a_variable_of_elsewhere_is_always_checked(mirrored):
    case = Case(mirrored(), is_outside=True)
    write = tf.function(lambda: case.weight.assign(10.0))
    write.get_concrete_function()
    case.run()
    write()

    assert ([11.0, 11.0], [2.0, 6.0]) == case.run()
    assert 2 == case.num_checked()


def test_a_step_that_is_a_function_can_be_called_by_others(mirrored):
    case = Case(mirrored())
    inner = tf.function(lambda: case.weight.assign_add(0.5))
    plain = case.step

    def step(x):
        inner()
        return plain(x)

    case.step = step
    assert ([2.5, 2.5], [1.0, 3.0]) == case.run()
    inner()
    assert ([4.5, 4.5], [2.0, 6.0]) == case.run()


def test_a_step_in_somebody_elses_function_is_checked_when_it_must(mirrored):
    """Nobody traces that function again when others get a handle: a switch is read."""
    case = Case(mirrored())
    strategy = case.repl.as_strategy()

    def step():
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return case.step(1.0 + 2.0 * tf.cast(replica, tf.float32))

    train = tf.function(lambda: strategy.run(step))
    case.run()
    train()
    train()
    assert 0 == case.num_checked()
    assert ([5.0, 5.0], [4.0, 12.0]) == case.run()
    _raw_op(case)
    train()
    assert 2 == case.num_checked()
    assert ([12.0, 12.0], [12.0, 16.0]) == case.run()
    write_raw(case.statistic.handle, 10.0)
    train()
    assert ([14.0, 14.0], [12.0, 16.0]) == case.run()

    again = tf.function(lambda: strategy.run(step))  # now with the check in it
    again()
    _raw_op(case)
    again()
    assert ([12.0, 12.0], [12.0, 16.0]) == case.run()
    case.repl.assert_in_sync()


def test_a_dispatch_that_fails_between_keeps_what_is_noted(mirrored):
    case = Case(mirrored())
    case.run()
    plain = case.step

    def failing(x):
        weight, statistic = plain(x)
        with tf.control_dependencies([tf.debugging.Assert(weight < 0.0, ["injected"])]):
            return tf.identity(weight), statistic

    with pytest.raises(tf.errors.InvalidArgumentError, match="injected"):
        case.repl.run(failing, case.inputs)
    _raw_op(case)
    with pytest.raises(tf.errors.InvalidArgumentError, match="injected"):
        case.repl.run(failing, case.inputs)
    weights, _ = case.run()

    assert weights[0] == weights[1]
    case.repl.assert_in_sync()
