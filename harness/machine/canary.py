"""Times a fixed computation before and after each trial, to check the machine's speed.

Single-threaded float arithmetic on one core of the trial's cpuset, without TensorFlow
and without BLAS threads. If it takes longer, the machine was disturbed or throttled;
the trial is not to blame.
"""

from __future__ import annotations

import contextlib
import os
import time

_SIZE = 96
_NUM_PRODUCTS = 900


def run_canary(core: int | None = None) -> float:
    """Returns the seconds the fixed computation takes on ``core``."""
    import numpy as np

    before = os.sched_getaffinity(0)
    if core is not None:
        # The core was taken away since planning: run unpinned rather than fail.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {core})
    try:
        matrix = np.linspace(0.0, 1.0, _SIZE * _SIZE, dtype=np.float32)
        matrix = matrix.reshape(_SIZE, _SIZE)
        np.einsum("ij,jk->ik", matrix, matrix, optimize=False)
        start = time.perf_counter()
        for _ in range(_NUM_PRODUCTS):
            # optimize=False makes numpy use its own loop: no BLAS, no threads.
            np.einsum("ij,jk->ik", matrix, matrix, optimize=False)
        return time.perf_counter() - start
    finally:
        os.sched_setaffinity(0, before)
