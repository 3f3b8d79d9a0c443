"""Counters: every server counts the updates of an optimizer that it has applied.

Servers apply the updates of several workers in different orders, so an update that
depends on its number takes the one of its own server. Each counts under its lock.
"""

from __future__ import annotations

import weakref
from typing import Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.step import creation

# An attribute of an optimizer's counter: those of the other servers, by device.
_OTHERS = "_replicator_counters"


class ServerCounters:
    """The counters of all optimizers on servers that do not hold the user's own."""

    def __init__(self) -> None:
        self._counters: weakref.WeakValueDictionary[int, Any] = (
            weakref.WeakValueDictionary()
        )

    def on(self, device: str, counter: Any) -> Any:
        """What a server counts in, for the counter of an optimizer."""
        if counter.device == device:
            return counter
        self._counters[id(counter)] = counter
        others = vars(counter).setdefault(_OTHERS, {})
        if device not in others:
            with tf.init_scope(), creation.allowed(), tf.device(device):
                others[device] = creation.own_variable(tf.identity(counter))
        return others[device]

    def refresh(self) -> None:
        """Gives all servers what the user has written or restored; nothing may run."""
        counters = list(self._counters.values())
        for counter in counters:
            for other in vars(counter)[_OTHERS].values():
                other.assign(counter.read_value(), read_value=False)
        if counters:
            _tf_compat.wait_for_remote_ops()
