"""Replicas are divided over workers evenly, or not at all."""

import re

import pytest

from replicator.errors import DeviceError
from replicator.placement.worker_share import per_worker


@pytest.mark.parametrize(
    ("arguments", "expected"), [((4, 2), 2), ((2, 2), 1), ((1, 2, 2), 1), ((3, 1), 3)]
)
def test_every_worker_gets_the_same_number(arguments, expected):
    """Parts of a split replica may be on different workers."""
    assert per_worker(*arguments) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 2), "num_replicas 3 of the whole job is not divisible by its 2 workers; "),
        ((3, 2), "use a multiple, such as 2"),
        ((1, 4), "use a multiple, such as 4"),
        ((0, 2), "num_replicas 0 of the whole job is not divisible"),
        ((-2, 2), "num_replicas -2 of the whole job is not divisible"),
        ((5, 4), "such as 4"),
        ((3, 4, 2), "job times logical_devices_per_replica 2 is not divisible by its"),
        ((2.5, 2), "num_replicas 2.5 must be an integer"),
        ((True, 2), "num_replicas True must be an integer"),
    ],
)
def test_what_cannot_be_shared_is_refused(arguments, message):
    with pytest.raises(DeviceError, match=re.escape(message)):
        per_worker(*arguments)
