"""What workers share: on which server it is, and updates that each count once."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from damaging import until
from graphs import executed
from tensorflow.python.eager import context as eager_context
from tiny_models import Training

import replicator
from replicator import OptimizerOptionError, UnsynchronisedUpdateError

WAIT_SEC = 60.0
ONES = tf.ones([1])


def made_on(repl, *values, **options):
    with repl.context():
        return [tf.Variable(value, **options) for value in values]


def wrapped(repl, make, *args):
    with repl.context():
        return repl.wrap_optimizer(make(*args))


@pytest.mark.parametrize(
    ("model", "optimizer", "num_servers"),
    [
        ("batch norm and dropout", "nesterov", 2),
        ("embedding, batch norm and dropout", "adam", 1),
    ],
)
def test_one_worker_trains_as_one_device(make_async, model, optimizer, num_servers):
    """By kernels of two servers; by Keras' own update, of rows, on one."""
    repl = make_async(1, num_servers)
    one, other = (
        Training(each, model, optimizer) for each in (repl, replicator.create("single"))
    )

    for num_steps, num_steps_per_run in ((3, 1), (4, 4)):
        losses, expected = (
            each.run(num_steps, num_steps_per_run=num_steps_per_run)
            for each in (one, other)
        )
        np.testing.assert_allclose(losses, expected, 1e-5)

    for mine, theirs in zip(one.weights(), other.weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, 1e-5, 1e-4)
    assert 7 == int(one.optimizer.iterations)
    assert {0: 7 * num_servers} == repl.staleness().histogram


def test_an_optimizer_without_a_kernel_updates_on_one_server_only(make_async):
    repl = make_async(1, 2)

    with pytest.raises(
        OptimizerOptionError, match=r"RMSprop in this configuration .* are on 2: use"
    ):
        Training(repl, "dense", "rmsprop").run(1)


def scheduled(make, *args, **options):
    """An optimizer whose rate halves in every update."""
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    return lambda: make(rate, *args, **options)


COUNTING = {
    "Nadam": lambda: keras.optimizers.Nadam(0.1),
    "SGD with a schedule": scheduled(keras.optimizers.SGD),
    "momentum with a schedule": scheduled(keras.optimizers.SGD, momentum=0.9),
    "Adam with a schedule": scheduled(keras.optimizers.Adam),
}


@pytest.mark.parametrize(
    ("name", "num_servers", "held"),
    [
        ("Nadam", 1, 0),
        ("SGD with a schedule", 1, 0),
        ("momentum with a schedule", 2, 0),
        ("Adam with a schedule", 2, 1),
    ],
)
def test_a_worker_that_waits_updates_from_what_the_other_left(
    make_async, name, num_servers, held
):
    """Both wait for a server before the first update; each counts its own."""
    repl = make_async(2, num_servers)
    weights = made_on(repl, *[[0.0]] * num_servers)
    optimizer = wrapped(repl, COUNTING[name])

    def step():
        optimizer.apply_gradients([(ONES, weight) for weight in weights])

    repl.run(step)
    lock = tf.raw_ops.MutexLock(mutex=repl._table.commit_states[held].mutex)
    repl.schedule(step)
    waiting = threading.Thread(target=repl.join)
    waiting.start()
    waiting.join(0.2)  # nothing is asserted of it: both may come later
    del lock  # releases it
    waiting.join()

    plain, theirs = tf.Variable([0.0]), COUNTING[name]()
    for _ in range(4):
        theirs.apply_gradients([(ONES, plain)])
    for weight in weights:
        np.testing.assert_allclose(weight.numpy(), plain.numpy(), rtol=1e-5)
    assert 4 == int(optimizer.iterations)


def test_every_server_counts_the_updates_of_each_optimizer(make_async):
    """Whichever weights are updated, and from whatever count on."""
    repl = make_async(1, 2)
    made = [COUNTING[f"{kind} with a schedule"] for kind in ("Adam", "SGD")]
    both = [made_on(repl, [0.0], [0.0]) for _ in made]
    plain = [[tf.Variable([0.0]) for _ in range(2)] for _ in made]
    optimizers = [wrapped(repl, make) for make in made]
    others = [make() for make in made]
    grads = [tf.constant([1.0]), tf.constant([-2.0])]

    def update(optimizer, weights, chosen):
        optimizer.apply_gradients([(grads[i], weights[i]) for i in chosen])

    for optimizer, weights in zip([*optimizers, *others], [*both, *plain], strict=True):
        optimizer.build(weights)
    steps = {
        (which, chosen): lambda which=which, chosen=chosen: update(
            optimizers[which], both[which], chosen
        )
        for which in range(2)
        for chosen in ((0,), (1,), (0, 1))
    }
    draw = np.random.default_rng(0)
    for _ in range(16):
        which = int(draw.integers(2))
        if draw.integers(4) == 0:
            count = int(draw.integers(5))
            optimizers[which].iterations.assign(count)
            others[which].iterations.assign(count)
        chosen = ((0,), (1,), (0, 1))[draw.integers(3)]
        repl.run(steps[which, chosen])
        update(others[which], plain[which], chosen)

    for ours, theirs in zip([*both[0], *both[1]], [*plain[0], *plain[1]], strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5)
    assert [int(o.iterations) for o in optimizers] == [
        int(o.iterations) for o in others
    ]


class SlowAndStrict(keras.optimizers.SGD):
    """Reads, waits and overwrites; refuses what is no number."""

    def update_step(self, gradient, variable, learning_rate):
        del learning_rate
        checked = tf.debugging.check_numerics(gradient, "refused")
        late = tf.py_function(self._wait, [variable.read_value()], tf.float32)
        variable.assign(tf.ensure_shape(late, [1]) + checked)

    def _wait(self, value):
        threading.Event().wait(0.01)
        return value


def test_updates_do_not_interleave_and_a_failed_one_releases_the_lock(make_async):
    repl = make_async(2, 1)
    (weight,) = made_on(repl, [0.0])
    optimizer = wrapped(repl, SlowAndStrict, 1.0)

    def step(gradient):
        optimizer.apply_gradients([(gradient, weight)])

    def given(gradient):
        data = tf.data.Dataset.from_tensors([np.float32(gradient)]).repeat()
        return repl.make_input_iterator(lambda _: data)

    with pytest.raises(tf.errors.InvalidArgumentError, match="refused"):
        repl.run(step, given("nan"))
    repl.run(step, given(1.0), num_steps=8)

    # The refused update may have counted its step: a failed step is not undone.
    assert [16.0] == weight.numpy().tolist()
    assert int(optimizer.iterations) in {16, 17, 18}


def test_a_worker_asks_for_the_lock_when_its_gradients_are_there(make_async):
    """The other one updates while it computes; the staleness says so."""
    repl = make_async(2, 1)
    (weight,) = made_on(repl, [0.0])
    optimizer = wrapped(repl, keras.optimizers.SGD, 1.0)
    waiting, updated = threading.Event(), threading.Event()

    def wait(_, replica):
        if int(replica) == 0:
            waiting.set()
            assert updated.wait(WAIT_SEC)
        assert waiting.wait(WAIT_SEC)
        return ONES

    def step(replica):
        # The read waits until the clock was read.
        gradient = tf.py_function(wait, [weight.read_value(), replica], tf.float32)
        optimizer.apply_gradients([(tf.ensure_shape(gradient, [1]), weight)])

    repl.schedule(step, replicator.PerReplica([tf.constant(0), tf.constant(1)]))
    until(lambda: weight.numpy() < 0.0)
    updated.set()
    repl.join()

    assert [-2.0] == weight.numpy().tolist()
    assert {0: 1, 1: 1} == repl.staleness().histogram


def test_staleness_is_what_the_clock_moved_since_it_was_read(make_async):
    """The last bin counts all that is more stale; before all there is none."""
    repl = make_async(1, 2)
    (weight,) = made_on(repl, [0.0])
    optimizer = wrapped(repl, keras.optimizers.SGD, 1.0)
    moved = tf.Variable(0, dtype=tf.int64)
    assert "0 updates, staleness mean 0.00, max 0; updates by staleness: none" == str(
        repl.staleness()
    )

    def move(_, count):
        repl._table.commit_states[0].clock.assign_add(count)
        return ONES

    def step():
        gradient = tf.py_function(move, [weight.read_value(), moved], tf.float32)
        optimizer.apply_gradients([(tf.ensure_shape(gradient, [1]), weight)])

    for count in (0, 3, 0, 1023, 5000):
        moved.assign(count)
        repl.run(step)

    found = repl.staleness()
    assert {0: 2, 3: 1, 1023: 2} == found.histogram
    assert (5, 1023, 1023) == (found.num_updates, found.max, found.limit)
    assert pytest.approx((3 + 2 * 1023) / 5) == found.mean
    assert str(found).endswith("max 1023; updates by staleness: 0: 2, 3: 1, 1023: 2")


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
