"""Benchmarks measure in fresh processes: each runs its own module with ``--child``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def run_child(
    module: str, *arguments: str, variables: Mapping[str, str] | None = None
) -> Any:
    """Runs ``python -m module --child arguments`` and returns what it has measured.

    Args:
      module: Of the benchmark.
      arguments: Those after ``--child``.
      variables: Environment variables to add or replace.

    Returns:
      The JSON in the last line of its standard output.

    Raises:
      CalledProcessError: The process failed; it has said why on standard error.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, "--child", *arguments],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **(variables or {})},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.strip().splitlines()[-1])
