"""Sparse gradients: rows of all replicas are joined, and rows of positions shared."""

import functools

import covering
import keras
import numpy as np
import tensorflow as tf
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import replicator
from replicator import PerReplica
from tests.replicator.conftest import make

# An example that fails is not shrunk: each is two trainings.
GENERATE = (Phase.explicit, Phase.generate)
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
    "Adam": lambda: keras.optimizers.Adam(0.1),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.1, momentum=0.5),
    "Adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "Ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "Lion": lambda: keras.optimizers.Lion(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
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


def _start():
    return np.linspace(-1, 1, 12, dtype=np.float32).reshape(6, 2)


def _trained(repl, names, name, options, batches):
    with repl.context():
        table = tf.Variable(_start())
        optimizer = KERAS[name]()
        if options is not None:
            kept = {
                key: value
                for key, value in options.items()
                if repl.num_replicas > 1 or key != "sharded_update"
            }
            optimizer = repl.wrap_optimizer(optimizer, **kept)
        optimizer.build([table])

    def step(batch):
        tokens, targets = batch
        with tf.GradientTape() as tape:
            errors = _predicted(table, names, tokens) - targets
            loss = tf.reduce_mean(errors**2)
            loss = loss if options is None else optimizer.scale_loss(loss)
        grad = tape.gradient(loss, table)
        grad = replicator.all_mean(grad) if options is None else grad
        optimizer.apply([grad], [table])

    share = _GLOBAL_BATCH // repl.num_replicas
    inputs = repl.make_input_iterator(lambda _: batches(share))
    repl.run(step, inputs, num_steps=_STEPS)
    return table.numpy()


@settings(max_examples=covering.num_examples(4, 7), deadline=None, phases=GENERATE)
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
    batches = functools.partial(_batches, seed, is_static=is_static)

    one, several = (
        _trained(make(*case), names, name, options, batches)
        for case in (("single", 1), (backend, 2))
    )

    np.testing.assert_allclose(several, one, rtol=2e-4, atol=2e-5)


def test_slices_of_positions_are_reduced_row_by_row(repl_once):
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


def test_the_gradient_of_joined_slices_goes_back_to_its_rows(in_graph):
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
