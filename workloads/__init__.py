"""Reference workloads: programs that the harness measures, and that run by themselves.

``WORKLOADS`` has each by name: its facts, and how it is built on a replicator;
``build_control`` leaves out a part. ``keras_workload`` makes a workload of a compiled
Keras model. ``Training`` and ``ImageTraining`` are what one of your own derives from,
with ``compiled`` and ``assign``. All are loaded on first use: this file is imported
everywhere, also by peers, whose environments lack our packages.
"""

from __future__ import annotations

import importlib
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from workloads.catalog import WORKLOADS
    from workloads.common.training import ImageTraining, Training, assign, compiled
    from workloads.controls import build_control
    from workloads.keras_fit.own_model import keras_workload

__all__ = ["ONE_THREAD", "WORKLOADS", "ImageTraining", "Training", "assign"]
__all__ += ["build_control", "child_environment", "compiled", "keras_workload"]
_MODULES = {
    "WORKLOADS": "catalog",
    "build_control": "controls",
    "keras_workload": "keras_fit.own_model",
}

_ROOT = pathlib.Path(__file__).resolve().parents[1]

# Variables that restrict NumPy and OpenGL of a process to one core.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Mesa's software renderer draws in the calling thread.
    "LP_NUM_THREADS": "0",
}


def child_environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the environment of a child that can import what this process can."""
    paths = (str(_ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep), *sys.path)
    # Each once; an empty entry would mean the current directory.
    search_path = os.pathsep.join(dict.fromkeys(path for path in paths if path))
    return {**os.environ, **(changes or {}), "PYTHONPATH": search_path}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES.get(name, "common.training")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
