"""A real sweep in a process of its own, as a user starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def sweep(tmp_path):
    """Returns a function that runs ``sweep``; its study is ``runs/s``."""

    def run(*options, timeout_sec=900, as_users=False):
        paths = [str(Path(__file__).resolve().parents[2])]
        if not as_users:
            paths.append(os.environ.get("PYTHONPATH", ""))
        fixed = ("--study=s", f"--runs-dir={tmp_path / 'runs'}")
        return subprocess.run(
            [sys.executable, "-m", "harness", "sweep", *options, *fixed],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_sec,
        )

    return run
