"""The command line with the worker of the harness's tests, as jobs of Slurm start it.

``HARNESS_REAL_WORKER`` leaves the true worker in place.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))

import known_digests

from harness.cli import commands, running
from harness.cli.main import main

FAKE_WORKER = Path(__file__).resolve().parents[1] / "harness" / "fake_worker.py"

if __name__ == "__main__":
    commands.HARNESS_COMMAND = (sys.executable, str(Path(__file__).resolve()))
    known_digests.use()
    # The report of a study has tests of its own, and takes longer than these trials.
    running._conclude = lambda _store, *, is_json: None
    overrides = {"canary": lambda _core: 0.2}
    if not os.environ.get("HARNESS_REAL_WORKER"):
        overrides["worker_command"] = (sys.executable, str(FAKE_WORKER))
    sys.exit(main(run_overrides=overrides))
