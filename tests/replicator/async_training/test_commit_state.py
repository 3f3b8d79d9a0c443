"""CommitState: what a server remembers, and which part of it is a worker's own."""

from __future__ import annotations

import tensorflow as tf

from replicator.async_training.commit_state import NUM_BINS, CommitState

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(3)]


def test_everything_starts_at_zero_on_the_server():
    """Whatever device the caller is on."""
    with tf.device(CPU[0]):
        commit_state = CommitState(CPU[2], 3, "commit_state of a test")

    variables = [
        commit_state.clock,
        commit_state.update_counts,
        *commit_state.sequence_numbers,
    ]
    assert [CPU[2]] * 5 == [variable.device for variable in variables]
    assert [tf.int64] * 5 == [variable.dtype for variable in variables]
    assert [0] * 5 == [int(tf.reduce_sum(variable)) for variable in variables]
    assert [NUM_BINS] == commit_state.update_counts.shape
    assert not any(variable.trainable for variable in variables)


def test_a_worker_has_its_own_sequence_number_in_the_place_of_the_first():
    """The step was traced once, with the sequence number of worker 0."""
    commit_state = CommitState(CPU[0], 2, "sequence_numbers of a test")

    assert (
        commit_state.copies_for(commit_state.sequence_numbers[0], 0)
        is commit_state.sequence_numbers[0]
    )
    assert (
        commit_state.copies_for(commit_state.sequence_numbers[0], 1)
        is commit_state.sequence_numbers[1]
    )


def test_the_counts_of_all_workers_are_shared():
    """And a variable of the user is none of the commit_state's."""
    commit_state = CommitState(CPU[0], 2, "counts of a test")

    assert [commit_state.clock, commit_state.update_counts] == [
        next(v for v in (commit_state.clock, commit_state.update_counts) if v is shared)
        for shared in commit_state.shared()
    ]
    for variable in (
        *commit_state.shared(),
        commit_state.sequence_numbers[1],
        tf.Variable(0),
    ):
        assert commit_state.copies_for(variable, 1) is None
