"""Ledger: what a server remembers, and which part of it is a worker's own."""

from __future__ import annotations

import tensorflow as tf

from replicator.async_training.ledger import NUM_BINS, Ledger

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(3)]


def test_everything_starts_at_zero_on_the_server():
    """Whatever device the caller is on."""
    with tf.device(CPU[0]):
        ledger = Ledger(CPU[2], 3, "ledger of a test")

    variables = [ledger.clock, ledger.tally, *ledger.tickets]
    assert [CPU[2]] * 5 == [variable.device for variable in variables]
    assert [tf.int64] * 5 == [variable.dtype for variable in variables]
    assert [0] * 5 == [int(tf.reduce_sum(variable)) for variable in variables]
    assert [NUM_BINS] == ledger.tally.shape
    assert not any(variable.trainable for variable in variables)


def test_a_worker_has_its_own_ticket_in_the_place_of_the_first():
    """The step was traced once, with the ticket of worker 0."""
    ledger = Ledger(CPU[0], 2, "tickets of a test")

    assert ledger.copies_for(ledger.tickets[0], 0) is ledger.tickets[0]
    assert ledger.copies_for(ledger.tickets[0], 1) is ledger.tickets[1]


def test_the_counts_of_all_workers_are_shared():
    """And a variable of the user is none of the ledger's."""
    ledger = Ledger(CPU[0], 2, "counts of a test")

    assert [ledger.clock, ledger.tally] == [
        next(v for v in (ledger.clock, ledger.tally) if v is shared)
        for shared in ledger.shared()
    ]
    for variable in (*ledger.shared(), ledger.tickets[1], tf.Variable(0)):
        assert ledger.copies_for(variable, 1) is None
