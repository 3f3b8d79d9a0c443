"""Partial variables: settling makes all copies their mean, and changes nothing else."""

import pytest
import tensorflow as tf

from replicator.placement.topology import make_topology
from replicator.variables import partial
from replicator.variables.fingerprints import state
from replicator.variables.kinds import Kind
from replicator.variables.table import VariableTable

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]


@pytest.fixture
def consolidated():
    """Settles copies of given values; returns the entries and what was added up."""

    def consolidate(kinds, num_replicas=2, add_up=None, in_all=None):
        topology = make_topology(
            [[device] for device in CPU[:num_replicas]],
            is_mirrored=True,
            num_replicas=in_all,
        )
        table = VariableTable(topology)
        variables = [tf.Variable([0.0, 0.0]) for _ in kinds]
        entries = [
            table.require(v, kind) for v, kind in zip(variables, kinds, strict=True)
        ]
        for index, entry in enumerate(entries):
            for replica, copy in enumerate(entry.copies):
                copy.assign([2.0 * replica, 10.0 * index])
        calls = []

        def listen(sums):
            calls.append([each.numpy().tolist() for each in sums])
            return (add_up or list)(sums)

        partial.consolidate(entries, topology, listen)
        return entries, calls

    return consolidate


def values(entry):
    return [copy.numpy().tolist() for copy in entry.copies]


@pytest.mark.parametrize("num_replicas", [2, 4])
def test_all_copies_become_their_mean(consolidated, num_replicas):
    """The user's own is among them, and known to agree with them."""
    (entry,), _ = consolidated([Kind.PARTIAL], num_replicas)

    assert [[num_replicas - 1.0, 0.0]] * num_replicas == values(entry)
    assert [num_replicas - 1.0, 0.0] == entry.variable.numpy().tolist()
    expected = state(entry.variable, Kind.PARTIAL).numpy().tolist()
    assert expected == entry.seen.numpy().tolist()


def test_other_kinds_are_left_alone(consolidated):
    """Only what counts as a mean becomes one."""
    entries, calls = consolidated([Kind.MIRRORED, Kind.PARTIAL, Kind.LOCAL])

    assert [[0.0, 0.0], [2.0, 0.0]] == values(entries[0])
    assert [[1.0, 10.0]] * 2 == values(entries[1])
    assert [[0.0, 20.0], [2.0, 20.0]] == values(entries[2])
    assert [[[2.0, 20.0]]] == calls


def test_without_partial_variables_nobody_communicates(consolidated):
    _, calls = consolidated([Kind.MIRRORED, Kind.LOCAL])

    assert [] == calls


def test_the_mean_is_over_the_replicas_of_all_programs(consolidated):
    """Two here with a sum of 2, two elsewhere with a sum of 10."""
    (entry,), calls = consolidated(
        [Kind.PARTIAL],
        add_up=lambda sums: [each + tf.constant([10.0, 0.0]) for each in sums],
        in_all=4,
    )

    assert [[[2.0, 0.0]]] == calls
    assert [[3.0, 0.0]] * 2 == values(entry)


def test_the_only_replica_of_one_of_two_workers_has_no_copies_and_consolidates(
    consolidated,
):
    """The user's own variable is all there is here."""
    (entry,), _ = consolidated(
        [Kind.PARTIAL], 1, lambda sums: [each + 6.0 for each in sums], in_all=2
    )

    assert entry.seen is None
    assert [[3.0, 3.0]] == values(entry)
