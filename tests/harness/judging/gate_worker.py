"""Stands in for the worker of a gate: its steps take longer where its sources say so.

The factor is in ``slowdown.txt`` beside the packages that run, so two revisions differ
by what their trees hold. Steps of one process vary by less than 1 %.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fake_worker

import harness

_FILE = Path(harness.__file__).resolve().parents[1] / "slowdown.txt"


class Program(fake_worker.Program):
    """A program whose step takes 0.1 s times the factor of its sources."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)
        factor = float(_FILE.read_text()) if _FILE.is_file() else 1.0
        self._step_ns = round((0.09 * 1e9 + 0.1 * self._step_ns) * factor)


if __name__ == "__main__":
    fake_worker.Program = Program
    sys.exit(fake_worker.main())
