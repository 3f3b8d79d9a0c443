"""A dispatch that fails leaves all copies alike, and what is read outside current."""

import keras
import pytest
import tensorflow as tf

import replicator

ON_READ = tf.VariableSynchronization.ON_READ
PLACEMENTS = ["shared", "mirrored"]


def _fail_if(condition, *, after):
    with tf.control_dependencies(after):
        check = tf.debugging.Assert(tf.logical_not(condition), ["injected"])
    return [check]


def _floats(values):
    return [float(value) for value in values]


@pytest.fixture
def make():
    def make(placement, **options):
        return replicator.create(
            "in_graph",
            num_replicas=2,
            devices=["CPU:0", "CPU:1"],
            variable_placement=placement,
            **options,
        )

    return make


@pytest.mark.parametrize(
    ("external_writes", "failing"), [("detect", 0), ("detect", 1), ("never", 1)]
)
def test_a_replica_that_fails_late_leaves_equal_copies(
    make, per_replica, external_writes, failing
):
    """Though the other one has written: three failures, then good steps."""
    repl = make("mirrored", external_writes=external_writes)
    with repl.context():
        weight = tf.Variable(8.0)

    def step(x):
        total = replicator.all_mean(tf.constant(1.0))
        with tf.control_dependencies(_fail_if(x > 0, after=[total])):
            weight.assign_sub(tf.identity(total))
        return weight.read_value()

    repl.run(step, per_replica([0.0, 0.0]))
    bad = per_replica([float(failing == 0), float(failing == 1)])
    for _ in range(3):
        with pytest.raises(tf.errors.InvalidArgumentError, match="injected"):
            repl.run(step, bad)
        repl.assert_in_sync()
    before = float(weight)
    first, second = _floats(repl.run(step, per_replica([0.0, 0.0])))

    assert before - 1.0 == first == second == float(weight)
    repl.assert_in_sync()


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("external_writes", ["detect", "never"])
def test_a_reset_around_a_failure_is_a_reset(
    make, per_replica, placement, external_writes
):
    """An epoch of 16; a reset, a step that fails, a reset: the next has 16 again."""
    repl = make(placement, external_writes=external_writes)
    with repl.context():
        total = tf.Variable(
            0.0,
            trainable=False,
            synchronization=ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )

    def step(x):
        added = total.assign_add(tf.abs(x))
        with tf.control_dependencies(_fail_if(x < 0, after=[added])):
            return tf.identity(x)

    def epoch():
        for _ in range(4):
            repl.run(step, per_replica([1.0, 3.0]))
        return float(total)

    first = epoch()
    total.assign(0.0)
    with pytest.raises(tf.errors.InvalidArgumentError):
        repl.run(step, per_replica([-1.0, -3.0]))
    failed = float(total)
    copies = _floats(repl.local_state()[0].values)
    total.assign(0.0)

    assert (16.0, 16.0) == (first, epoch())
    assert 0.0 < sum(copies) == failed  # one replica may fail before the other adds


@pytest.mark.parametrize("external_writes", ["detect", "never"])
def test_an_assignment_of_the_value_that_is_read_reaches_every_copy(
    make, per_replica, external_writes
):
    """Integers read as replica 0's 0, where replica 1 has 2."""
    repl = make("shared", external_writes=external_writes)
    with repl.context():
        counter = tf.Variable(0, trainable=False)

    def step(x):
        counter.assign_add(x)
        return counter.read_value()

    repl.run(step, per_replica([0, 2]))
    assert 0 == int(counter)
    counter.assign(0)

    assert [0, 0] == [int(v) for v in repl.run(step, per_replica([0, 0]))]


@pytest.mark.parametrize("write", ["assign", "restore", "set_weights", "slice"])
def test_every_way_to_write_from_python_is_seen_whatever_the_value(
    make, per_replica, tmp_path, write
):
    """Where the value is the one that was read: only the write itself says so."""
    repl = make("mirrored")
    with repl.context():
        layer = keras.layers.BatchNormalization(momentum=0.5)
        layer.build([None, 1])

    def step(x):
        layer.moving_mean.assign_add(tf.reshape(x, [1]))
        return tf.squeeze(tf.convert_to_tensor(layer.moving_mean))

    def run(first, second):
        return _floats(repl.run(step, per_replica([first, second])))

    assert [-2.0, 2.0] == run(-2.0, 2.0)
    mean = layer.moving_mean.value
    assert [0.0] == mean.numpy().tolist()
    if write == "assign":
        layer.moving_mean.assign([0.0])
    elif write == "set_weights":
        layer.set_weights(layer.get_weights())
    elif write == "slice":
        mean[:1].assign([0.0])
    else:
        checkpoint = tf.train.Checkpoint(mean=mean)
        checkpoint.restore(checkpoint.save(str(tmp_path / "all")))

    assert [0.0, 0.0] == run(0.0, 0.0)


def test_reading_is_no_write(make, per_replica, tmp_path):
    """Saved, printed or shown in a function: statistics of replicas stay apart."""
    repl = make("shared")
    with repl.context():
        statistic = tf.Variable(0.0, trainable=False)

    def step(x):
        statistic.assign_add(x)
        return statistic.read_value()

    repl.run(step, per_replica([1.0, 3.0]))
    tf.train.Checkpoint(statistic=statistic).save(str(tmp_path / "all"))
    str(statistic)
    tf.function(lambda: statistic + 1.0)()
    statistic.is_initialized()

    assert [2.0, 6.0] == _floats(repl.run(step, per_replica([1.0, 3.0])))


def test_random_states_follow_replica_0_after_a_failure(make, per_replica):
    """Replica 1 has drawn when replica 0 failed: both draw what they would have."""
    drawn = []
    for fails in (False, True):
        repl = make("shared")
        with repl.context():
            generator = tf.random.Generator.from_seed(1, alg="philox")

        def step(x, generator=generator):
            with tf.control_dependencies(_fail_if(x > 0, after=[])):
                return generator.uniform([])

        repl.run(step, per_replica([0.0, 0.0]))
        if fails:
            with pytest.raises(tf.errors.InvalidArgumentError):
                repl.run(step, per_replica([1.0, 0.0]))
            state = generator.state.numpy().tolist()
            copies = repl.local_state()[0].values
            assert state == copies[0].tolist()
        drawn.append(_floats(repl.run(step, per_replica([0.0, 0.0]))))

    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_steps_before_the_failing_one_of_a_dispatch_are_seen_outside(make, placement):
    """The third of four steps fails: two have added, and the copies are equal."""
    repl = make(placement)
    with repl.context():
        count = tf.Variable(0)
        seen = tf.Variable(0.0, trainable=False)

    def step():
        fails = count > 1
        with tf.control_dependencies(_fail_if(fails, after=[])):
            replica_id = replicator.get_replica_context().replica_id
            seen.assign_add(1.0 + tf.cast(replica_id, tf.float32))
            added = replicator.all_max(tf.constant(1))
        count.assign_add(added)
        return count.read_value()

    with pytest.raises(tf.errors.InvalidArgumentError):
        repl.run(step, num_steps=4)

    assert (2, 3.0) == (int(count), float(seen))
    repl.assert_in_sync()


def test_copies_of_a_stock_strategy_are_equal_after_a_failure(per_replica):
    """Those of generators differ by right, and stay."""
    repl = replicator.create("tf_mirrored", num_replicas=2, devices=["CPU:0", "CPU:1"])
    with repl.context():
        weight = tf.Variable(1.0)
        generator = tf.random.Generator.from_seed(1, alg="philox")
    first, second = repl.strategy.experimental_local_results(weight)
    states = repl.strategy.experimental_local_results(generator.state)
    states[1].assign([9, 9, 9])
    before = [state.numpy().tolist() for state in states]
    second.assign(5.0)

    def step(x):
        tf.debugging.assert_less(x, 1.0)
        return x

    with pytest.raises(tf.errors.InvalidArgumentError):
        repl.run(step, per_replica([1.0, 1.0]))

    assert [1.0, 1.0] == _floats([first, second])
    assert before == [state.numpy().tolist() for state in states]
