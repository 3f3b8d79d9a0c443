"""Updates: each is applied once and alone, and counted with its staleness."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from tiny_models import Training

import replicator
from replicator.errors import OptimizerOptionError

WAIT_SEC = 60.0
ONES = tf.ones([1])


def made_on(repl, *values, **options):
    with repl.context():
        return [tf.Variable(value, **options) for value in values]


def wrapped(repl, make, *args):
    with repl.context():
        return repl.wrap_optimizer(make(*args))


def values_of(variables):
    return [variable.numpy().tolist() for variable in variables]


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
    for _ in range(int(WAIT_SEC / 0.01)):
        if weight.numpy() < 0.0:
            break
        threading.Event().wait(0.01)
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
