"""Failed steps count and have consumed their batches; determined ones repeat bits."""

import os
import pathlib

import case_cluster
import fork_server
import pytest
import tensorflow as tf
from case_cluster import load

import replicator
from replicator import InputReplicationMode
from replicator._tf import compat as _tf_compat

# The iterators of a stock strategy may be at their end after a step that failed.
BACKENDS = [("single", 1), ("in_graph_mirrored", 2)]
ELEMENTS = 40
MODES = [InputReplicationMode.SINGLE, InputReplicationMode.PER_REPLICA]


def from_python(ctx):
    del ctx
    signature = tf.TensorSpec([], tf.int64)
    return tf.data.Dataset.from_generator(
        lambda: iter(range(ELEMENTS)), output_signature=signature
    )


def refuse(x, bad):
    tf.debugging.assert_none_equal(x, tf.constant(bad, tf.int64))
    return x


def make_step(bad):
    total = tf.Variable(0, dtype=tf.int64, trainable=False)

    def step(x):
        total.assign_add(refuse(x, bad))
        return x

    return step


def read(repl, step, inputs, num_calls, num_steps=1):
    """What the last step of each call was given; None where it failed."""

    def call():
        try:
            return [int(x) for x in repl.run(step, inputs, num_steps=num_steps)]
        except tf.errors.InvalidArgumentError:
            return None

    return [call() for _ in range(num_calls)]


@pytest.mark.parametrize("repl", BACKENDS, indirect=True)
def test_batches_that_failed_steps_read_are_not_read_again(repl, tmp_path):
    """Five steps that ended and the one that failed, of a dispatch of eight."""
    size = repl.num_replicas
    with repl.context():
        step = make_step(5 * size)
        weight = tf.Variable(0.0)
    inputs = repl.make_input_iterator(from_python)

    assert [None] == read(repl, step, inputs, 1, num_steps=8)
    assert 6 == inputs.num_steps
    repl.make_checkpoint_manager(tmp_path, weight=weight, inputs=inputs).save(6)
    expected = [[6 * size + r for r in range(size)]]
    assert expected == read(repl, step, inputs, 1)
    again = repl.make_input_iterator(from_python)
    repl.make_checkpoint_manager(tmp_path, weight=weight, inputs=again).restore()
    assert 6 == again.num_steps
    assert expected == read(repl, step, again, 1)


@pytest.mark.parametrize("num_steps", [1, 4])
def test_an_element_that_raises_leaves_replicas_in_step(num_steps):
    repl = replicator.create("in_graph", num_replicas=2)
    inputs = repl.make_input_iterator(
        lambda _: tf.data.Dataset.range(ELEMENTS).map(lambda x: refuse(x, 4))
    )
    step = make_step(-1)

    found = read(repl, step, inputs, 3 if num_steps == 1 else 1, num_steps)

    assert None is found[-1]
    assert 3 == inputs.num_steps
    assert [[6, 7]] == read(repl, step, inputs, 1)


@pytest.mark.parametrize("mode", MODES, ids=["one pipeline", "one per replica"])
def test_next_keeps_replicas_in_step_too(mode):
    """Elements 0 and 1, 2 (raises) and 3, 4 and 5."""
    repl = replicator.create("in_graph", num_replicas=2)

    def input_fn(ctx):
        numbers = tf.data.Dataset.range(6)
        mine = numbers.shard(ctx.num_input_pipelines, ctx.input_pipeline_id)
        return mine.map(lambda x: refuse(x, 2))

    inputs = repl.make_input_iterator(input_fn, mode)
    first = [int(x) for x in next(inputs)]
    with pytest.raises(tf.errors.InvalidArgumentError):
        next(inputs)
    last = [int(x) for x in next(inputs)]

    assert ([0, 1], [4, 5]) == (first, last)
    assert 3 == inputs.num_steps
    assert [] == list(inputs)
    assert 3 == inputs.num_steps


def test_counters_are_0_before_a_function_can_count(monkeypatch):
    """Assignments on another worker are not waited for by functions that run there."""
    waited = []
    monkeypatch.setattr(_tf_compat, "wait_for_remote_ops", lambda: waited.append(1))
    repl = replicator.create("in_graph", num_replicas=2)

    repl.make_input_iterator(from_python, InputReplicationMode.PER_REPLICA).source  # noqa: B018

    assert waited


PROGRAM = pathlib.Path(__file__).with_name("determined_training.py")
PROGRAM_SEC = 300.0


@pytest.fixture
def train():
    yield load(PROGRAM).train
    replicator.set_determinism(None)


@pytest.mark.processes
def test_runs_with_one_seed_are_equal_bit_by_bit(train, tmp_path):
    first, again, other = train(3), train(3), train(4)
    code, text = fork_server.server(**case_cluster.ENV).run(
        [str(PROGRAM), "3"],
        env={**os.environ, **case_cluster.ENV},
        log=tmp_path / "log",
        timeout_sec=PROGRAM_SEC,
    )

    assert 0 == code, text
    assert first == again == text.splitlines()[-1].split()
    assert first != other


@pytest.mark.parametrize("seed", [-1, 1.5, True, 2**32, "3"])
def test_seeds_are_checked(seed):
    with pytest.raises(ValueError, match=r"seed .* must be an integer from 0 to 42949"):
        replicator.set_determinism(seed)
