"""Ownership: every program deals the same variables to the same owners."""

import pytest
import tensorflow as tf

from replicator.core.topology import make_topology
from replicator.variables.ownership import Owner, Ownership

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]


def make(num_local=2, **programs):
    devices = [[device] for device in CPU[:num_local]]
    return Ownership(make_topology(devices, is_mirrored=True, **programs))


def owners_of(owned, *calls):
    given = []
    for sizes in calls:
        given += [tf.Variable(tf.zeros([size])) for size in sizes]
        owned.assign(given)
    return [owned.owner(variable) for variable in given]


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([()], []),
        ([(1, 1, 1)], [0, 1, 0]),
        ([(1, 5, 2)], [1, 0, 1]),
        ([(4, 3, 3, 2)], [0, 1, 1, 0]),
        ([(8,), (3, 3, 3)], [0, 1, 1, 1]),
    ],
    ids=["none", "ties", "largest first", "as even as can be", "an owner stays"],
)
def test_each_variable_goes_to_the_owner_with_fewest_bytes(calls, expected):
    """Of two equal owners, to the first; what an owner has already counts."""
    assert [Owner(of, 0) for of in expected] == owners_of(make(), *calls)


def test_bytes_count_and_not_elements():
    owned = make()
    given = [tf.zeros(5), tf.zeros(4, tf.float64), tf.zeros(1)]
    given = [tf.Variable(value) for value in given]

    owned.assign(given)

    assert [1, 0, 1] == [owned.owner(variable).primary for variable in given]
    assert owned.owner(tf.Variable([1.0])) is None


def test_programs_take_turns_before_second_devices_do():
    """Ties go to the first device of all programs in order; every program agrees."""
    first, second = (
        owners_of(make(num_replicas=4, num_programs=2, program_id=of), (1, 1, 1, 1))
        for of in range(2)
    )

    assert [Owner(0, 0), Owner(0, 1), Owner(1, 0), Owner(1, 1)] == first == second


def test_state_of_another_program_has_no_elements_here():
    """Its memory is free; variables themselves stay, as all programs read them."""
    owned = make(1, num_replicas=2, num_programs=2)
    given, slots = (
        [tf.Variable(tf.zeros([size])) for size in (2, 1)] for _ in range(2)
    )
    owned.assign(given)
    for slot, variable in zip(slots, given, strict=True):
        owned.own_slot(slot, variable)

    assert [Owner(0, 0), Owner(0, 1)] == [owned.owner(slot) for slot in slots]
    assert [False, True] == [owned.is_elsewhere(slot) for slot in slots]
    assert [2, 0] == [int(tf.size(slot.read_value())) for slot in slots]
    assert [2, 1] == [int(tf.size(v.read_value())) for v in given]
