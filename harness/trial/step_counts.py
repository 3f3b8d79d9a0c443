"""Counts one step of a trial: its graph, what it starts, and what replicas exchange.

The last warm-up step is counted, before the window: that takes a few hundredths of a
second, and is in no figure. No number depends on time, so it is the same in each run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from results.records import measuring

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

_PROTOCOL = "of the last warm-up step"


class Started(Protocol):
    """A function that a step has started."""

    def num_nodes(self) -> int:
        """Returns how many nodes its graph has."""


def exact_metric(
    name: str, value: float, *, unit: str, n: int, protocol: str
) -> dict[str, object]:
    """Returns the fields of a ``window_metric`` line of a count."""
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "num_examples": n,
        "low": value,
        "high": value,
        "confidence": 1.0,
        "method": measuring.EXACT,
        "protocol": protocol,
    }


class StepCounter:
    """Counts what a step has in each run."""

    replicator: Any  # What the program is built on.

    def __init__(
        self,
        recorded: Callable[[], AbstractContextManager[Sequence[Started]]],
        count_traces: Callable[[], int],
    ) -> None:
        """Prepares counting."""
        self._recorded = recorded
        self._count_traces = count_traces
        self._num_traces = 0

    def start(self) -> None:
        """The first step has ended: what is traced from now on is traced again."""
        self._num_traces = self._count_traces()

    def run(self, run_step: Callable[[], object]) -> list[dict[str, object]]:
        """Runs the last warm-up step; returns the fields of what it counted."""
        with self._recorded() as started:
            run_step()
        num_retraces = self._count_traces() - self._num_traces
        found = {measuring.RETRACES: num_retraces, **self.replicator.counts()}
        if started:  # some backends start their steps in another way
            found[measuring.DISPATCHES] = len(started)
            found[measuring.GRAPH_NODES] = sum(one.num_nodes() for one in started)
        return [
            exact_metric(name, found[name], unit=unit, n=1, protocol=_PROTOCOL)
            for name, unit in measuring.UNITS.items()
            if name in found
        ]
