"""map_reduce and map_gather: items dealt over replicas, and misuse."""

import functools
import os

import case_cluster
import fork_server
import numpy as np
import pytest
import tensorflow as tf
from case_cluster import check_message, check_messages

import replicator
from replicator import CollectiveControlFlowError, PerReplica, create
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


ROWS = [np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), 10.0 * np.ones((3, 2))]
FIRST_SEC = 60.0
FIRST_OF_A_PROCESS = """
import tensorflow as tf
import replicator

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)
repl = replicator.create("tf_mirrored", num_replicas=2, devices=["CPU:0", "CPU:1"])
rows = replicator.PerReplica([tf.ones([3, 2]), tf.ones([3, 2])])
try:
    repl.run(lambda x: tf.vectorized_map(replicator.all_sum, x), rows)
except replicator.errors.CollectiveControlFlowError as error:
    print(type(error).__name__)
"""


def _run(repl, step, values=ROWS):
    return repl.run(step, PerReplica([tf.constant(v) for v in values]))


def test_a_vectorized_map_communicates_once(in_graph):
    """Values and gradients, of rows of unknown size too, are drawn by the fuzzer."""

    def once(x):
        return tf.vectorized_map(replicator.all_sum, x)

    _run(in_graph, once)

    plan = in_graph.explain().rpartition("once, ")[2]
    assert "#0 all_reduce(sum): 1 tensors, 48 bytes" in plan
    assert "#1" not in plan


def test_a_jacobian_in_a_while_loop_is_refused(in_graph):
    def step(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = replicator.all_sum(x * x)
        return tape.jacobian(y, x, experimental_use_pfor=False)

    with pytest.raises(CollectiveControlFlowError, match=r"tf\.while_loop"):
        _run(in_graph, step)


@pytest.mark.parametrize(
    "transform",
    [
        lambda x: tf.vectorized_map(replicator.all_sum, x),
        lambda x: tf.vectorized_map(replicator.all_gather, x),
        lambda x: tf.vectorized_map(lambda row: replicator.broadcast(row, 0), x),
    ],
)
def test_a_stock_strategy_refuses_collectives_in_vectorized_loops(transform):
    repl = create("tf_mirrored", num_replicas=2, devices=["CPU:0", "CPU:1"])

    with pytest.raises(
        CollectiveControlFlowError,
        match=r"inside tf\.vectorized_map.*experimental_use_pfor=False.*in_graph",
    ):
        _run(repl, transform)


@pytest.mark.processes
def test_a_stock_strategy_refuses_them_as_the_first_of_a_process(tmp_path):
    """Whatever ran before: without a refusal its collectives wait for each other."""
    program, log = tmp_path / "program.py", tmp_path / "log"
    program.write_text(FIRST_OF_A_PROCESS, encoding="utf-8")
    _, text = fork_server.server(**case_cluster.ENV).run(
        [str(program)],
        env={**os.environ, **case_cluster.ENV},
        log=log,
        timeout_sec=FIRST_SEC,
    )

    assert "CollectiveControlFlowError" == text.splitlines()[-1]


def test_placeholders_of_users_survive_vectorization(in_graph):
    """The type of a marker may stand in a loop for something else."""

    def body(row):
        return tf.compat.v1.placeholder_with_default(row, [2]) + 1.0

    found = _run(in_graph, lambda x: tf.vectorized_map(body, x))

    np.testing.assert_allclose(found[0], ROWS[0] + 1.0)
