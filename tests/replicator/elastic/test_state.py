"""ElasticState in one process: commits, positions, learning rates, errors."""

import errno
import json
import os
import shutil
from pathlib import Path

import elastic_trainer as trainer
import keras
import numpy as np
import pytest
import tensorflow as tf
from elastic_job import check_epochs, counted_steps

import replicator
from replicator.errors import CheckpointError, ElasticError, SplitBatchError

STARTS = (4, 4), (3, 7), (2, 20), (3, 40)  # replicas, and steps of the whole job


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Makes this process a worker of a start, as the supervisor does."""

    def begin(start, host="a", disk_every=10):
        job = {
            "disk": str(tmp_path / "disk"),
            "disk_every": disk_every,
            "is_first_of_host": True,
            "memory": str(tmp_path / "memory" / host),
            "num_hosts": 1,
            "start": start,
            "stop_file": str(tmp_path / f"stop-{start}"),
        }
        monkeypatch.setenv("REPLICATOR_ELASTIC", json.dumps(job))

    return begin


def test_batches_of_replicas_stay_and_no_example_is_lost(begin, tmp_path):
    """4 replicas, then 3, 2 and 3: the first step of each is what the others left."""
    for start, (num_replicas, num_steps) in enumerate(STARTS, 1):
        begin(start)
        repl = replicator.create("in_graph", num_replicas=num_replicas)
        trainer.train(repl, tmp_path, num_steps, commit_every=1, per_replica=2)
    records = trainer.records(tmp_path)
    steps, losses = counted_steps(records)
    check_epochs(steps)
    sizes = [len(step) for step in steps]
    assert [8] * 4 + [4, 6, 6] + [4] * 13 + [2] + [6] * 19 == sizes
    assert np.isfinite(losses).all()
    rates = {r["start"]: r["rate"] for r in records}
    np.testing.assert_allclose([0.02, 0.015, 0.01, 0.015], list(rates.values()), 1e-6)


def test_a_stop_commits_to_disk_for_hosts_that_are_new(begin, tmp_path):
    begin(1, disk_every=100)
    (tmp_path / "stop-1").touch()
    with pytest.raises(SystemExit) as stopped:
        trainer.train(replicator.create("in_graph", num_replicas=2), tmp_path, 100)
    assert 75 == stopped.value.code
    begin(2, host="b")
    trainer.train(replicator.create("in_graph", num_replicas=3), tmp_path, 9)
    steps, _ = counted_steps(trainer.records(tmp_path))
    assert 9 == len(steps)
    check_epochs(steps)


def test_the_newest_commit_counts_wherever_it_is(begin, tmp_path):
    """Memory is ahead of the disk; the disk is ahead of what a lost host kept."""
    repl = replicator.create("in_graph", num_replicas=2)
    begin(1, disk_every=3)
    with pytest.raises(AssertionError):
        trainer.train(repl, tmp_path, 100, commit_every=2, lost_at=7)
    shutil.copytree(tmp_path / "memory" / "a", tmp_path / "memory" / "b")
    begin(2)
    trainer.train(repl, tmp_path, 11, commit_every=2)
    begin(3, host="b")
    trainer.train(repl, tmp_path, 13, commit_every=2)
    begun = {r["start"]: r["step"] for r in reversed(trainer.records(tmp_path))}
    assert {1: 0, 2: 6, 3: 11} == begun


@pytest.mark.parametrize("kept", [0, 7, 8, 1000])
def test_a_commit_that_was_cut_off_does_not_count(begin, tmp_path, kept):
    """The newest of the two files has no key, or is not complete: the other counts."""
    repl = replicator.create("in_graph", num_replicas=2)
    begin(1, disk_every=100)
    with pytest.raises(AssertionError):
        trainer.train(repl, tmp_path, 100, commit_every=2, lost_at=5)
    files = sorted((tmp_path / "memory" / "a").iterdir(), key=os.path.getmtime)
    shutil.rmtree(tmp_path / "disk")
    content = bytes(8) + files[-1].read_bytes()[8:]
    files[-1].write_bytes(content[:kept])
    begin(2)
    trainer.train(repl, tmp_path, 5)
    assert 2 == min(r["step"] for r in trainer.records(tmp_path) if r["start"] == 2)


def test_a_disk_that_cannot_be_written_ends_training_at_the_next_commit(
    begin, tmp_path
):
    begin(1)
    (tmp_path / "disk").touch()
    with pytest.raises(CheckpointError, match="could not be copied"):
        trainer.train(replicator.create("single"), tmp_path, 9, commit_every=2)
    assert [0, 1, 2, 3] == [record["step"] for record in trainer.records(tmp_path)]


def test_full_memory_ends_training_and_the_commit_before_counts(
    begin, tmp_path, monkeypatch, capsys
):
    """There is room for the first of the two files."""
    repl = replicator.create("single")
    begin(1)
    allocate, second = os.posix_fallocate, tmp_path / "memory" / "a" / "1"

    def allocate_one(descriptor, start, size):
        if Path(f"/proc/self/fd/{descriptor}").readlink() == second:
            raise OSError(errno.ENOSPC, "memory is full")
        allocate(descriptor, start, size)

    monkeypatch.setattr(os, "posix_fallocate", allocate_one)
    with pytest.raises(CheckpointError, match=r"could not be written.*memory is full"):
        trainer.train(repl, tmp_path, 9, commit_every=2)
    begin(2)
    trainer.train(repl, tmp_path, 0)
    assert "continues at step 2;" in capsys.readouterr().out


@pytest.mark.parametrize("is_text", [False, True])
def test_variables_of_any_type_are_committed_or_refused(begin, is_text):
    """An empty one and a scalar among them; texts have no bytes to keep."""
    dtypes = tf.bfloat16, tf.bool, tf.complex64, tf.float16, tf.int8, tf.uint64
    values = [tf.cast([[0, 1, 1]], dtype) for dtype in dtypes]
    values += [tf.zeros([0, 3]), tf.constant(7.0), tf.constant(["a"])][: 2 + is_text]

    def state_of(values):
        variables = {f"v{index}": tf.Variable(v) for index, v in enumerate(values)}
        return replicator.ElasticState(replicator.create("single"), **variables), [
            variables[name] for name in sorted(variables)
        ]

    begin(1, disk_every=100)
    state, _ = state_of(values)
    state.step = 5
    if is_text:
        with pytest.raises(CheckpointError, match="could not be written"):
            state.commit(to_disk=True)
        return
    state.commit(to_disk=True)
    begin(2, host="b")
    state, found = state_of([tf.zeros_like(value) for value in values])
    assert 5 == state.step
    for value, variable in zip(values, found, strict=True):
        np.testing.assert_array_equal(value.numpy(), variable.numpy())


def test_what_is_no_variable_is_refused(begin):
    begin(1)
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
    state = replicator.ElasticState(replicator.create("single"), table=table)
    state.step = 1
    with pytest.raises(CheckpointError, match="variables only, but 'table' is none"):
        state.commit()


def test_a_schedule_and_other_batches_are_refused(begin, tmp_path):
    repl = replicator.create("in_graph", num_replicas=2)
    begin(1)
    trainer.train(repl, tmp_path, 2, per_replica=2)
    begin(2)
    with pytest.raises(ElasticError, match=r"had 4 examples .* and has 8 now"):
        trainer.train(repl, tmp_path, 4)
    with repl.context():
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(schedule))
    with pytest.raises(ElasticError, match="and not a schedule"):
        replicator.ElasticState(
            repl,
            batches="keep_per_replica",
            scale_learning_rate="sqrt",
            optimizer=optimizer,
        )


def test_uneven_parts_differ_by_one_example_at_most():
    repl = replicator.create("in_graph", num_replicas=3)
    data = tf.data.Dataset.range(20)
    with pytest.raises(SplitBatchError, match="not divisible"):
        repl.make_input_iterator(lambda c: replicator.split_global_batches(data, c, 8))
    inputs = repl.make_input_iterator(
        lambda ctx: replicator.split_global_batches(data, ctx, 8, uneven=True)
    )
    parts = [[len(part) for part in batch] for batch in inputs]
    assert [[2, 3, 3], [2, 3, 3], [1, 1, 2]] == parts
