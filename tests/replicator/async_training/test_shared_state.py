"""Which server holds a variable, what workers share of it, and what of it travels."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from executed_graph import executed
from tensorflow.python.eager import context as eager_context

import replicator
from replicator.errors import UnsynchronisedUpdateError


def made_on(repl, *values, **options):
    with repl.context():
        return [tf.Variable(value, **options) for value in values]


def wrapped(repl, make, *args):
    with repl.context():
        return repl.wrap_optimizer(make(*args))


def servers_of(variables):
    """Servers are the third and fourth device of this process."""
    return [int(variable.device[-1]) - 2 for variable in variables]


def zeros(*sizes):
    return [tf.zeros([size]) for size in sizes]


@pytest.mark.parametrize(
    ("values", "options", "expected", "num_bytes"),
    [
        # Of two equal ones to the first.
        (zeros(4, 1, 2, 5, 1), {}, [0, 1, 1, 0, 1], [36, 24]),
        # However loaded the first one is: updates need all scalars.
        ([*zeros(100), 1.0, np.int64(3), *zeros(2)], {}, [0, 0, 0, 1], [416, 8]),
        # So many empty or tiny ones do not all go to one server.
        (zeros(0, 0, 0, 0), {}, [0, 1, 0, 1], [16, 16]),
        ([np.zeros(3), [1.0] * 4], {"dtype": tf.float64}, [0, 1], [24, 32]),
    ],
    ids=["least loaded", "scalars together", "at least a scalar", "bytes of the type"],
)
def test_each_variable_goes_to_the_server_with_fewest_bytes(
    make_async, values, options, expected, num_bytes
):
    repl = make_async()
    with tf.device("CPU:0"):  # it would be one of this process
        variables = made_on(repl, *values, **options)

    assert expected == servers_of(variables)
    assert "server 0: {} bytes, server 1: {} bytes".format(*num_bytes) in repl.explain()


def test_slots_are_on_the_server_of_their_variable(make_async):
    """Afterwards the balance decides, which has counted them; scalars keep together."""
    repl = make_async()
    weights = made_on(repl, *zeros(4, 1, 2))
    optimizer = wrapped(repl, keras.optimizers.Adam)
    optimizer.build(weights)
    *scalars, first, second, third = servers_of(
        [
            *(v.value for v in optimizer.variables if v.shape.rank == 0),
            *(v.value for v in optimizer.wrapped._momentums),
        ]
    )

    assert [0, 1, 1] == [first, second, third] == servers_of(weights)
    assert {0} == set(scalars)
    assert [1, 0] == servers_of(made_on(repl, *zeros(8, 1)))


WRITES = {
    "assign": (lambda v, x: v.assign([x, x]), [1.5, 1.5]),
    "rows": (lambda v, x: v.scatter_update(tf.IndexedSlices([x], [0])), [1.5, 0.0]),
    "elements": (lambda v, x: v.scatter_nd_update([[1]], [x]), [0.0, 1.5]),
    "a slice": (lambda v, x: v[:1].assign([x]), [1.5, 0.0]),
    "a function": (lambda v, x: tf.function(v.assign)([x, x]), [1.5, 1.5]),
    "assign_add": (lambda v, x: v.assign_add([x, x]), [3.0, 3.0]),
    "assign_sub": (lambda v, x: v.assign_sub([x, x]), [-3.0, -3.0]),
    "added rows": (lambda v, x: v.scatter_add(tf.IndexedSlices([x], [0])), [3.0, 0.0]),
    "largest": (lambda v, x: v.scatter_max(tf.IndexedSlices([x], [1])), [0.0, 2.0]),
    "added elements": (lambda v, x: v.scatter_nd_add([[1]], [x]), [0.0, 3.0]),
}


def test_what_adds_is_shared_and_what_overwrites_has_a_copy_per_worker(make_async):
    """Workers write 1 and 2: sums have both, copies read as their mean."""
    repl = make_async()
    variables = made_on(repl, *[[0.0, 0.0]] * len(WRITES), trainable=False)

    def step(x):
        for variable, (write, _) in zip(variables, WRITES.values(), strict=True):
            write(variable, x)

    repl.run(step, replicator.PerReplica([tf.constant(1.0), tf.constant(2.0)]))

    found = dict(zip(WRITES, (v.numpy().tolist() for v in variables), strict=True))
    assert {name: expected for name, (_, expected) in WRITES.items()} == found


def test_copies_continue_from_their_own_values_until_one_is_set_outside(make_async):
    """Only the copies of that variable are set; a program that shared it is replaced.

    Dispatches later than the first make no more functions.
    """
    repl = make_async(2, 1, num_replicas=4)
    variable, other = made_on(repl, [0.0], [0.0], trainable=False)
    ids = replicator.PerReplica([tf.constant(float(r)) for r in range(4)])

    def share():
        variable.assign_add([0.0])

    def step(x):
        for each in (variable, other):
            each.assign(each + x)
        return tf.concat([variable, other], 0)

    def run():
        return [value.numpy().tolist() for value in repl.run(step, ids)]

    repl.run(share)
    assert [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]] == run()
    names = set(eager_context.context().list_function_names())
    assert [0.0, 2.0, 4.0, 6.0] == [first for first, _ in run()]
    assert [[3.0], [3.0]] == [each.numpy().tolist() for each in (variable, other)]
    assert names == set(eager_context.context().list_function_names())
    variable.assign([7.0])
    repl.run(share)
    assert [[7.0, 0.0], [8.0, 3.0], [9.0, 6.0], [10.0, 9.0]] == run()


def test_a_weight_that_is_overwritten_is_refused(make_async):
    """By two workers; one may, and so may replicas in sync that write the same."""

    def run(num_workers, **options):
        repl = make_async(num_workers, **options)
        (weight,) = made_on(repl, [1.0])
        repl.run(lambda: weight.assign(weight * 2.0))
        return weight.numpy().tolist()

    assert [2.0] == run(1)
    assert [2.0] == run(1, num_replicas=2)
    with pytest.raises(
        UnsynchronisedUpdateError,
        match=r"overwritten \(assign\) by 2 asynchronous workers",
    ):
        run(2)


def test_replicas_in_sync_do_not_train_by_states_that_differ(make_async):
    """The one replica of a worker trains by its own state, as one device does."""

    def run(num_replicas):
        repl = make_async(2, num_replicas=num_replicas)
        (weight,) = made_on(repl, [1.0])
        (queue,) = made_on(repl, [0.5], trainable=False, name="queue")
        optimizer = wrapped(repl, keras.optimizers.SGD, 0.1)

        def step(x):
            with tf.GradientTape() as tape:
                loss = weight * queue * x
            queue.assign([x])
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])

        repl.run(step, replicator.PerReplica([tf.constant(1.0)] * num_replicas))
        return weight.numpy().tolist()

    assert run(2) == pytest.approx([1.0 - 0.05 - 0.05])
    with pytest.raises(
        UnsynchronisedUpdateError,
        match=r"^variable 'queue:0' is assigned a value .* replicas at .*queue\.as",
    ):
        run(4)


LIMIT = 64 * 1024  # bytes of a tensor that travels alone
SMALL = [tf.constant([1.0, 2.0]), tf.constant([[3.0], [4.0]])]  # on servers 0 and 1
READS = {
    "a message of one is a read": (SMALL, 0, 0),
    "a message per server": ([*SMALL, *SMALL], 4, 2),
    "a message per type": (
        [*SMALL, *(tf.cast(value, tf.float64) for value in [*SMALL, *SMALL])],
        4,
        2,
    ),
    "just small": ([*SMALL, tf.ones([LIMIT // 4 - 1]), *SMALL], 5, 2),
    "large": ([*SMALL, tf.ones([LIMIT // 4]), *SMALL], 3, 1),
    "empty": ([*SMALL, tf.ones([0]), *SMALL], 4, 2),
}


@pytest.mark.parametrize("name", READS)
def test_small_variables_of_one_server_travel_together(make_async, name):
    values, num_read, num_messages = READS[name]
    repl = make_async(1)
    variables = made_on(repl, *values)

    def step():
        return [variable * 1 for variable in variables]

    found = repl.run(step)

    assert f"reads: {num_read} variables in {num_messages} transfers" in repl.explain()
    for value, (got,) in zip(values, found, strict=True):
        np.testing.assert_array_equal(value, got)


def test_what_is_read_after_a_write_or_in_part_is_read_by_itself(make_async):
    repl = make_async(1, 1)
    first, second = made_on(repl, [1.0, 2.0], [3.0, 4.0])

    def step():
        before, again = first + 0.0, first.read_value()
        first.assign_sub(second)
        rows = tf.gather(second, [1])
        return before, again, first + 0.0, rows, second * 1.0

    found = [value[0].numpy().tolist() for value in repl.run(step)]

    assert [[1.0, 2.0], [1.0, 2.0], [-2.0, -2.0], [4.0], [3.0, 4.0]] == found
    assert "reads: 2 variables in 1 transfers" in repl.explain()


def test_gradients_of_one_server_travel_in_one_message(make_async):
    """However many there are: what a step reads, what it sends, and their values."""

    def num_transfers(num_weights):
        repl = make_async(1, 2)
        weights = made_on(repl, *[tf.ones([3 + n, 2]) for n in range(num_weights)])
        optimizer = wrapped(repl, keras.optimizers.SGD, 0.5)
        optimizer.build(weights)

        def step():
            optimizer.apply_gradients([(2.0 * weight, weight) for weight in weights])

        found = executed(lambda: repl.run(step))
        assert all(float(tf.reduce_max(tf.abs(weight))) == 0.0 for weight in weights)
        assert "updates per server: [1, 1]" in repl.explain()
        return found.num_data

    # One each for their handles; a message each there and back would be three.
    assert num_transfers(12) - num_transfers(4) <= 12 - 4
