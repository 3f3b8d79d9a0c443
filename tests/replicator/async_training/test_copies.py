"""Copies: the user's variables and the copies of replicas agree between dispatches."""

from __future__ import annotations

import pytest
import tensorflow as tf

from replicator.async_training import copies as copies_lib
from replicator.async_training.copies import Copies
from replicator.async_training.placement import Placement
from replicator.async_training.table import ServerTable
from replicator.placement.topology import make_topology
from replicator.variables.kinds import Kind

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(4)]


@pytest.fixture
def table():
    """Two workers of one replica."""
    topology = make_topology([[device] for device in CPU[:2]])
    return ServerTable(topology, 2, Placement(1))


@pytest.fixture
def copies(table):
    """The copies of its variables."""
    return Copies(table, make_topology([[device] for device in CPU[:2]]))


def local(table, value=0.0):
    """A statistic, which every replica keeps for itself."""
    variable = tf.Variable([value], trainable=False)
    return variable, table.require(variable, Kind.LOCAL).copies


def values(variables):
    """What they hold."""
    return [float(variable[0]) for variable in variables]


def test_the_users_variable_reads_as_the_mean_once_published(table, copies):
    """Not before; and only what ran since the last time is published."""
    variable, mine = local(table)
    copies.is_published = False
    for copy, value in zip(mine, (1.0, 3.0), strict=True):
        copy.assign([value])
    assert [0.0] == values([variable])

    copies.publish()

    assert [2.0] == values([variable])
    assert copies.is_published
    mine[0].assign([9.0])
    copies.publish()
    assert [2.0] == values([variable])


def test_what_was_set_outside_reaches_all_copies(table, copies):
    """Before the next steps; copies of other variables stay as they are."""
    (variable, mine), (_, others) = local(table), local(table)
    others[1].assign([4.0])

    variable.assign([7.0])
    copies.refresh()

    assert [7.0, 7.0] == values(mine)
    assert [0.0, 4.0] == values(others)


def test_what_was_published_is_not_taken_for_a_change(table, copies):
    """The copies continue from what each of them had."""
    variable, mine = local(table)
    copies.is_published = False
    for copy, value in zip(mine, (1.0, 3.0), strict=True):
        copy.assign([value])

    copies.publish()
    copies.refresh()

    assert ([2.0], [1.0, 3.0]) == (values([variable]), values(mine))


def test_a_variable_that_comes_later_is_among_them(table, copies):
    """Its copies were made by a step that was traced after the first refresh."""
    local(table)
    copies.refresh()
    variable, mine = local(table)

    variable.assign([7.0])
    copies.refresh()

    assert [7.0, 7.0] == values(mine)


def test_without_copies_nothing_is_run(table, copies, monkeypatch):
    """Shared variables have none."""
    table.require(tf.Variable([1.0]), Kind.MIRRORED)
    monkeypatch.setattr(copies_lib, "Coherence", None)
    copies.is_published = False

    copies.refresh()
    copies.publish()

    assert copies.is_published


def test_functions_are_made_once_for_the_same_variables(table, copies, monkeypatch):
    """Every dispatch asks."""
    local(table)
    made = []

    def make(*args):
        made.append(args)
        return original(*args)

    original = copies_lib.Coherence
    monkeypatch.setattr(copies_lib, "Coherence", make)
    for _ in range(3):
        copies.refresh()
    assert 1 == len(made)

    local(table)
    copies.refresh()
    assert 2 == len(made)
