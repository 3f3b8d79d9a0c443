"""Table: workers share what they add to, and keep apart what they overwrite."""

from __future__ import annotations

import itertools

import pytest
import tensorflow as tf

from replicator.async_training.commit_state import CommitState
from replicator.async_training.placement import Placement
from replicator.async_training.table import ServerTable
from replicator.placement.topology import make_topology
from replicator.variables.kinds import Kind

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]
_NAMES = itertools.count()


@pytest.fixture
def table():
    """Two workers of two replicas, and two servers."""
    topology = make_topology([[device] for device in CPU])
    placement = Placement(2)
    placement.devices = tuple(CPU[2:])
    return ServerTable(topology, 2, placement)


@pytest.fixture
def commit_states():
    """One per server."""
    return [CommitState(d, 2, f"table of a test {next(_NAMES)}") for d in CPU[2:]]


@pytest.fixture
def variable():
    """On the second server."""
    with tf.device(CPU[3]):
        return tf.Variable([1.0, 2.0], trainable=False)


def test_all_replicas_use_a_shared_variable(table, variable):
    """No copies, though the devices of replicas differ."""
    entry = table.require(variable, Kind.MIRRORED)

    assert [True] * 4 == [copy is variable for copy in entry.copies]
    assert entry.seen is None


def test_a_copy_per_replica_is_on_the_server_of_the_variable(table, variable):
    """Also that of replica 0, whose worker is no more than another one."""
    entry = table.require(variable, Kind.LOCAL)

    assert 5 == len({id(variable), *map(id, entry.copies)})
    assert [CPU[3]] * 4 == [copy.device for copy in entry.copies]
    assert [[1.0, 2.0]] * 4 == [copy.numpy().tolist() for copy in entry.copies]
    assert not any(copy.trainable for copy in entry.copies)


def test_random_states_of_all_replicas_differ(table):
    """Of all workers."""
    state = tf.Variable([5, 0], dtype=tf.int64, trainable=False)

    entry = table.require(state, Kind.RANDOM)

    assert 4 == len({tuple(copy.numpy()) for copy in entry.copies})


@pytest.mark.parametrize("worker", [0, 1])
def test_a_worker_sees_the_copies_of_its_replicas(
    table, commit_states, variable, worker
):
    """In their order; the entry itself is that of all."""
    entry = table.require(variable, Kind.LOCAL)

    view = table.view(worker, commit_states).require(variable, Kind.LOCAL)

    expected = entry.copies[2 * worker : 2 * worker + 2]
    assert list(map(id, expected)) == list(map(id, view.copies))
    assert view.variable is variable


def test_a_worker_has_its_own_sequence_number_and_the_clock_of_all(
    table, commit_states
):
    """On each server; sequence number need no entry in the table."""
    view = table.view(1, commit_states)

    for commit_state in commit_states:
        sequence_number = view.require(commit_state.sequence_numbers[0], Kind.MIRRORED)
        clock = view.require(commit_state.clock, Kind.MIRRORED)
        assert [id(commit_state.sequence_numbers[1])] * 2 == list(
            map(id, sequence_number.copies)
        )
        assert [id(commit_state.clock)] * 2 == list(map(id, clock.copies))
    assert [id(commit_state.clock) for commit_state in commit_states] == [
        id(entry.variable) for entry in table.entries()
    ]


def test_all_workers_see_that_a_variable_changed_its_kind(
    table, commit_states, variable
):
    """Programs that were built before are out of date."""
    views = [table.view(worker, commit_states) for worker in range(2)]
    views[0].require(variable, Kind.MIRRORED)
    assert [0, 0] == [view.version for view in views]

    views[0].require(variable, Kind.LOCAL)

    assert [1, 1] == [view.version for view in views]
    assert [Kind.LOCAL] * 2 == [view.kind(variable) for view in views]
