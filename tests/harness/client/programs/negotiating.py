"""A training loop that connects, and whose thread computes all the time, as Horovod's.

``LOG``, a folder, gets the times at which the thread works.
"""

import os
import pathlib
import threading
import time

import scaling_client

STEP_SEC = 0.01


def work(sec: float) -> None:
    """Computes, in this thread."""
    end = time.thread_time() + sec
    while time.thread_time() < end:
        pass


def negotiate() -> None:
    """Works in cycles, whatever the loop does."""
    trial = pathlib.Path(os.environ["REPLICATOR_HARNESS_TRIAL"]).name
    with (pathlib.Path(os.environ["LOG"]) / trial).open("a", buffering=1) as log:
        while True:
            work(0.001)
            log.write(f"{time.monotonic_ns()}\n")
            time.sleep(0.001)


if __name__ == "__main__":
    threading.Thread(target=negotiate, daemon=True).start()
    run = scaling_client.connect()
    for step in run.steps():
        work(STEP_SEC)
        step.done(examples=run.global_batch_size)
