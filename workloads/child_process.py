"""Runs modules of this package in child processes, and reports why they failed.

Does not import TensorFlow: it starts actors and evaluators.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROOT = pathlib.Path(__file__).resolve().parents[1]

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Mesa's software renderer draws in the calling thread.
    "LP_NUM_THREADS": "0",
}
"""Variables that restrict NumPy and OpenGL of a process to one core."""


def environment(
    changes: Mapping[str, str] | None = None,
    *,
    variables: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Returns the environment of a child that can import what this process can."""
    paths = (str(_ROOT), *variables.get("PYTHONPATH", "").split(os.pathsep), *sys.path)
    # Each once; an empty entry would mean the current directory.
    found = os.pathsep.join(dict.fromkeys(path for path in paths if path))
    return {**variables, **(changes or {}), "PYTHONPATH": found}


def run_module(
    module: str,
    argument: str,
    *,
    title: str,
    most_sec: float,
    variables: Mapping[str, str] = os.environ,
) -> None:
    """Runs ``python -m module argument`` and waits until it exits."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, argument],
            env=environment(variables=variables),
            capture_output=True,
            text=True,
            timeout=most_sec,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError(
            f"{title} took more than {most_sec} s, where about 10 are usual: is the "
            "machine overloaded? Run it again when it is not"
        ) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ValueError(
            f"{title} ended with exit code {done.returncode} ({last}): run "
            f"{'-m ' + module!r} with a path to see all of its output"
        )
