"""D4PG as the harness steps it: windows, pauses, checks of actors and replay."""

from __future__ import annotations

import atexit
import collections
import contextlib
import math
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import tensorflow as tf

import replicator
from replicator import catalog
from workloads.controls import ReusingReplicator
from workloads.metrics import quality
from workloads.program import StepProgram
from workloads.spec import SYNTHETIC

from .study import OF_WINDOW

if TYPE_CHECKING:
    from workloads.spec import QualityMetric

    from .train import Training

# Above this fraction of clipped targets, a warning says that the atoms are badly
# chosen.
_MOST_CLIPPED = 0.05
Counts = Any
"""A ``collections.Counter`` of numbers by name, times among them."""
# Learner steps whose clipping and policy lag are kept for a window's figures.
_NUM_RECENT = 1_000


class D4PGProgram(StepProgram):
    training: Training

    def __init__(
        self, repl: replicator.Replicator, training: Training, info: Any
    ) -> None:
        # A control that reads one batch needs no actors, which would take its cores.
        training.has_actors &= not isinstance(repl, ReusingReplicator)
        atexit.register(self.close)
        super().__init__(repl, training, info)
        self._clipped: collections.deque[Any] = collections.deque(maxlen=_NUM_RECENT)
        self._lags: collections.deque[float] = collections.deque(maxlen=_NUM_RECENT)
        self._window = Window(self._now)

    def _input_mode(self) -> replicator.InputReplicationMode:
        """Returns the number of actor pools and replays: one per learner process."""
        modes, repl = replicator.InputReplicationMode, self._repl
        data = self.training.data
        if data == SYNTHETIC or repl.num_programs == repl.num_workers:
            return modes.PER_WORKER
        if "input_single" in catalog.entry_of(type(repl)).lacks:
            raise ValueError(
                f"data {data!r} needs actors beside each learner, but the workers of "
                f"{type(repl).__name__} only serve TensorFlow: use --data synthetic "
                "there, or a backend such as multi_worker"
            )
        return modes.SINGLE

    def _start(self, num_steps: int) -> Callable[[], float]:
        """Runs learner steps; the loss is the critic's, in nats."""
        loss = math.nan
        for _ in range(num_steps):
            with self._explained():
                outputs = self.training.learn(self._inputs)
            loss = self._reader_of(outputs["loss"])()
            self._num_steps += 1
            if not math.isfinite(loss):
                break  # the caller stops here
            self.training.pass_on(outputs)
            self._clipped.append(outputs["clipped"])
            for experience in self.training.experiences:
                self._lags.append(self._num_steps - experience.policy_version())
        return lambda: loss

    def read(self, num_steps: int = 1) -> None:
        super().read(num_steps)
        self._num_steps += num_steps

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Checks actors and replay before batches are read, and after a failure."""
        for experience in self.training.experiences:
            experience.pool.check()
        try:
            yield
        except tf.errors.OpError:
            for experience in self.training.experiences:
                if experience.error is not None:
                    raise experience.error from None
            raise

    def start_window(self) -> None:
        self._clipped.clear()
        self._lags.clear()
        self._window = Window(self._now)

    def pause(self) -> None:
        for experience in self.training.experiences:
            experience.pause()
        self._window.pause()

    def resume(self) -> None:
        self._window.resume()
        for experience in self.training.experiences:
            experience.resume()

    def _now(self) -> Counts:
        now = {"window_sec": time.monotonic(), "num_learner_steps": self._num_steps}
        return added([now, *self._counters()])

    def window_metrics(self) -> tuple[QualityMetric, ...]:
        """Returns rates of learner and actors since ``start_window``."""
        values = [float(v) for clipped in self._clipped for v in clipped]
        clipped = sum(values) / max(len(values), 1)
        if clipped > _MOST_CLIPPED:
            config = self.training.config
            warnings.warn(
                f"{clipped:.0%} of the target distributions' probability lies outside "
                f"the atoms, from {config.lowest_return:g} to "
                f"{config.highest_return:g}: set options lowest_return and "
                "highest_return to the range of discounted returns",
                stacklevel=2,
            )
        counted = {
            **self._window.changes(),
            "num_pipelines": len(self.training.experiences),
            "num_processes": 1,
            "clipped": clipped,
            "policy_lag": sum(self._lags) / max(len(self._lags), 1),
        }
        processes = self._gather(counted)
        window_sec = max(process["window_sec"] for process in processes)
        num_steps = int(processes[0]["num_learner_steps"])
        if not num_steps or window_sec <= 0:
            return ()
        totals = added(processes)
        totals["window_sec"], totals["num_learner_steps"] = window_sec, num_steps
        totals["num_transitions"] = num_steps * self.global_batch_size
        rates = ((metric, metric.of(totals)) for metric in OF_WINDOW if metric.of)
        return tuple(
            quality.counted(metric, value, num_examples=num_steps)
            for metric, value in rates
            if value is not None
        )

    def num_environment_steps(self) -> int | None:
        if self.training.data == SYNTHETIC:
            return None
        return sum(self._gather(added(self._counters())["num_environment_steps"]))

    def _counters(self) -> list[dict[str, float]]:
        return [experience.counters() for experience in self.training.experiences]

    def close(self) -> None:
        self.training.close()
        atexit.unregister(self.close)


def added(counted: Iterable[Mapping[str, float]]) -> Counts:
    """Returns the sums of numbers by name; one that nobody has is 0."""
    total: Counts = collections.Counter()
    for each in counted:
        total.update(each)
    return total


class Window:
    """Changes of counters since a point in time, without the pauses since."""

    def __init__(self, read: Callable[[], Counts]) -> None:
        self._read = read
        self._start: Counts | None = read()
        self._before: Counts = collections.Counter()

    def pause(self) -> None:
        self._before, self._start = self.changes(), None

    def resume(self) -> None:
        self._start = self._read()

    def changes(self) -> Counts:
        if self._start is None:
            return self._before
        changes = added([self._before, self._read()])
        changes.subtract(self._start)
        return changes
