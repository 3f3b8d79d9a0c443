"""Ownership: every program deals the same variables to the same owners."""

import gc

import pytest
import tensorflow as tf

from replicator.core.topology import make_topology
from replicator.variables.ownership import Owner, Ownership

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]


def make(num_local=2, *, is_mirrored=True, **programs):
    topology = make_topology(
        [[device] for device in CPU[:num_local]], is_mirrored=is_mirrored, **programs
    )
    return Ownership(topology)


def variables(*sizes):
    return [tf.Variable(tf.zeros([size])) for size in sizes]


def owners(owned, given):
    return [owned.owner(variable) for variable in given]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((), []),
        ((3,), [0]),
        ((1, 1, 1), [0, 1, 0]),
        ((1, 5, 2), [1, 0, 1]),
        ((4, 3, 3, 2), [0, 1, 1, 0]),
    ],
    ids=["none", "one", "ties", "largest first", "as even as can be"],
)
def test_each_variable_goes_to_the_owner_with_fewest_bytes(sizes, expected):
    """The largest first; of two equal owners, the first."""
    owned, given = make(), variables(*sizes)

    owned.assign(given)

    assert [Owner(primary, 0) for primary in expected] == owners(owned, given)


def test_bytes_count_and_not_elements():
    """Four numbers of eight bytes are more than five of four."""
    owned = make()
    given = [tf.Variable(tf.zeros(5)), tf.Variable(tf.zeros(4, tf.float64))]
    given += variables(1)

    owned.assign(given)

    assert [Owner(1, 0), Owner(0, 0), Owner(1, 0)] == owners(owned, given)


def test_an_owner_stays_and_what_it_has_counts():
    """A second call, with variables that were there and new ones."""
    owned, first = make(), variables(8)
    owned.assign(first)
    more = variables(3, 3, 3)

    owned.assign([*first, *more])

    assert [Owner(0, 0)] == owners(owned, first)
    assert [Owner(1, 0), Owner(1, 0), Owner(1, 0)] == owners(owned, more)


def test_programs_take_turns_before_second_devices_do():
    """Ties go to the first device of all programs in order; every program agrees."""
    given = variables(1, 1, 1, 1)
    found = []
    for program in range(2):
        owned = make(num_replicas=4, num_programs=2, program_id=program)
        owned.assign(given)
        found.append(owners(owned, given))

    assert [Owner(0, 0), Owner(0, 1), Owner(1, 0), Owner(1, 1)] == found[0]
    assert found[0] == found[1]


def test_nobody_owns_what_was_not_assigned():
    """And without a sharded update there is nothing to explain."""
    owned, (variable,) = make(), variables(1)

    assert owned.owner(variable) is None
    assert not owned.is_slot(variable)
    assert not owned.is_elsewhere(variable)
    assert "" == owned.explain()


def test_a_freed_variable_leaves_no_owner_to_one_that_gets_its_id():
    """Python gives ids of freed objects to new ones."""
    owned, given = make(), variables(1)
    owned.assign(given)
    place = id(given[0])
    del given[:]
    gc.collect()
    new = tf.Variable([1.0])

    owned._owners[id(new)] = owned._owners[place]

    assert owned.owner(new) is None


def test_state_of_another_program_has_no_elements_here():
    """Its memory is free; variables themselves stay, as all programs read them."""
    owned, given = make(1, num_replicas=2, num_programs=2), variables(2, 1)
    owned.assign(given)
    slots = variables(2, 1)
    for slot, variable in zip(slots, given, strict=True):
        owned.own_slot(slot, variable)

    assert [Owner(0, 0), Owner(0, 1)] == owners(owned, slots)
    assert [False, True] == [owned.is_elsewhere(slot) for slot in slots]
    assert [2, 0] == [int(tf.size(slot.read_value())) for slot in slots]
    assert [2, 1] == [int(tf.size(v.read_value())) for v in given]
    assert CPU[0] == owned.device(given[1])
