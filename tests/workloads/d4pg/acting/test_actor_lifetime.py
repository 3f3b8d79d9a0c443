"""Actors end with the process that started them."""

import os
import pathlib
import subprocess
import sys
import time

import psutil
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[4]
NAME = "cartpole:swingup"
PATIENCE_SEC = 180.0


def has_ended(process):
    """Whether a process runs no more; it may wait for somebody to take note."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.processes
def test_no_actor_outlives_its_parent():
    """Not even a stopped one, and not even a parent that was killed."""
    code = (
        "import time\n"
        "from workloads.d4pg.acting.pool import ActorPool\n"
        "from workloads.d4pg.acting.settings import ActorSettings\n"
        "from workloads.d4pg.replay.streams import StepStreams, StreamsSpec\n"
        f"settings = ActorSettings(name={NAME!r}, num_actors=2)\n"
        "streams = StepStreams(StreamsSpec(num_streams=2, steps_per_stream=1000,\n"
        "    observation_shape=(5,), observation_dtype='float32', action_size=1,\n"
        "    num_actors=2))\n"
        "pool = ActorPool(settings, streams)\n"
        "while streams.num_written.min() < 10: pool.check(); time.sleep(0.02)\n"
        "print(*pool.process_ids(), flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    actors = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    actors[1].suspend()
    parent.kill()
    parent.wait()
    end = time.monotonic() + PATIENCE_SEC
    while not all(map(has_ended, actors)) and time.monotonic() < end:
        time.sleep(0.02)

    assert 2 == len(actors)
    assert all(map(has_ended, actors))
