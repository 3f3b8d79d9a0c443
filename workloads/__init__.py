"""Reference workloads: programs that the harness measures, and that run by themselves.

Imported everywhere, so it does not import TensorFlow.
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Mapping

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
