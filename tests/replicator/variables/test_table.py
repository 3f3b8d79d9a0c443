"""Table: which variables replicas use in the place of the user's own."""

import pytest
import tensorflow as tf

from replicator.placement.topology import make_topology
from replicator.variables.kinds import Kind
from replicator.variables.table import VariableTable

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]


def make(num_local=3, *, is_mirrored=True, **programs):
    return VariableTable(
        make_topology(
            [[device] for device in CPU[:num_local]],
            is_mirrored=is_mirrored,
            **programs,
        )
    )


def values(entry):
    return [copy.numpy().tolist() for copy in entry.copies]


@pytest.fixture
def variable():
    with tf.device(CPU[0]):
        return tf.Variable([1.0, 2.0], name="scope/v", trainable=False)


def local_sum(value):
    return tf.Variable(
        value,
        trainable=False,
        synchronization=tf.VariableSynchronization.ON_READ,
        aggregation=tf.VariableAggregation.SUM,
    )


@pytest.mark.parametrize("kind", [Kind.MIRRORED, Kind.PARTIAL])
def test_replica_0_uses_the_users_own_variable(variable, kind):
    """The others have copies of its value, on their devices, named after those."""
    entry = make().require(variable, kind)

    assert entry.copies[0] is variable
    assert [[1.0, 2.0]] * 3 == values(entry)
    assert CPU[:3] == [copy.device for copy in entry.copies]
    assert "replica_2:0" == entry.copies[2].name
    assert not entry.copies[1].trainable


def test_replicas_that_share_memory_share_a_mirrored_variable(variable):
    """No copy, so there is nothing that could disagree with the user's own."""
    entry = make(is_mirrored=False).require(variable, Kind.MIRRORED)

    assert [True] * 3 == [copy is variable for copy in entry.copies]
    assert entry.seen is None


def test_of_local_variables_every_replica_has_its_own(variable):
    """Replica 0 too, even where memory is shared; the user's own is their mean."""
    entry = make(is_mirrored=False).require(variable, Kind.LOCAL)

    assert 4 == len({id(variable), *map(id, entry.copies)})
    assert [[1.0, 2.0]] * 3 == values(entry)
    assert [1.0, 2.0] == entry.seen.numpy().tolist()


def test_copies_of_a_sum_sum_to_it():
    """Replica 0 has what is left of the division."""
    entry = make().require(local_sum([7, 1]), Kind.LOCAL)

    assert [[3, 1], [2, 0], [2, 0]] == values(entry)


def test_replica_ids_count_over_all_programs():
    """A program's second replica is the job's fourth, and draws as it."""
    state = tf.Variable([5, 0], dtype=tf.int64, trainable=False)
    whole = make(4).require(state, Kind.RANDOM)

    part = make(
        2, num_replicas=4, first_replica_id=2, num_programs=2, program_id=1
    ).require(state, Kind.RANDOM)

    assert values(whole)[2:] == values(part)


def test_an_entry_is_made_once_and_again_for_another_kind(variable):
    """Programs that were built before see another version."""
    table = make()
    first = table.require(variable, Kind.MIRRORED)

    assert first is table.require(variable, Kind.MIRRORED)
    assert 0 == table.version
    assert Kind.LOCAL is table.require(variable, Kind.LOCAL).kind
    assert (1, Kind.LOCAL) == (table.version, table.kind(variable))


@pytest.mark.parametrize(
    ("num_replicas", "kind"), [(1, Kind.MIRRORED), (2, Kind.LOCAL)]
)
def test_the_kind_of_an_unused_variable_is_what_its_flags_say(num_replicas, kind):
    """With one replica there is nothing to tell apart."""
    assert kind is make(num_replicas).kind(local_sum([1.0]))


def test_bytes_count_every_copy_once_on_its_device(variable):
    """Unused variables once, shared copies once."""
    with tf.device(CPU[1]):
        unused = tf.Variable(tf.zeros([5]))
    mirrored, shared = make(2), make(2, is_mirrored=False)
    for table in (mirrored, shared):
        table.require(variable, Kind.MIRRORED)

    assert {CPU[0]: 8, CPU[1]: 8 + 20} == mirrored.bytes_by_device([variable, unused])
    assert {CPU[0]: 8, CPU[1]: 20} == shared.bytes_by_device([variable, unused])
    assert {} == mirrored.bytes_by_device([])


def test_what_is_assigned_reaches_mirrored_copies_at_once(variable):
    """A restore of the table has nothing to add for them."""
    table = make(2)
    entry = table.require(variable, Kind.MIRRORED)
    variable.assign([8.0, 8.0])

    table.restore([])

    assert [[8.0, 8.0], [8.0, 8.0]] == values(entry)


def test_a_restore_takes_partial_variables_without_copies(variable):
    """One replica on each of two workers: there is nothing to reset."""
    table = make(1, num_replicas=2, num_programs=2)
    entry = table.require(variable, Kind.PARTIAL)

    table.restore([])

    assert entry.seen is None
    assert [[1.0, 2.0]] == values(entry)
