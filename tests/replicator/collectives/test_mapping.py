"""map_reduce and map_gather: items dealt over replicas, and misuse."""

import functools

import pytest
import tensorflow as tf
from cluster_member import check_message, check_messages

import replicator
from tests.replicator.conftest import make


@pytest.mark.parametrize("which", ["reduce", "gather"])
def test_each_item_runs_on_one_replica_only(which):
    repl = make("in_graph", 2)
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
    def fn(x):
        if tf.random.uniform([]) > 2.0:
            return x * 0.0
        return x

    out = in_graph.run(lambda: replicator.map_reduce(fn, [tf.constant(2.0)] * 3))

    assert 6.0 == float(out[0])


def _of_unknown_shape(_):
    return tf.random.shuffle(tf.where(tf.random.uniform([4]) > 0.5))


REFUSED = {
    "^ValueError: .*map_reduce got no items, .* at least one": lambda: (
        replicator.map_reduce(lambda x: x, [])
    ),
    r"^ValueError: .*fn\(items\[1\]\) is float32\[3\], but fn\(items\[0\]\) is float32"
    r"\[2\]": lambda: replicator.map_reduce(lambda n: tf.zeros([n]), [2, 3]),
    "^ValueError: .*map_reduce 'mean' of int32 would be rounded": lambda: (
        replicator.map_reduce(lambda x: x, [1, 2], "mean")
    ),
    r"^ValueError: .*fn\(items\[0\]\) returned None": lambda: replicator.map_reduce(
        lambda _: None, [1, 2]
    ),
    r"^ValueError: .*fn\(items\[0\]\) has shape \(None, 1\).*tf.ensure_shape": lambda: (
        replicator.map_gather([0], _of_unknown_shape)[0]
    ),
    # A tensor is not split along some axis without being requested.
    "^TypeError: .*items of type .*Tensor.*tf.unstack": lambda: replicator.map_reduce(
        tf.identity, tf.ones([4])
    ),
}


def test_bad_items_and_results_raise_actionable_errors():
    repl = replicator.create("in_graph", num_replicas=2)
    calls = {said: functools.partial(repl.run, call) for said, call in REFUSED.items()}

    check_messages(calls)
    check_message(
        r"^CollectiveContextError: .*map_gather\(\) was called",
        lambda: replicator.map_gather([1], lambda x: x),
    )
