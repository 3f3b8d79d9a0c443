"""The processes that run canaries, on one core or on GPUs.

``python -m harness.doctor.canary_worker core CORE ARRAY_BYTES`` reads lines ``<kind>
<duration_sec>`` from stdin, and answers each with a rate: products of small matrices
per second, or bytes per second. All memory is touched before the first answer, which is
``ready``.

``python -m harness.doctor.canary_worker gpus DURATION_SEC SIZE DEVICE...`` prints one
line of JSON: matrix products per second of each device alone, and of all at once.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from concurrent import futures
from typing import TYPE_CHECKING

import numpy as np

from harness.machine import disturbance

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

COMPUTE = "compute"
MEMORY = "memory"
_TRIAD_PASSES = 5
"""Arrays read or written by ``a = s * c`` and ``a = a + b``."""
_BLOCK = 4
_FLOAT_BYTES = 8


def make_kernels(array_bytes: int) -> dict[str, tuple[Callable[[], object], float]]:
    """Returns each canary with the work that a call does."""
    multiply = disturbance.make_product()
    length = array_bytes // _FLOAT_BYTES
    first, second, third = (np.full(length, x) for x in (1.0, 2.0, 3.0))

    def compute() -> None:
        for _ in range(_BLOCK):
            multiply()

    def triad() -> None:
        np.multiply(third, 0.5, out=first)
        np.add(first, second, out=first)

    return {COMPUTE: (compute, _BLOCK), MEMORY: (triad, _TRIAD_PASSES * array_bytes)}


def serve(core: int, array_bytes: int) -> None:
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
        sys.stdout.write(f"{disturbance.rate(kernel, work, float(duration_sec))!r}\n")
        sys.stdout.flush()


def measure(
    devices: Sequence[str], size: int, duration_sec: float
) -> dict[str, list[float]]:
    """Returns products per second of each device ``alone``, and all ``together``."""
    # Those of cores need none of it.
    from harness.trial.steps import make_kernel, matrix_product_rate

    kernels = [make_kernel(device, size) for device in devices]
    for multiply in kernels:
        matrix_product_rate(multiply, duration_sec / 4)  # raises the clock, compiles
    alone = [matrix_product_rate(multiply, duration_sec) for multiply in kernels]
    with futures.ThreadPoolExecutor(len(kernels)) as pool:
        run = functools.partial(matrix_product_rate, duration_sec=duration_sec)
        return {"alone": alone, "together": list(pool.map(run, kernels))}


def print_gpus(duration_sec: float, size: int, devices: Sequence[str]) -> None:
    import tensorflow as tf

    # Otherwise a device that does not exist would be a CPU, without an error.
    tf.config.set_soft_device_placement(enabled=False)
    sys.stdout.write(json.dumps(measure(devices, size, duration_sec)) + "\n")


if __name__ == "__main__":
    what, first, second, *others = sys.argv[1:]
    if what == "core":
        serve(int(first), int(second))
    else:
        print_gpus(float(first), int(second), others)
