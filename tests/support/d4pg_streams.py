"""Streams of D4PG's steps, and processes that write what tests read."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from workloads.d4pg.streams import StepStreams, StreamsSpec

ROOT = Path(__file__).resolve().parents[2]


def make_streams(num_streams=1, steps_per_stream=100, **changes):
    fields = {
        "observation_shape": (1,),
        "observation_dtype": "float32",
        "action_size": 1,
        **changes,
    }
    spec = StreamsSpec(
        num_streams=num_streams, steps_per_stream=steps_per_stream, **fields
    )
    return StepStreams(spec)


@contextlib.contextmanager
def child(code, *words, descriptor=None):
    """A Python program, which may use a descriptor that is its last word."""
    passed = () if descriptor is None else (descriptor,)
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words, *map(str, passed)],
        pass_fds=passed,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
