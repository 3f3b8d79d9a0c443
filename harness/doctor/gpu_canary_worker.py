"""Times a matrix product on each device: ``python -m ... DURATION_SEC SIZE DEVICE...``.

Prints one line of JSON: products per second of each device alone, and of all of them at
once. GPUs of one model that are healthy and cool have nearly the same rate; one that is
hot, capped or broken has not. The devices can also be CPUs, for tests.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_CHAIN = 20
"""Products that are queued before the device is waited for."""


def make_kernel(device: str, size: int) -> Callable[[], None]:
    """Returns a function that multiplies matrices on a device and waits for it."""
    import tensorflow as tf

    with tf.device(device):
        # Of this scale a product of many stays near 1, and no value overflows.
        matrix = tf.random.stateless_uniform([size, size], [1, 2]) * (2.0 / size)
        if "GPU" in device:
            matrix = tf.cast(matrix, tf.bfloat16)

    def multiply() -> None:
        with tf.device(device):
            product: Any = matrix
            for _ in range(_CHAIN):
                product = tf.matmul(product, matrix)
            # Reading one value waits for all of them.
            tf.reduce_sum(tf.cast(product, tf.float32)).numpy()

    return multiply


def rate(multiply: Callable[[], None], duration_sec: float) -> float:
    """Returns products per second over at least ``duration_sec``."""
    num_products = 0
    start = now = time.perf_counter()
    while now - start < duration_sec:
        multiply()
        num_products += _CHAIN
        now = time.perf_counter()
    return num_products / (now - start)


def measure(
    devices: Sequence[str], size: int, duration_sec: float
) -> dict[str, list[float]]:
    """Returns products per second of each device ``alone``, and all ``together``."""
    kernels = [make_kernel(device, size) for device in devices]
    for multiply in kernels:
        rate(multiply, duration_sec / 4)  # raises the clock, compiles
    alone = [rate(multiply, duration_sec) for multiply in kernels]
    together = [0.0] * len(kernels)

    def run(place: int) -> None:
        together[place] = rate(kernels[place], duration_sec)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(kernels))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"alone": alone, "together": together}


def main(argv: Sequence[str]) -> int:
    """Prints the rates of the devices."""
    import tensorflow as tf

    # Otherwise a device that does not exist would be a CPU, without an error.
    tf.config.set_soft_device_placement(enabled=False)
    duration_text, size_text, *devices = argv
    found = measure(devices, int(size_text), float(duration_text))
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
