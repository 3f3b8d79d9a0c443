"""``fit`` of Keras one step at a time, since it owns its loop and the harness another.

``fit`` runs in a thread of its own. Before each batch a callback waits until a step is
asked for; that is outside of Keras' and of the replicator's step. The callback reads
the logs where ``fit`` does without it: beside the loop, in Keras' own executor.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

import keras

if TYPE_CHECKING:
    from collections.abc import Callable


class FitLoop:
    """One call of ``fit``, which waits before each of its steps."""

    def __init__(
        self, model: keras.Model, dataset: Any, *, steps_per_epoch: int
    ) -> None:
        """Prepares; ``fit`` is called for the first step."""
        self._channel = channel = _Channel()
        self._num_started = self._num_read = 0
        self._steps_per_epoch = steps_per_epoch
        self._means: dict[int, float] = {}
        self._last_mean = 0.0

        # Not of this object: the thread must not keep it, or it would never end.
        def train() -> None:
            try:
                model.fit(
                    dataset,
                    epochs=_ENDLESS,
                    steps_per_epoch=steps_per_epoch,
                    shuffle=False,  # the pipelines do it
                    verbose=0,
                    callbacks=[_Turns(channel, steps_per_epoch)],
                )
            except _EndOfLoop:
                pass
            except BaseException as error:  # noqa: BLE001 (raised where it is waited for)
                channel.found.put(error)

        self._thread = threading.Thread(target=train, name="fit", daemon=True)

    def start(self) -> Callable[[], float]:
        """Starts a step; returns a function that waits for it and returns its loss.

        The functions are to be called in the order of the steps.
        """
        if not self._num_started:
            self._thread.start()
        self._num_started += 1
        self._channel.asked.put(True)
        return self._read

    def _read(self) -> float:
        step = self._num_read
        while step not in self._means:
            found = self._channel.found.get()
            if isinstance(found, BaseException):
                raise found
            self._means[found[0]] = found[1]
        mean = self._means.pop(step)
        self._num_read += 1
        # Keras logs the mean since the epoch has begun.
        number = step % self._steps_per_epoch
        loss = mean + number * (mean - self._last_mean)
        self._last_mean = mean
        return loss

    def close(self) -> None:
        """Ends ``fit`` before its next step."""
        self._channel.asked.put(False)
        if self._thread.is_alive():
            self._thread.join()

    def __del__(self) -> None:
        self._channel.asked.put(False)


class _Channel:
    """Queues between the thread of ``fit`` and the one that asks for steps."""

    def __init__(self) -> None:
        self.asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self.found: queue.SimpleQueue[Any] = queue.SimpleQueue()


class _EndOfLoop(BaseException):
    """No further step is asked for; not an error that anything else handles."""


class _Turns(keras.callbacks.Callback):
    """Waits before each batch, and passes its logs on."""

    # Keras calls on_train_batch_end in its executor then, as without any callback.
    async_safe = True

    def __init__(self, channel: _Channel, steps_per_epoch: int) -> None:
        super().__init__()
        self._channel = channel
        self._steps_per_epoch = steps_per_epoch
        self._first_step = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes which step is the first of the epoch."""
        del logs
        self._first_step = epoch * self._steps_per_epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Waits until the step is asked for."""
        del batch, logs
        if not self._channel.asked.get():
            raise _EndOfLoop

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Passes the mean loss of the epoch so far on."""
        mean = float((logs or {})["loss"])
        self._channel.found.put((self._first_step + batch, mean))


_ENDLESS = 2**31
