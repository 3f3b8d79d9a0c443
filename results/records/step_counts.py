"""Step counts: what a step of a workload has, alike in each run of the same code.

They are figures of the window of a trial, beside its rates. A gate compares them
exactly.
"""

from __future__ import annotations

from typing import Final

GRAPH_NODES: Final = "graph_nodes"
DISPATCHES: Final = "dispatches"
RETRACES: Final = "retraces"
UNITS: Final = {
    GRAPH_NODES: "nodes",
    DISPATCHES: "functions",
    RETRACES: "functions",
    "collectives": "buckets",
    "collective_bytes": "bytes",
    "variable_bytes": "bytes",
    "activation_bytes": "bytes",
}
"""Unit of each count, by its name."""
OF_PLANS: Final = (
    "collectives",
    "collective_bytes",
    "variable_bytes",
    "activation_bytes",
)
"""Those that only backends of this project know."""
FEWEST_WARMUP_STEPS: Final = 2
"""The last of these steps is counted; the first one traces, and does more."""
EXACT: Final = "exact: a count has no interval"
"""The method of a figure that is the same in each run."""


def words(name: str) -> str:
    """Returns how readers see the name of a count."""
    return name.replace("_", " ") if name in UNITS else name
