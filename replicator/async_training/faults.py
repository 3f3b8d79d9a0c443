"""Faults: detects that a parameter server is lost, and which one.

A lost worker can come back, because it has no state of its own. The variables of a lost
parameter server are lost, so the job has to restart from a checkpoint.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import tensorflow as tf

from replicator._tf import compat as _tf_compat
from replicator.cluster.liveness.peer import Peer
from replicator.cluster.liveness.watch import WorkerWatch
from replicator.errors import ServerLostError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class ServerWatch:
    """The client's watch over its parameter servers.

    Attributes:
      error: What was raised when a server was lost; raised again by all later calls.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        """Starts watching."""
        self.error: ServerLostError | None = None
        self._addresses = tuple(addresses)
        self._peers = [Peer(address) for address in addresses]
        # Ends calls that wait for one which hangs.
        self._watch = WorkerWatch(
            {
                f"/job:ps/replica:0/task:{index}": (str(index), address)
                for index, address in enumerate(addresses)
            }
        )

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """Turns TensorFlow's errors about a lost server into one that names it."""
        self.check()
        try:
            yield
        except tf.errors.OpError as error:
            lost = self.explain(error)
            if lost is None:
                raise
            raise lost from error

    def check(self) -> None:
        """Raises the error of a server that was found to be lost."""
        if self.error is not None:
            raise self.error

    def find_lost(self) -> ServerLostError | None:
        """Looks for a server whose process has exited or hangs."""
        for index, peer in enumerate(self._peers):
            if self.error is None and peer.has_ended():
                self.error = self._lost(index, "does not respond")
        if self.error is None and self._watch.lost:
            lost = self._watch.lost.values()
            name, timeout_sec = min(lost, key=lambda server: int(server[0]))
            self.error = self._lost(int(name), f"did not respond for {timeout_sec:g} s")
        return self.error

    def explain(self, error: BaseException) -> ServerLostError | None:
        """The error that names the lost server which an error comes from, or None."""
        if self.error is not None:
            return self.error
        failed = _tf_compat.failed_server(error)
        if self.find_lost() is None and failed is not None:
            self.error = self._lost(failed, "was lost during a step")
        if self.error is not None:
            self.error.__cause__ = error
        return self.error

    def _lost(self, index: int, what: str) -> ServerLostError:
        return ServerLostError(
            f"parameter server {index} ({self._addresses[index]}) {what}, and its "
            "variables are lost; restart all servers and workers, restart the chief, "
            "and restore the last checkpoint"
        )
