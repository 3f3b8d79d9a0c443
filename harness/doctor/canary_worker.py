"""The process that runs canaries on one core: ``python -m ... CORE ARRAY_BYTES``.

Reads lines ``<kind> <duration_sec>`` from stdin, and answers each with a rate: products
of small matrices per second, or bytes per second. All memory is touched before the
first answer, which is ``ready``.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

COMPUTE = "compute"
MEMORY = "memory"
_SIZE = 96
_TRIAD_PASSES = 5
"""Arrays read or written by ``a = s * c`` and ``a = a + b``."""
_BLOCK = 4
_FLOAT_BYTES = 8


def make_kernels(array_bytes: int) -> dict[str, tuple[Callable[[], object], float]]:
    """Returns each canary with the work that a call does."""
    matrix = np.linspace(0.0, 1.0, _SIZE * _SIZE, dtype=np.float32)
    matrix = matrix.reshape(_SIZE, _SIZE)
    length = array_bytes // _FLOAT_BYTES
    first, second, third = (np.full(length, x) for x in (1.0, 2.0, 3.0))

    def compute() -> None:
        for _ in range(_BLOCK):
            # optimize=False makes numpy use its own loop: no BLAS, no threads.
            np.einsum("ij,jk->ik", matrix, matrix, optimize=False)

    def triad() -> None:
        np.multiply(third, 0.5, out=first)
        np.add(first, second, out=first)

    return {COMPUTE: (compute, _BLOCK), MEMORY: (triad, _TRIAD_PASSES * array_bytes)}


def rate(kernel: Callable[[], object], work: float, duration_sec: float) -> float:
    """Runs a kernel for at least ``duration_sec`` and returns work per second."""
    num_calls = 0
    start = now = time.perf_counter()
    while now - start < duration_sec:
        kernel()
        num_calls += 1
        now = time.perf_counter()
    return num_calls * work / (now - start)


def main(core: int, array_bytes: int) -> None:
    """Answers lines until stdin ends."""
    os.sched_setaffinity(0, {core})
    kernels = make_kernels(array_bytes)
    for kernel, _ in kernels.values():
        kernel()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        kind, duration_sec = line.split()
        kernel, work = kernels[kind]
        sys.stdout.write(f"{rate(kernel, work, float(duration_sec))!r}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
