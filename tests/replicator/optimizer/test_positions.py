"""Sparse gradients: rows of all replicas are joined, and rows of positions shared."""

import contextlib

import keras
import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import replicator
from replicator import PerReplica
from tests.replicator.conftest import make

_LENGTH, _GLOBAL_BATCH, _STEPS = 3, 8, 3


def _called(table, x):
    del x

    @tf.function
    def look_up(rows):
        return tf.gather(table, tf.range(rows))

    return look_up(_LENGTH)[tf.newaxis]


def _relative(table, x):
    del x
    places = tf.range(_LENGTH)
    rows = tf.gather(table, tf.abs(places[:, None] - places))
    return tf.reduce_sum(rows, axis=0, keepdims=True)


LOOKUPS = {
    "range": lambda table, x: tf.gather(table, tf.range(_LENGTH))[None],
    "twice the same": lambda table, x: tf.gather(table, [4, 1, 4])[None],
    "as long as an example": lambda table, x: tf.gather(
        table, tf.range(tf.shape(x)[1])
    )[None],
    "the length of one": lambda table, x: tf.gather(
        table, tf.cumsum(tf.ones_like(x[0]))
    )[None],
    "the last dimension": lambda table, x: tf.gather(
        table, tf.range(tf.unstack(tf.shape(x))[-1])
    )[None],
    "in a function": _called,
    "relative": _relative,
    "tokens": tf.gather,
    "of every example": lambda table, x: tf.gather(
        table, tf.tile(tf.range(_LENGTH)[None], [tf.shape(x)[0], 1])
    ),
    "one segment": lambda table, x: tf.gather(table, tf.zeros_like(x)),
}
KERAS = {
    "Adam": lambda library: library.optimizers.Adam(0.1),
    "RMSprop": lambda library: library.optimizers.RMSprop(0.1, momentum=0.5),
    "Adagrad": lambda library: library.optimizers.Adagrad(0.1),
    "Adamax": lambda library: library.optimizers.Adamax(0.1),
    "Nadam": lambda library: library.optimizers.Nadam(0.1),
    "Ftrl": lambda library: library.optimizers.Ftrl(0.1),
    "Lion": lambda library: library.optimizers.Lion(0.1),
    "momentum": lambda library: library.optimizers.SGD(0.1, momentum=0.9),
}
OPTIONS = [
    {},
    {"accumulation_steps": 3},
    {"global_clipnorm": 0.3},
    {"loss_scale": 8.0},
    {"accumulation_steps": 3, "global_clipnorm": 0.3, "loss_scale": 8.0},
    {"sharded_update": "state"},
    {"sharded_update": "gradients"},
    {"sharded_update": "parameters"},
]
IN_GRAPH = ["in_graph", "in_graph_devices", "in_graph_mirrored"]
_lookups = st.lists(st.sampled_from(list(LOOKUPS)), min_size=1, max_size=2, unique=True)


def _data(seed):
    rng = np.random.default_rng(seed)
    shape = _STEPS * _GLOBAL_BATCH
    return (
        rng.integers(0, 6, (shape, _LENGTH)).astype(np.int32),
        rng.normal(size=shape).astype(np.float32),
    )


def _batches(seed, batch_size, *, is_static):
    data = tf.data.Dataset.from_tensor_slices(_data(seed))
    return data.batch(batch_size, drop_remainder=is_static)


def _predicted(table, names, x):
    rows = sum(LOOKUPS[name](table, x) for name in names)
    weight = tf.cast(x, tf.float32)[..., tf.newaxis] / 10.0
    return tf.reduce_sum(tf.sin(rows) * weight, axis=(1, 2))


def _start(*_, **__):
    return np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2)


def _trained(repl, names, seed, make_update, *, is_static):
    with repl.context():
        table = tf.Variable(_start())
        update = make_update(repl, table)

    def step(batch):
        tokens, targets = batch
        with tf.GradientTape() as tape:
            errors = _predicted(table, names, tokens) - targets
            loss = tf.reduce_mean(errors**2)
        update(tape.gradient(loss, table))

    share = _GLOBAL_BATCH // repl.num_replicas
    inputs = repl.make_input_iterator(
        lambda _: _batches(seed, share, is_static=is_static)
    )
    repl.run(step, inputs, num_steps=_STEPS)
    return table.numpy()


def _own_mean(name):
    """A Keras optimizer that knows nothing of replicas."""

    def make_update(repl, table):
        del repl
        optimizer = KERAS[name](keras)
        optimizer.build([table])
        return lambda grad: optimizer.apply([replicator.all_mean(grad)], [table])

    return make_update


def _wrapped(name, options):
    def make_update(repl, table):
        kept = dict(options)
        if repl.num_replicas == 1:
            kept.pop("sharded_update", None)
        optimizer = repl.wrap_optimizer(KERAS[name](keras), **kept)
        optimizer.build([table])

        def update(grad):
            factor = optimizer.scale_loss(tf.constant(1.0))
            rows = tf.IndexedSlices(
                grad.values * factor, grad.indices, grad.dense_shape
            )
            optimizer.apply_gradients([(rows, table)])

        return update

    return make_update


@settings(max_examples=10, deadline=None)
@given(
    names=_lookups,
    name=st.sampled_from(list(KERAS)),
    backend=st.sampled_from(IN_GRAPH),
    options=st.none() | st.sampled_from(OPTIONS),
    is_static=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_step_is_the_step_of_one_device(
    names, name, backend, options, is_static, seed
):
    """Whether gradients are averaged by the program or by ``wrap_optimizer``."""
    make_update = _own_mean(name) if options is None else _wrapped(name, options)

    one, several = (
        _trained(make(*case), names, seed, make_update, is_static=is_static)
        for case in (("single", 1), (backend, 2))
    )

    np.testing.assert_allclose(several, one, rtol=2e-4, atol=2e-5)


def _model(names, optimizer):
    class Lookups(keras.Model):
        def build(self, input_shape):
            del input_shape
            self.table = self.add_weight(shape=(6, 2), initializer=_start)

        def call(self, x):
            return _predicted(tf.convert_to_tensor(self.table), names, x)

    model = Lookups()
    model.compile(optimizer, "mse")
    model.build((None, _LENGTH))
    model.optimizer.build(model.trainable_variables)
    return model


def _fit(model, data, strategy):
    del strategy
    model.fit(data, verbose=0, shuffle=False)


def _loop(model, data, strategy):
    """The loop of TensorFlow's tutorial, which divides losses by the global batch."""

    def step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(x) - y) ** 2) / _GLOBAL_BATCH
        weights = model.trainable_variables
        model.optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )

    if strategy is None:
        for batch in data:
            step(batch)
        return
    for batch in strategy.experimental_distribute_dataset(data):
        strategy.run(step, args=(batch,))


@settings(max_examples=8, deadline=None)
@given(
    names=_lookups,
    name=st.sampled_from(list(KERAS)),
    backend=st.sampled_from(IN_GRAPH),
    train=st.sampled_from([_fit, _loop]),
    is_static=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_strategy_trains_as_one_device(names, name, backend, train, is_static, seed):
    """By optimizers of Keras as they are."""
    found = []
    for repl in (None, make(backend, 2)):
        with repl.scope() if repl else contextlib.nullcontext():
            model = _model(names, KERAS[name](keras))
        data = _batches(seed, _GLOBAL_BATCH, is_static=is_static)
        train(model, data, repl and repl.as_strategy())
        found.append(np.asarray(model.table))

    np.testing.assert_allclose(found[1], found[0], rtol=2e-4, atol=2e-5)


def test_slices_of_positions_are_reduced_row_by_row(repl_once):
    """Rows of examples are joined beside them."""
    num_replicas = repl_once.num_replicas
    values = np.arange(12.0 * num_replicas).reshape(num_replicas, 4, 3)

    def step(rows):
        mine = replicator.get_replica_context().replica_id
        ids = tf.concat([[4, 1, 4], tf.reshape(10 + mine, [1])], axis=0)
        slices = tf.IndexedSlices(rows, ids, tf.constant([20, 3]))
        merged = [replicator.all_reduce(slices, op) for op in ("sum", "mean")]
        return [(each.values, each.indices) for each in merged]

    rows = replicator.PerReplica([tf.constant(each) for each in values])
    found = repl_once.run(step, rows)

    joined = np.concatenate([values[:, :3].sum(axis=0), values[:, 3]])
    for share, (all_values, all_ids) in zip((1, num_replicas), found, strict=True):
        for got, ids in zip(all_values, all_ids, strict=True):
            np.testing.assert_allclose(got, joined / share)
            assert [4, 1, 4, *range(10, 10 + num_replicas)] == list(ids)


def test_slices_of_different_lengths_are_joined(repl_once):
    """Rows of all replicas in their order, also where one has none."""
    num_replicas = repl_once.num_replicas
    values = np.arange(3.0 * num_replicas).reshape(num_replicas, 3, 1)
    indices = np.arange(3 * num_replicas).reshape(num_replicas, 3)

    def step(batch):
        rows, places, count = batch
        slices = tf.IndexedSlices(rows[:count], places[:count], tf.constant([99, 1]))
        merged = [replicator.all_reduce(slices, op) for op in ("sum", "mean")]
        return [(one.values, one.indices) for one in merged]

    for pair in ((2, 1), (0, 3), (0, 0), (1, 1)):
        counts = (pair * 2)[:num_replicas]
        found = repl_once.run(
            step,
            (
                PerReplica([tf.constant(v) for v in values]),
                PerReplica([tf.constant(i) for i in indices]),
                PerReplica([tf.constant(c) for c in counts]),
            ),
        )

        want = np.concatenate([v[:c] for v, c in zip(values, counts, strict=True)])
        places = np.concatenate([i[:c] for i, c in zip(indices, counts, strict=True)])
        for share, (all_values, all_places) in zip(
            (1, num_replicas), found, strict=True
        ):
            assert num_replicas == len(all_values) == len(all_places)
            for got_values, got_places in zip(all_values, all_places, strict=True):
                np.testing.assert_allclose(got_values, want / share)
                np.testing.assert_array_equal(got_places, places)


def test_the_gradient_of_joined_slices_goes_back_to_its_rows(in_graph):
    """Each replica gets the rows that it gave, summed over replicas, twice over."""
    values = [np.array([[1.0], [2.0], [3.0]]), np.array([[4.0], [5.0], [6.0]])]

    def step(batch):
        rows, count = batch
        with tf.GradientTape() as outer:
            outer.watch(rows)
            with tf.GradientTape() as tape:
                tape.watch(rows)
                slices = tf.IndexedSlices(rows[:count], tf.range(count))
                merged = replicator.all_sum(slices).values
                loss = tf.reduce_sum(merged**3)
            first = tape.gradient(loss, rows)
            penalty = tf.reduce_sum(first**2)
        return first, outer.gradient(penalty, rows)

    first, second = in_graph.run(
        step,
        (
            PerReplica([tf.constant(v) for v in values]),
            PerReplica([tf.constant(1), tf.constant(2)]),
        ),
    )

    for replica, count in enumerate((1, 2)):
        rows = values[replica].copy()
        rows[count:] = 0.0
        # Both replicas have the loss, so its gradient comes twice: g = 2 * 3 x^2.
        np.testing.assert_allclose(first[replica], 6 * rows**2)
        np.testing.assert_allclose(second[replica], 2 * 6 * rows**2 * 12 * rows)
