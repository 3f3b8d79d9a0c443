"""Prints a line after each step, and knows nothing of studies.

Its steps are in a child with a session of its own. ``BEHAVIOR`` chooses what is wrong,
and ``LOG``, a folder, gets the time of each step.
"""

import os
import pathlib
import subprocess
import sys
import time

BEHAVIOR = os.environ.get("BEHAVIOR", "")
STEP_SEC = float(os.environ.get("STEP_SEC", "0.01"))


def work() -> None:
    """Computes for the time of a step."""
    end = time.process_time() + STEP_SEC
    while time.process_time() < end:
        pass


def train() -> None:
    """Steps for ever, or as long as it is told."""
    trial = pathlib.Path(os.environ["REPLICATOR_HARNESS_TRIAL"]).name
    lines = []
    with (pathlib.Path(os.environ["LOG"]) / trial).open("a", buffering=1) as log:
        for step in range(10**6):
            work()
            log.write(f"{time.monotonic_ns()}\n")
            number = 10 * step if BEHAVIOR == "each tenth" else step % 50
            text = "one" if BEHAVIOR == "no number" else number
            word = "speed" if BEHAVIOR == "other words" else "step"
            lines.append(f"{word} {text}\n")
            if BEHAVIOR != "bursts" or step % 10 == 0:
                os.write(1, "".join(lines).encode())
                lines.clear()
            if step == 2 and BEHAVIOR in ("ends", "other words"):
                return
            if step == 2 and BEHAVIOR == "exits":
                sys.exit(3)


if sys.argv[1] == "child":
    train()
else:
    child = [sys.executable, __file__, "child"]
    sys.exit(subprocess.run(child, start_new_session=True, check=False).returncode)
