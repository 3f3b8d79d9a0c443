"""Commit: an update is applied once or not at all, and counted with its staleness."""

import itertools
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

from replicator.async_training import commit as commit_lib
from replicator.async_training.commit import (
    NUM_BINS,
    CommitState,
    CommitTrace,
    summarize,
)
from replicator.engine.analysis.plan import FUSE_BELOW_BYTES

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]
_NAMES = itertools.count()


def trace_of(commit_states, sequence_numbers=None, clocks=(0,)):
    return CommitTrace(
        commit_states=commit_states,
        clocks=[tf.cast(clock, tf.int64) for clock in clocks],
        sequence_numbers=sequence_numbers,
        num_commits=[0] * len(commit_states),
        shared=[],
    )


class Server:
    """Some servers with one weight each, and a step that updates all of them."""

    def __init__(self, num_servers=1, commits_per_step=1):
        self.commit_states = [
            CommitState(CPU[1 + s], 2, f"commits of a test {next(_NAMES)}")
            for s in range(num_servers)
        ]
        self.weights = []
        for server in range(num_servers):
            with tf.device(CPU[1 + server]):
                self.weights.append(tf.Variable([0.0, 0.0]))
        self.num_commits = [0] * num_servers

        @tf.function(autograph=False)
        def step(sequence_numbers, clocks, gradient):
            trace = trace_of(self.commit_states, sequence_numbers, tf.unstack(clocks))
            for _ in range(commits_per_step):
                for server, weight in enumerate(self.weights):
                    commit_lib.commit(
                        trace, server, [gradient],
                        lambda arrived, weight=weight: weight.assign_add(arrived[0]),
                    )  # fmt: skip
            self.num_commits = trace.num_commits

        self._step = step

    def step(self, sequence_numbers, clocks=None, gradient=(1.0, 10.0)):
        """Runs it with the sequence number used, and the clocks as they were read."""
        if clocks is None:
            clocks = [int(commit_state.clock) for commit_state in self.commit_states]
        self._step(
            tf.constant(sequence_numbers, tf.int64),
            tf.constant(clocks, tf.int64),
            tf.constant(gradient),
        )

    def seen(self, server=0):
        commit_state = self.commit_states[server]
        weight = self.weights[server].numpy()
        assert 10 * weight[0] == weight[1]
        return weight[0], int(commit_state.clock), int(commit_state.sequence_numbers[0])

    def update_counts(self, server=0):
        counts = self.commit_states[server].update_counts.numpy()
        return {int(place): int(counts[place]) for place in np.flatnonzero(counts)}


@pytest.mark.parametrize("used", [0, 1])
def test_a_sequence_number_that_was_used_is_skipped(used):
    """The last one and one before it: nothing is updated, nothing is counted."""
    server = Server()
    server.step([0])
    server.step([1])

    server.step([used])

    assert (2.0, 2, 2) == server.seen()
    assert {0: 2} == server.update_counts()


def test_each_commit_of_a_step_has_its_own_sequence_number():
    """A step of which the first commit arrived is done again from the second."""
    server = Server(commits_per_step=2)
    server.commit_states[0].sequence_numbers[0].assign(1)

    server.step([0])

    assert (1.0, 1, 2) == server.seen()
    assert [2] == server.num_commits


@pytest.mark.parametrize(
    ("clock", "place"),
    [(5, 0), (3, 2), (0, 5)],
)
def test_staleness_is_what_the_clock_moved_since_it_was_read(clock, place):
    """Five updates were applied, some of them before the read."""
    server = Server()
    server.commit_states[0].clock.assign(5)

    server.step([0], [clock])

    assert {place: 1} == server.update_counts()


@pytest.mark.parametrize("late", [NUM_BINS - 1, NUM_BINS, 3 * NUM_BINS])
def test_the_last_bin_counts_all_that_is_more_stale(late):
    """No update is left out of the update_counts."""
    server = Server()
    server.commit_states[0].clock.assign(late)

    server.step([0], [0])

    assert {NUM_BINS - 1: 1} == server.update_counts()


def test_a_failing_update_releases_the_lock():
    commit_state = CommitState(CPU[1], 1, f"commits of a test {next(_NAMES)}")
    weight = tf.Variable([0.0])

    @tf.function(autograph=False)
    def step(gradient, sequence_numbers):
        trace = trace_of([commit_state], sequence_numbers)

        def update(arrived):
            checked = tf.debugging.check_numerics(arrived[0], "refused")
            weight.assign_add(checked)

        commit_lib.commit(trace, 0, [gradient], update)

    with pytest.raises(tf.errors.InvalidArgumentError, match="refused"):
        step(tf.constant([np.nan], tf.float32), tf.constant([0], tf.int64))
    step(tf.constant([2.0]), tf.constant([1], tf.int64))

    assert [2.0] == weight.numpy().tolist()


def test_updates_of_threads_do_not_interleave():
    """Each reads, waits and overwrites; without the lock some would be lost."""
    commit_state = CommitState(CPU[1], 2, f"commits of a test {next(_NAMES)}")
    weight = tf.Variable([0.0])

    def wait(value):
        time.sleep(0.01)
        return value

    def make():
        @tf.function(autograph=False)
        def step(sequence_numbers):
            trace = trace_of([commit_state], sequence_numbers)

            def update(arrived):
                value = weight.read_value()
                late = tf.py_function(wait, [value], tf.float32)
                weight.assign(tf.ensure_shape(late, [1]) + arrived[0])

            commit_lib.commit(trace, 0, [tf.constant([1.0])], update)

        return step

    steps = [make() for _ in range(2)]
    for step in steps:
        step.get_concrete_function(tf.TensorSpec([1], tf.int64))
    # Both take sequence numbers of one series, so that neither skips the other's.
    series = itertools.count()
    commit_state.sequence_numbers[0].assign(-1)

    def run(step):
        for _ in range(15):
            step(tf.constant([10_000 + next(series)], tf.int64))

    threads = [threading.Thread(target=run, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert float(weight[0]) == int(commit_state.clock)
    assert int(commit_state.clock) > 0


def test_an_update_outside_a_step_is_refused():
    """And inside, the innermost trace is the current one."""
    traces = [trace_of([]), trace_of([])]

    with commit_lib.tracing(traces[0]):
        with commit_lib.tracing(traces[1]):
            assert commit_lib.current() is traces[1]
        assert commit_lib.current() is traces[0]
    with pytest.raises(RuntimeError, match="an update was traced outside a step"):
        commit_lib.current()


def parcel(tensors):
    """Sends tensors inside a function; returns them as they arrive, and the plan."""
    plans = []

    @tf.function(autograph=False)
    def run():
        sent = commit_lib.send([tf.constant(t) for t in tensors], CPU[1])
        plans.append(sent.plan)
        return sent(sent.messages)

    arrived = run()
    for tensor, result in zip(tensors, arrived, strict=True):
        np.testing.assert_array_equal(tensor, result)
        assert np.asarray(tensor).dtype == result.dtype
    return plans[0]


def small(elements, dtype=np.float32):
    return np.arange(elements, dtype=dtype)


LIMIT = FUSE_BELOW_BYTES // 4
ALONE = ((0,), False)


@pytest.mark.parametrize(
    ("tensors", "expected"),
    [
        (
            [small(3), small(2, np.int64), small(6).reshape(2, 3), np.float32(4)],
            (((1,), False), ((0, 2, 3), True)),
        ),
        ([small(LIMIT - 1), small(1)], (((0, 1), True),)),
        ([small(LIMIT), small(1), small(1)], (ALONE, ((1, 2), True))),
        ([small(0), small(1), small(1)], (ALONE, ((1, 2), True))),
        ([small(5)], (ALONE,)),
        ([], ()),
    ],
    ids=["shapes and types", "just small", "large", "empty", "one", "none"],
)
def test_small_tensors_of_one_type_travel_in_one_message(tensors, expected):
    """In order and in their shapes; the copy of a large one would cost more."""
    assert expected == parcel(tensors)


def test_a_tensor_of_unknown_shape_travels_alone():
    """Nobody knows its size when the step is traced."""

    @tf.function(
        input_signature=[tf.TensorSpec([None]), tf.TensorSpec([2]), tf.TensorSpec([])]
    )
    def run(unknown, pair, scalar):
        sent = commit_lib.send([unknown, pair, scalar], CPU[1])
        assert (((0,), False), ((1, 2), True)) == sent.plan
        return sent(sent.messages)

    found = run(tf.constant([1.0] * 3), tf.constant([2.0, 3.0]), tf.constant(4.0))

    assert [[1.0] * 3, [2.0, 3.0], 4.0] == [value.numpy().tolist() for value in found]


def test_update_counts_of_all_servers_are_added():
    """The mean weighs each staleness with its updates."""
    found = summarize([[3, 1, 0, 0], [1, 0, 0, 2]])

    assert 7 == found.num_updates
    assert {0: 4, 1: 1, 3: 2} == found.histogram
    assert pytest.approx((1 + 2 * 3) / 7) == found.mean
    assert (3, 3) == (found.max, found.limit)
    assert str(found).endswith("max 3; updates by staleness: 0: 4, 1: 1, 3: 2")


def test_before_the_first_update_there_is_no_staleness():
    """No division by zero, and still a message."""
    found = summarize([[0, 0], [0, 0]])

    assert (0, {}, 0.0, 0, 1) == (
        found.num_updates, found.histogram, found.mean, found.max, found.limit
    )  # fmt: skip
    assert "0 updates, staleness mean 0.00, max 0; updates by staleness: none" == str(
        found
    )
