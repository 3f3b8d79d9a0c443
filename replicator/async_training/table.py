"""Table: which variables workers share, and the copies of all others.

Variables that a step adds to (``assign_add``, ``assign_sub``, scatter) are shared, and
so are those that ``wrap_optimizer`` updates. A variable that a step overwrites
(``assign``: batch-norm statistics, Keras metrics, states of random generators) has a
copy per replica of every worker, on the server of the user's own variable. Between
steps the user's own variable reads as their mean; see ``variables.table``. Dispatches
are concurrent, so both are made coherent before the first and after the last of them.
"""

from __future__ import annotations

import dataclasses
import weakref
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.core import context
from replicator.core.step import traced_once
from replicator.variables.coherence import Coherence
from replicator.variables.kinds import Kind
from replicator.variables.table import Entry, VariableTable

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Sequence

    from replicator.async_training.commit import CommitState
    from replicator.core.topology import Topology


class ServerTable(VariableTable):
    """The variables of all workers."""

    def __init__(
        self,
        topology: Topology,
        num_workers: int,
        placement: Placement,
        commit_states: Sequence[CommitState],
    ) -> None:
        super().__init__(topology)
        self.num_replicas = topology.num_replicas  # of the whole cluster
        self.num_workers = num_workers
        self.placement = placement
        self.commit_states = commit_states  # by server
        self.is_published = True  # the user's variables hold what the copies hold
        self._coherent: list[Entry] = []
        self._functions: dict[str, Any] = {}

    def refresh(self) -> None:
        """Resets copies of variables that were changed outside, while nothing runs."""
        self.placement.refresh_counters()
        self._run("refresh")

    def publish(self) -> None:
        """Gives the user's variables what the copies of all replicas hold."""
        if not self.is_published:
            self._run("publish")
        self.is_published = True

    def _run(self, name: str) -> None:
        entries = [entry for entry in self.entries() if entry.last_synced is not None]
        if not entries:
            return
        if list(map(id, entries)) != list(map(id, self._coherent)):
            self._coherent = entries
            coherence = Coherence(entries, self._topology, self.resets)
            self._functions = {
                "refresh": traced_once(coherence.refresh),
                "publish": traced_once(coherence.publish),
            }
        self._functions[name]()
        _tf_compat.wait_for_remote_ops()

    def is_current(self, entry: Entry) -> bool:
        """True: what is on a server stays there."""
        del entry
        return True

    def worker_entry(self, worker: int, variable: Any) -> Entry:
        """The entry of a variable, with the copies of one worker's replicas."""
        kind, share = self.kind(variable), self.num_replicas // self.num_workers
        for commit_state in self.commit_states:
            # Each worker has its own in the place of worker 0's.
            if variable is commit_state.sequence_numbers[0]:
                copies = (commit_state.sequence_numbers[worker],) * share
                return Entry(
                    variable=variable, kind=kind, copies=copies, last_synced=None
                )
        entry = self.require(variable, kind)
        copies = entry.copies[worker * share : (worker + 1) * share]
        return dataclasses.replace(entry, copies=copies)

    def _copies(self, variable: Any, kind: Kind) -> tuple[Any, ...]:
        if kind is Kind.MIRRORED:
            return (variable,) * self.num_replicas
        copies = []
        for value in self._initial_values(variable, kind):
            with tf.device(variable.device):
                copies.append(
                    context.own_variable(
                        value, dtype=variable.dtype, shape=variable.shape
                    )
                )
        return tuple(copies)


SCALAR_BYTES = 8
# An attribute of an optimizer's counter: those of the other servers, by device.
_OTHERS = "_replicator_counters"


class Placement:
    """Deals variables to parameter servers; each goes to the least loaded one."""

    def __init__(self, devices: Sequence[str]) -> None:
        self.devices = tuple(devices)  # of the servers
        self.num_bytes = [0] * len(devices)  # of the variables on each
        # Of updates, of all optimizers: those that are counted on several servers.
        self._counters: weakref.WeakValueDictionary[int, Any] = (
            weakref.WeakValueDictionary()
        )

    def scope(self) -> Any:
        """Puts the variables that are made inside on servers."""
        return tf.variable_creator_scope(self._create)

    def on(self, device: str) -> contextlib.AbstractContextManager[None]:
        """Puts the variables that are made inside on one server."""
        return context.holding("server", device)

    def server_of(self, variable: Any) -> int | None:
        """Index of the server that holds a variable; None if it is elsewhere."""
        device = variable.device
        return self.devices.index(device) if device in self.devices else None

    def counter_on(self, server: int, counter: Any) -> Any:
        """What a server counts in, under its lock, for the counter of an optimizer.

        Servers apply the updates of several workers in different orders, so an update
        that depends on its number takes the one of its own server.
        """
        device = self.devices[server]
        if counter.device == device:
            return counter
        self._counters[id(counter)] = counter
        others = vars(counter).setdefault(_OTHERS, {})
        if device not in others:
            with tf.init_scope(), context.allowed(), tf.device(device):
                others[device] = context.own_variable(tf.identity(counter))
        return others[device]

    def refresh_counters(self) -> None:
        """Gives all servers what the user has written or restored; nothing may run."""
        counters = list(self._counters.values())
        for counter in counters:
            for other in vars(counter)[_OTHERS].values():
                other.assign(counter.read_value(), read_value=False)
        if counters:
            _tf_compat.wait_for_remote_ops()

    def _create(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        value = kwargs.get("initial_value")
        value = tf.convert_to_tensor(
            value() if callable(value) else value, dtype=kwargs.get("dtype")
        )
        kwargs["initial_value"] = value
        size = max(int(value.shape.num_elements()) * value.dtype.size, SCALAR_BYTES)
        device = context.held("server")
        if device is None:
            # Scalars (counters, learning rates) keep together: updates need them all.
            is_scalar = value.shape.rank == 0
            least = self.num_bytes.index(min(self.num_bytes))
            device = self.devices[0 if is_scalar else least]
        self.num_bytes[self.devices.index(device)] += size
        # A device scope of the user's names devices of this process, or of a replica.
        with tf.device(None), tf.device(device):
            return next_creator(**kwargs)
