"""What all pools of actors have in common: a thread that serves them, and its error."""

from __future__ import annotations

import abc
import atexit
import threading
from typing import TYPE_CHECKING

from workloads.d4pg.acting.counters import ActorCounters, count

if TYPE_CHECKING:
    from typing_extensions import Self

    from workloads.d4pg.acting.settings import ActorSettings
    from workloads.d4pg.acting.weights import SharedWeights
    from workloads.d4pg.replay.streams import StepStreams


class ActorError(RuntimeError):
    """Actors die again and again; says how the last one did."""


class BasePool(abc.ABC):
    """The actors of one replay, served by a thread.

    Whoever uses the pool calls ``check`` at times, which raises what the thread ended
    with.

    Args:
      settings: What actors do.
      streams: What they write; with as many streams and actors as the settings have.
      weights: What they act by; None for actors that act at random.

    Raises:
      ValueError: The streams were made for another number of environments or actors.
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
        """Raises if actors cannot start, or died more often than is allowed.

        Raises:
          ValueError: An actor cannot start, and would not at another time; its line.
          ActorError: More than ``max_restarts`` died.
        """
        if self._error is not None:
            raise self._error

    def counters(self) -> ActorCounters:
        """Returns what has happened so far."""
        return count(self._streams, self._num_restarts)

    def close(self) -> None:
        """Ends the actors; returns when they are gone."""
        atexit.unregister(self.close)
        self._is_closing.set()
        self._thread.join()

    def _start_thread(self) -> None:
        """Begins to serve; the last thing that a constructor does."""
        atexit.register(self.close)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # noqa: BLE001 - raised where the pool is used
            self._error = error
        finally:
            self._end_all()

    @abc.abstractmethod
    def _serve(self) -> None:
        """Starts actors and replaces them, until the pool closes or has an error."""

    @abc.abstractmethod
    def _end_all(self) -> None:
        """Ends every actor that was started."""


def _check_numbers(settings: ActorSettings, streams: StepStreams) -> None:
    asked = (settings.num_actors, settings.num_streams)
    if asked != (streams.spec.num_actors, streams.spec.num_streams):
        raise ValueError(
            f"{asked[0]} actors with {asked[1]} environments cannot write streams that "
            f"were made for {streams.spec.num_actors} actors with "
            f"{streams.spec.num_streams}: give both the same numbers"
        )
