"""The policy's weights in shared memory: the learner writes, actors read.

A sequence lock: the counter is odd while weights are being written; a reader that saw
it change has read inconsistent weights and reads again. The learner never waits for an
actor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workloads.d4pg.replay.shared_memory import SharedArrays

if TYPE_CHECKING:
    import numpy as np

_MOST_ATTEMPTS = 100
_NOTHING = -1


class SharedWeights:
    """One flat vector of weights and its version.

    Attributes:
      num_floats: Length of the vector.
    """

    def __init__(self, num_floats: int, descriptor: int | None = None) -> None:
        self.num_floats = num_floats
        self._shared = SharedArrays(
            (
                ("sequence", (1,), "int64"),
                ("version", (1,), "int64"),
                ("weights", (num_floats,), "float32"),
            ),
            descriptor,
        )
        self._sequence = self._shared["sequence"]
        self._version = self._shared["version"]
        self._weights = self._shared["weights"]
        if descriptor is None:
            self._version[0] = _NOTHING

    @property
    def descriptor(self) -> int:
        """File descriptor of the memory; a child that inherits it can attach."""
        return self._shared.descriptor

    def publish(self, weights: np.ndarray, version: int) -> None:
        """Publishes new weights to readers; only one process may call it."""
        if weights.shape != self._weights.shape:
            raise ValueError(
                f"weights of shape {weights.shape} cannot be published: a vector "
                f"of length {self.num_floats} is expected"
            )
        self._sequence[0] += 1
        self._weights[:] = weights
        self._version[0] = version
        self._sequence[0] += 1

    def read(self, *, newer_than: int = _NOTHING) -> tuple[np.ndarray, int] | None:
        """Returns a copy of the weights and their version, or None."""
        for _ in range(_MOST_ATTEMPTS):
            before = int(self._sequence[0])
            version = int(self._version[0])
            if version <= newer_than:
                return None
            if before % 2 == 0:
                weights = self._weights.copy()
                if int(self._sequence[0]) == before:
                    return weights, version
        return None

    def close(self) -> None:
        """Releases the memory, once no array of it is in use."""
        self._shared.close()
