"""Placement: which parameter server stores which variable."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.async_training.counters import ServerCounters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCALAR_BYTES = 8


class Placement:
    """Deals variables to parameter servers; each goes to the least loaded one.

    Attributes:
      devices: Full device name of every server, by index.
      num_bytes: Bytes of the variables on each.
      counters: In which servers count the updates of optimizers.
    """

    def __init__(self, num_servers: int) -> None:
        self.devices = tuple(
            f"/job:ps/replica:0/task:{index}/device:CPU:0"
            for index in range(num_servers)
        )
        self.num_bytes = [0] * num_servers
        self.counters = ServerCounters()
        self._forced = threading.local()

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Puts the variables that are made inside on servers."""
        with tf.variable_creator_scope(self._create):
            yield

    @contextlib.contextmanager
    def on(self, device: str) -> Iterator[None]:
        """Puts the variables that are made inside on one server."""
        before = getattr(self._forced, "device", None)
        self._forced.device = device
        try:
            yield
        finally:
            self._forced.device = before

    def server_of(self, variable: Any) -> int | None:
        """Index of the server that holds a variable; None if it is elsewhere."""
        device = variable.device
        return self.devices.index(device) if device in self.devices else None

    def _create(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        value = kwargs.get("initial_value")
        value = tf.convert_to_tensor(
            value() if callable(value) else value, dtype=kwargs.get("dtype")
        )
        kwargs["initial_value"] = value
        size = max(int(value.shape.num_elements()) * value.dtype.size, SCALAR_BYTES)
        device = getattr(self._forced, "device", None)
        if device is None:
            # Scalars (counters, learning rates) keep together: updates need them all.
            is_scalar = value.shape.rank == 0
            least = self.num_bytes.index(min(self.num_bytes))
            device = self.devices[0 if is_scalar else least]
        self.num_bytes[self.devices.index(device)] += size
        # A device scope of the user's names devices of this process, or of a replica.
        with tf.device(None), tf.device(device):
            return next_creator(**kwargs)
