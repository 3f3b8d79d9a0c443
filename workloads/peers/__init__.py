"""The steps of our workloads in other frameworks, measured beside the backends.

Their environments have no packages of ours: programs import this file and ``inputs``.
What they read is ``Export`` and ``Share``, which are loaded on first use: they need
NumPy, and the planner does not.
"""

from typing import Any

__all__ = ["EXPORT_SETTINGS", "EXPORT_VARIABLE", "Export", "Share"]

EXPORT_VARIABLE = "REPLICATOR_HARNESS_EXPORT"
"""Environment variable with the folder of what a trial of a peer begins with."""
EXPORT_SETTINGS = "settings.json"
"""Its file with settings and losses."""


def __getattr__(name: str) -> Any:
    if name not in {"Export", "Share"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from workloads.peers import inputs

    return getattr(inputs, name)
