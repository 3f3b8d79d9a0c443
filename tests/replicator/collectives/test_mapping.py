"""map_reduce and map_gather: items dealt over replicas, results, gradients, misuse."""

import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import errors

WEIGHTS = np.array([1.0, -2.0, 0.5], np.float32)
SCALES = [1.0, 3.0, -2.0, 0.5, 4.0]


def _variable(repl):
    with repl.context():
        return tf.Variable(WEIGHTS)


OPS = ("sum", "mean", "min", "max")


def test_map_gather_keeps_the_order_of_items(in_graph):
    weight = _variable(in_graph)

    def fn(size):
        return [weight[0] * tf.ones([size]), tf.constant(size)] if size % 2 else size

    def step():
        of_items = [replicator.map_gather(list(range(n)), fn) for n in (0, 1, 5)]
        return of_items, tf.constant(0)

    of_items, _ = in_graph.run(step)

    assert [0, 1, 5] == [len(out) for out in of_items]
    for out in of_items:
        for size, result in enumerate(out):
            for r in range(in_graph.num_replicas):
                if size % 2:
                    assert [1.0] * size == result[0][r].numpy().tolist()
                    assert size == int(result[1][r])
                else:
                    assert size == int(result[r])


def _single_device_gradient(loss_fn):
    weight = tf.Variable(WEIGHTS)
    with tf.GradientTape() as tape:
        loss = loss_fn([weight * s for s in SCALES])
    return tape.gradient(loss, weight).numpy()


@pytest.mark.covering(strength=1, prefer={"repl_once": [("in_graph_mirrored", 4)]})
@pytest.mark.parametrize("name", [*OPS, "gather"])
def test_gradients_are_those_of_one_device(repl_once, name):
    """Averaged over replicas, which ran different items, they are the whole gradient.

    The results of items are weighed differently in the losses.
    """
    repl = repl_once
    weight = _variable(repl)

    def weighed(results):
        return tf.add_n([i * tf.reduce_sum(x**2) for i, x in enumerate(results)])

    def reduced(results):
        return tf.reduce_sum(getattr(tf, f"reduce_{name}")(tf.stack(results), 0) ** 2)

    def step():
        with tf.GradientTape() as tape:
            if name == "gather":
                loss = weighed(replicator.map_gather(SCALES, lambda s: weight * s))
            else:
                result = replicator.map_reduce(lambda s: weight * s, SCALES, name)
                loss = tf.reduce_sum(result**2)
        return replicator.all_mean(tape.gradient(loss, weight))

    grads = repl.run(step)

    expected = _single_device_gradient(weighed if name == "gather" else reduced)
    assert repl.num_replicas == len(grads)
    for grad in grads:
        np.testing.assert_allclose(expected, grad, rtol=1e-5)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("which", ["reduce", "gather"])
def test_each_item_runs_on_one_replica_only(repl_once, which):
    """Item i counts on replica i % num_replicas; the counters outside say so."""
    repl = repl_once
    with repl.context():
        counts = [
            tf.Variable(
                0.0,
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )
            for _ in range(3)
        ]

    def fn(index):
        counts[index].assign_add(1.0)
        replica = tf.cast(replicator.get_replica_context().replica_id, tf.float32)
        return tf.stack([replica * 10.0**index, 1.0])

    def step():
        if which == "reduce":
            return replicator.map_reduce(fn, [0, 1, 2])
        return tf.add_n(replicator.map_gather([0, 1, 2], fn))

    out = repl.run(step)

    owners = sum(index % repl.num_replicas * 10.0**index for index in range(3))
    assert [owners, 3.0] == out[0].numpy().tolist()
    assert [1.0, 1.0, 1.0] == [float(count.numpy()) for count in counts]


def test_python_branches_on_tensors_work_in_items(in_graph):
    """``fn`` is single-device code like the step: AutoGraph reaches it."""

    def fn(x):
        if tf.random.uniform([]) > 2.0:
            return x * 0.0
        return x

    out = in_graph.run(lambda: replicator.map_reduce(fn, [tf.constant(2.0)] * 3))

    assert 6.0 == float(out[0])


def test_mapping_outside_a_replica_raises_an_actionable_error():
    with pytest.raises(
        errors.CollectiveContextError, match=r"map_gather\(\) was called"
    ):
        replicator.map_gather([1], lambda x: x)


def _of_unknown_shape(_):
    return tf.random.shuffle(tf.where(tf.random.uniform([4]) > 0.5))


REFUSED = {
    "no items": (
        lambda: replicator.map_reduce(lambda x: x, []),
        r"map_reduce got no items, .* at least one",
    ),
    "shapes": (
        lambda: replicator.map_reduce(lambda n: tf.zeros([n]), [2, 3]),
        r"fn\(items\[1\]\) is float32\[3\], but fn\(items\[0\]\) is float32\[2\]",
    ),
    "mean": (
        lambda: replicator.map_reduce(lambda x: x, [1, 2], "mean"),
        r"map_reduce 'mean' of int32 would be rounded",
    ),
    "None": (
        lambda: replicator.map_reduce(lambda _: None, [1, 2]),
        r"fn\(items\[0\]\) returned None",
    ),
    "unknown shape": (
        lambda: replicator.map_gather([0], _of_unknown_shape)[0],
        r"fn\(items\[0\]\) has shape \(None, 1\).*tf.ensure_shape",
    ),
    # A tensor is not split along some axis without being requested.
    "no list": (
        lambda: replicator.map_reduce(tf.identity, tf.ones([4])),
        r"items of type .*Tensor.*tf.unstack",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_items_and_results_raise_actionable_errors(what):
    call, message = REFUSED[what]

    with pytest.raises((TypeError, ValueError), match=message):
        replicator.create("in_graph", num_replicas=2).run(call)
