"""Base of the actor pools: a thread that manages the actors, and its error."""

from __future__ import annotations

import abc
import atexit
import threading
from typing import TYPE_CHECKING

from workloads.d4pg.window import Counters

if TYPE_CHECKING:
    from typing_extensions import Self

    from workloads.d4pg.acting.settings import ActorSettings
    from workloads.d4pg.acting.weights import SharedWeights
    from workloads.d4pg.replay.streams import StepStreams


class ActorError(RuntimeError):
    """Actors fail repeatedly; the message says how the last one did."""


class BasePool(abc.ABC):
    """The actors of one replay, managed by a thread.

    The user of the pool calls ``check`` regularly, which raises the error of the
    thread.
    """

    def __init__(
        self,
        settings: ActorSettings,
        streams: StepStreams,
        weights: SharedWeights | None = None,
    ) -> None:
        _check_numbers(settings, streams)
        self._settings = settings
        self._streams = streams
        self._weights = weights
        self._num_restarts = 0
        self._error: Exception | None = None
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="actors", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def check(self) -> None:
        """Raises if actors cannot start, or failed more often than allowed."""
        if self._error is not None:
            raise self._error

    @abc.abstractmethod
    def pause(self) -> None:
        """Stops the actors until ``resume``; harmless if they are stopped."""

    @abc.abstractmethod
    def resume(self) -> None:
        """Lets stopped actors continue; the time in between is not theirs."""

    def counters(self) -> Counters:
        """Returns the counters of the actors so far, without those of sampling."""
        streams = self._streams
        num_episodes = int(streams.num_episodes.sum())
        return Counters(
            # A final observation is a record, but no action was taken there.
            num_environment_steps=streams.num_inserted() - num_episodes,
            num_episodes=num_episodes,
            idle_sec=float(streams.idle_sec.sum()),
            elapsed_sec=float(streams.elapsed_sec.sum()),
            num_refused=int(streams.num_refused.sum()),
            num_restarts=self._num_restarts,
        )

    def close(self) -> None:
        """Terminates the actors and waits until they have exited."""
        atexit.unregister(self.close)
        self._is_closing.set()
        self._thread.join()

    def _start_thread(self) -> None:
        """Starts the thread; the last statement of a constructor."""
        atexit.register(self.close)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # noqa: BLE001 - raised by check()
            self._error = error
        finally:
            self._end_all()

    @abc.abstractmethod
    def _serve(self) -> None:
        """Starts actors and replaces them, until the pool closes or has an error."""

    @abc.abstractmethod
    def _end_all(self) -> None:
        """Terminates every started actor."""


def _check_numbers(settings: ActorSettings, streams: StepStreams) -> None:
    asked = (settings.num_actors, settings.num_streams)
    if asked != (streams.spec.num_actors, streams.spec.num_streams):
        raise ValueError(
            f"{asked[0]} actors with {asked[1]} environments cannot write streams that "
            f"were made for {streams.spec.num_actors} actors with "
            f"{streams.spec.num_streams}: give both the same numbers"
        )
