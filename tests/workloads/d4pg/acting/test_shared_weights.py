"""Weights in memory that actors share: read whole, and only when they are newer."""

import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

from workloads.d4pg.acting.weights import SharedWeights

ROOT = pathlib.Path(__file__).resolve().parents[4]
PATIENCE_SEC = 180.0


def test_weights_are_read_once_and_whole():
    """Nothing where there is nothing newer, or where they are being written."""
    weights = SharedWeights(4)
    other = SharedWeights(4, os.dup(weights.descriptor))

    assert other.read() is None
    weights.publish(np.arange(4, dtype=np.float32), 0)
    found, version = other.read()
    assert ([0, 1, 2, 3], 0) == (found.tolist(), version)
    assert other.read(newer_than=0) is None
    weights.publish(np.ones(4, np.float32), 7)
    assert 7 == other.read(newer_than=0)[1]
    weights._sequence[0] += 1
    assert other.read(newer_than=0) is None
    with pytest.raises(ValueError, match=r"shape \(3,\) cannot be published: a vec"):
        weights.publish(np.ones(3, np.float32), 8)


@pytest.mark.processes
def test_no_reader_sees_a_mixture_of_weights():
    """While another process publishes as fast as it can."""
    weights = SharedWeights(200_000)
    code = (
        "import sys, time, numpy as np\n"
        "from workloads.d4pg.acting.weights import SharedWeights\n"
        "weights = SharedWeights(200_000, int(sys.argv[1]))\n"
        "for version in range(10**9):\n"
        "    weights.publish(np.full(200_000, version % 1000, np.float32), version)\n"
        "    if version % 3 == 0: time.sleep(0.0003)\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(weights.descriptor)],
        pass_fds=(weights.descriptor,),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        last, num_read, end = -1, 0, time.monotonic() + PATIENCE_SEC
        while num_read < 100 and time.monotonic() < end:
            found = weights.read(newer_than=last)
            if found is not None:
                values, last = found
                num_read += 1

                assert (values == last % 1000).all()
    finally:
        writer.kill()
        writer.wait()

    assert 100 == num_read
