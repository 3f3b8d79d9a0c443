"""Steps: what workers are given, run on devices of one process instead of a cluster."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny_models

import replicator
from replicator.async_training import dispatch
from replicator.errors import OptimizerOptionError


@pytest.fixture(autouse=True)
def _client_here(monkeypatch):
    """The client is this process, which is in no job."""
    monkeypatch.setattr(dispatch, "client_device", lambda: "/device:CPU:0")


def train_on(optimizer, weights, xs):
    def step():
        with tf.GradientTape() as tape:
            terms = [
                tf.reduce_sum(weight * weight * x)
                for weight, x in zip(weights, xs, strict=True)
            ]
            loss = tf.add_n(terms)
        grads = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(grads, weights, strict=True))
        return loss

    return step


# Of weights of about 1; kernels and Keras compute the same in another order.
ROUNDING = 1e-5
XS = [np.float32(x) for x in (0.5, 1.0, 2.0, 0.25)]
SHAPES = [(3,), (2, 2), (5,), ()]
OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.1),
}


def initial_values():
    rng = np.random.default_rng(4)
    return [rng.normal(size=shape).astype(np.float32) for shape in SHAPES]


@pytest.mark.parametrize(
    "name", [pytest.param("sgd", marks=pytest.mark.full), "momentum", "adam"]
)
def test_steps_over_two_servers_are_those_of_one_device(job, name):
    """Workers take turns: pulled reads, commits on both servers, loops of steps."""
    weights = job.variables(*initial_values())
    assert {0, 1} == {job.placement.server_of(weight) for weight in weights}
    steps = job.steps(train_on(job.optimizer(OPTIMIZERS[name], weights), weights, XS))
    plain = [tf.Variable(value) for value in initial_values()]
    reference = tf.function(train_on(OPTIMIZERS[name](), plain, XS))

    losses, expected = [], []
    for worker, num_steps in ((0, 1), (1, 1), (0, 2), (1, 3)):
        losses += job.run(steps, worker, num_steps)
        expected.append([reference().numpy() for _ in range(num_steps)][-1])

    np.testing.assert_allclose(expected, losses, rtol=1e-5)
    for weight, other in zip(weights, plain, strict=True):
        np.testing.assert_allclose(
            other.numpy(), weight.numpy(), rtol=1e-5, atol=ROUNDING
        )
    assert [7, 7] == job.counted()
    assert [[3, 4]] * 2 == job.counted("sequence_numbers")
    assert [7, 7] == [counts[0] for counts in job.counted("update_counts")]


def make_net(*, is_sparse):
    keras.utils.set_random_seed(5)
    layers = [
        keras.layers.Dense(16),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.2, seed=1),
        keras.layers.Dense(1),
    ]
    if is_sparse:
        layers = [keras.layers.Embedding(20, 4), keras.layers.Flatten(), *layers]
    model = keras.Sequential(layers)
    model.build([None, 6])
    return model


def net_step(model, optimizer, x, y):
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        weights = model.trainable_variables
        grads = tape.gradient(loss, weights)
        optimizer.apply_gradients(zip(grads, weights, strict=True))
        return loss

    return step


@pytest.mark.parametrize(
    ("name", "is_sparse"),
    [
        pytest.param("sgd", False, marks=pytest.mark.full),
        pytest.param("nesterov", False, marks=pytest.mark.full),
        pytest.param("adam", False, marks=pytest.mark.full),
        pytest.param("rmsprop", False, marks=pytest.mark.full),
        ("adamw", False),
        pytest.param("sgd", True, marks=pytest.mark.full),
        ("adam", True),
    ],
)
def test_one_worker_and_one_server_train_as_one_device(make_job, name, is_sparse):
    """Every loss, weight and statistic is the same number, single steps and a loop."""
    rtol, atol = (1e-5, 1e-7) if (name, is_sparse) == ("sgd", True) else (0.0, 0.0)
    data = np.random.default_rng(0)
    x = data.integers(0, 20, [4, 6]) if is_sparse else data.normal(size=[4, 6])
    x = x.astype("int32" if is_sparse else "float32")
    y = data.normal(size=[4, 1]).astype("float32")
    job = make_job(num_servers=1, num_workers=1)
    with job.placement.scope():
        model = make_net(is_sparse=is_sparse)
    optimizer = job.optimizer(tiny_models.OPTIMIZERS[name], model.trainable_variables)
    steps = job.steps(net_step(model, optimizer, x, y))
    repl = replicator.create("single")
    with repl.context():
        plain = make_net(is_sparse=is_sparse)
        plain_optimizer = repl.wrap_optimizer(tiny_models.OPTIMIZERS[name]())
    step = net_step(plain, plain_optimizer, x, y)

    losses = [job.run(steps)[0] for _ in range(6)] + job.run(steps, num_steps=4)
    expected = [repl.run(step)[0].numpy() for _ in range(6)]
    expected.append(repl.run(step, num_steps=4)[0].numpy())

    np.testing.assert_allclose(losses, expected, rtol, atol)
    for mine, other in zip(model.weights, plain.weights, strict=True):
        np.testing.assert_allclose(mine.numpy(), other.numpy(), rtol, atol)
    assert 10 == int(optimizer.iterations.numpy())
    assert [10] == job.counted()
    assert 10 == job.counted("update_counts")[0][0]


def test_a_step_that_is_done_again_changes_nothing(job):
    """With the sequence number that it had before; the loss is that of now."""
    weights = job.variables(*initial_values())
    steps = job.steps(
        train_on(job.optimizer(lambda: keras.optimizers.SGD(0.1), weights), weights, XS)
    )
    job.run(steps)
    before = [weight.numpy() for weight in weights]

    job.sequence_numbers[0] = [0, 0]
    job.run(steps)

    for value, weight in zip(before, weights, strict=True):
        np.testing.assert_array_equal(value, weight.numpy())
    assert [1, 1] == job.counted()


def test_a_loop_that_is_done_again_from_its_middle_skips_what_was_applied(job):
    """Server 0 has one step more than server 1."""
    weights = job.variables([0.0] * 4, [0.0] * 4)
    optimizer = job.optimizer(lambda: keras.optimizers.SGD(1.0), weights)
    steps = job.steps(
        lambda: optimizer.apply_gradients([(tf.ones([4]), w) for w in weights])
    )
    job.commit_states[0].sequence_numbers[0].assign(2)
    job.commit_states[1].sequence_numbers[0].assign(1)

    job.run(steps, num_steps=5)

    assert [-3.0, -4.0] == [float(weight[0]) for weight in weights]
    assert [[5, 0]] * 2 == job.counted("sequence_numbers")


def test_replicas_of_one_worker_average_and_workers_do_not(make_job):
    """Replicas 0 and 1 feed 1 and 3; replicas 2 and 3 feed 5 and 7."""
    job = make_job(share=2)
    weights = job.variables([0.0] * 2, [0.0] * 2)
    optimizer = job.optimizer(lambda: keras.optimizers.SGD(1.0), weights)

    def step(x):
        total = replicator.all_sum(x)
        optimizer.apply_gradients([(x * tf.ones([2]), w) for w in weights])
        return total, replicator.get_replica_context().replica_id

    steps = job.steps(step, tf.TensorSpec([]))

    first = job.run(steps, 0, source=[(tf.constant(1.0),), (tf.constant(3.0),)])
    assert [-2.0] * 2 == [float(weight[0]) for weight in weights]
    second = job.run(steps, 1, source=[(tf.constant(5.0),), (tf.constant(7.0),)])

    assert [[4.0, 0.0], [4.0, 1.0]] == np.reshape(first, [2, 2]).tolist()
    assert [[12.0, 2.0], [12.0, 3.0]] == np.reshape(second, [2, 2]).tolist()
    assert [-2.0 - 6.0] * 2 == [float(weight[0]) for weight in weights]


def test_an_optimizer_without_a_kernel_updates_on_one_server_only(make_job):
    """On two, nothing could lock all of its update."""
    one, two = make_job(num_servers=1), make_job(num_servers=2)
    results = {}
    for job in (one, two):
        weights = job.variables(*initial_values())
        optimizer = job.optimizer(lambda: keras.optimizers.RMSprop(0.1), weights)
        results[job] = weights, train_on(optimizer, weights, XS)
    plain = [tf.Variable(value) for value in initial_values()]
    tf.function(train_on(keras.optimizers.RMSprop(0.1), plain, XS))()

    weights, step = results[one]
    one.run(one.steps(step))

    for weight, other in zip(weights, plain, strict=True):
        np.testing.assert_allclose(other.numpy(), weight.numpy(), rtol=1e-6)
    with pytest.raises(
        OptimizerOptionError, match=r"RMSprop in this configuration .* are on 2: use"
    ):
        two.steps(results[two][1])


def test_a_step_is_out_of_date_when_another_one_overwrites_its_variable(job):
    """Its programs use the variable itself."""
    (shared,) = job.variables([0.0], trainable=False)
    first = job.steps(lambda: shared.assign_add([1.0]))
    assert not first.is_stale()

    job.steps(lambda: shared.assign([1.0]))

    assert first.is_stale()


def test_the_plan_says_what_travels(job):
    """Two weights and the rate from server 0, one weight from server 1 by itself."""
    weights = job.variables([0.0] * 4, [0.0] * 9, [0.0] * 4)
    optimizer = job.optimizer(lambda: keras.optimizers.SGD(1.0), weights)

    text = job.steps(train_on(optimizer, weights, XS[:3])).explain()

    assert "updates per server: [1, 1]" in text
    assert "variables in 1 transfers, others one by one" in text


def scheduled(name, **options):
    """An optimizer whose rate halves in every update."""
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    return lambda: getattr(keras.optimizers, name)(rate, **options)


COUNTING = {
    **{
        name: lambda name=name: getattr(keras.optimizers, name)(0.1)
        for name in ("Adam", "SGD", "AdamW", "Adamax", "Nadam")
    },
    "SGD with a schedule": scheduled("SGD"),
    "momentum with a schedule": scheduled("SGD", momentum=0.9),
    "Adam with a schedule": scheduled("Adam"),
}
WITH_KERNELS = [name for name in COUNTING if name.startswith(("Adam ", "SGD", "mom"))]


def keras_weights(name, num_updates):
    """What Keras makes of a weight whose gradient is 1."""
    weight, optimizer = tf.Variable([0.0]), COUNTING[name]()
    for _ in range(num_updates):
        optimizer.apply_gradients([(tf.constant([1.0]), weight)])
    return weight.numpy()


@pytest.mark.parametrize(
    ("name", "num_servers", "held"),
    [
        *[(name, 1, 0) for name in COUNTING],
        *[(name, 2, held) for name in (*WITH_KERNELS, "Adam") for held in range(2)],
    ],
)
def test_a_worker_that_waits_updates_from_what_the_other_left(
    make_job, name, num_servers, held
):
    """Both wait for a server before the first update; each counts its own."""
    job = make_job(num_servers=num_servers)
    weights = job.variables(*[[0.0]] * num_servers)
    optimizer = job.optimizer(COUNTING[name], weights)
    steps = job.steps(
        lambda: optimizer.apply_gradients([(tf.constant([1.0]), w) for w in weights])
    )
    for worker in range(2):
        job.run(steps, worker)
    lock = tf.raw_ops.MutexLock(mutex=job.commit_states[held].mutex)
    threads = [
        threading.Thread(target=job.run, args=(steps, worker)) for worker in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(0.2)  # nothing is asserted of it: both may come later

    del lock  # releases it
    for thread in threads:
        thread.join()

    expected = keras_weights(name, 4)
    if name == "Adam":
        np.testing.assert_allclose(expected, [-0.4], rtol=1e-5)
    for weight in weights:
        np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-5)
    assert 4 == int(optimizer.iterations)


@pytest.mark.parametrize("seed", range(2))
def test_every_server_counts_the_updates_of_each_optimizer(job, seed):
    """Whichever weights are updated, by whom, and from whatever count on."""
    made = [COUNTING[name] for name in ("Adam", "SGD with a schedule")]
    both = [job.variables([0.0], [0.0]) for _ in made]
    plain = [[tf.Variable([0.0]) for _ in range(2)] for _ in made]
    optimizers = list(map(job.optimizer, made, both))
    others = [make() for make in made]

    def update(optimizer, weights):
        grads = [tf.constant([1.0]), tf.constant([-2.0])]
        optimizer.apply_gradients(
            [(grad, w) for grad, w in zip(grads, weights, strict=True) if w is not None]
        )

    def only(weights, chosen):
        return [w if i in chosen else None for i, w in enumerate(weights)]

    for optimizer, weights in zip(others, plain, strict=True):
        optimizer.build(weights)
    steps = {
        (which, chosen): job.steps(
            lambda which=which, chosen=chosen: update(
                optimizers[which], only(both[which], chosen)
            )
        )
        for which in range(2)
        for chosen in ((0,), (1,), (0, 1))
    }
    draw = np.random.default_rng(seed)
    for _ in range(16):
        which = int(draw.integers(2))
        if draw.integers(4) == 0:
            count = int(draw.integers(5))
            optimizers[which].iterations.assign(count)
            others[which].iterations.assign(count)
            job.table.refresh()
        chosen = ((0,), (1,), (0, 1))[draw.integers(3)]
        job.run(steps[which, chosen], int(draw.integers(2)))
        update(others[which], only(plain[which], chosen))

    for ours, theirs in zip([*both[0], *both[1]], [*plain[0], *plain[1]], strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5)
    assert [int(o.iterations) for o in optimizers] == [
        int(o.iterations) for o in others
    ]
