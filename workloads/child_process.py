"""Processes that run modules of this package: what they inherit, and why they failed.

Imports no TensorFlow: actors and evaluators are started from here.
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
    # Mesa's software renderer draws in the thread that asks.
    "LP_NUM_THREADS": "0",
}
"""Variables that keep NumPy and OpenGL of a process to the one core it works on."""


def environment(
    changes: Mapping[str, str] | None = None,
    *,
    variables: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Returns the variables of a process that can import what this one can.

    Args:
      changes: Variables to add or replace.
      variables: All others.
    """
    paths = (str(_ROOT), *variables.get("PYTHONPATH", "").split(os.pathsep), *sys.path)
    # Each once; an empty one would be the directory that the process works in.
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
    """Runs ``python -m module argument`` and waits for its end.

    Args:
      module: Dotted name.
      argument: Its only argument.
      title: What is done, for messages, such as ``training the digits classifier``.
      most_sec: Seconds after which it is ended.
      variables: That it gets; see ``environment``.

    Raises:
      ValueError: It failed, or took too long.
    """
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
            f"{'-m ' + module!r} with a path to see all of it"
        )
