"""Outside values: what replica-local variables read as between steps, on one program.

The copies of a replica are sent as one vector per type, so that R replicas need R - 1
transfers per type, whatever the number of variables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.placement import devices as device_lib
from replicator.variables.copy_values import is_from_all
from replicator.variables.kinds import is_summed
from replicator.variables.outside_writes import pack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.variables.table import Entry


def read(entries: Sequence[Entry]) -> list[tf.Tensor]:
    """Emits the values of the users' own variables: mean, sum, or replica 0's."""
    values: list[Any] = []
    for entry, total in zip(entries, sums(entries), strict=True):
        if total is None:
            value = entry.copies[0].value()
        elif is_summed(entry.variable):
            value = total
        else:
            with tf.device(_sum_device(entry)):
                value = total / tf.constant(len(entry.copies), total.dtype)
        values.append(value)
    return values


def sums(entries: Sequence[Entry]) -> list[tf.Tensor | None]:
    """Emits the sums over the copies; None where only replica 0's value counts."""
    groups: dict[tuple[Any, ...], list[int]] = {}
    for place, entry in enumerate(entries):
        if is_from_all(entry.variable, entry.kind):
            is_static = entry.variable.shape.is_fully_defined()
            devices = tuple(copy.device for copy in entry.copies)
            alone = -1 if is_static else place
            key = entry.variable.dtype, _sum_device(entry), devices, alone
            groups.setdefault(key, []).append(place)
    found: list[tf.Tensor | None] = [None] * len(entries)
    for places in groups.values():
        members = [entries[place] for place in places]
        for place, total in zip(places, _add_up(members), strict=True):
            found[place] = total
    return found


def _add_up(entries: Sequence[Entry]) -> list[tf.Tensor]:
    """Adds the copies of variables of one type that lie on the same devices."""
    first = entries[0]
    vectors = []
    for replica, copy in enumerate(first.copies):
        with tf.device(copy.device):
            of_replica = [entry.copies[replica].value() for entry in entries]
            vectors.append(of_replica[0] if len(entries) == 1 else pack(of_replica))
    with tf.device(_sum_device(first)):
        total = tf.add_n(vectors)
        if len(entries) == 1:
            return [total]
        shapes = [entry.variable.shape.as_list() for entry in entries]
        sizes = [entry.variable.shape.num_elements() for entry in entries]
        parts = tf.split(total, sizes)
        return [
            part if len(shape) == 1 else tf.reshape(part, shape)
            for part, shape in zip(parts, shapes, strict=True)
        ]


def _sum_device(entry: Entry) -> str:
    """Where copies are added: with the user's variable, if that has the kernels."""
    device = entry.variable.device
    is_kernel_there = entry.variable.dtype.is_floating
    return device if is_kernel_there else device_lib.cpu_of(device)
