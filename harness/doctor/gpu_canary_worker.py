"""Times a matrix product on each device: ``python -m ... DURATION_SEC SIZE DEVICE...``.

Prints one line of JSON: products per second of each device alone, and of all of them at
once.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import TYPE_CHECKING

from harness.trial.steps import make_kernel, matrix_product_rate

if TYPE_CHECKING:
    from collections.abc import Sequence


def measure(
    devices: Sequence[str], size: int, duration_sec: float
) -> dict[str, list[float]]:
    """Returns products per second of each device ``alone``, and all ``together``."""
    kernels = [make_kernel(device, size) for device in devices]
    for multiply in kernels:
        matrix_product_rate(multiply, duration_sec / 4)  # raises the clock, compiles
    alone = [matrix_product_rate(multiply, duration_sec) for multiply in kernels]
    together = [0.0] * len(kernels)

    def run(place: int) -> None:
        together[place] = matrix_product_rate(kernels[place], duration_sec)

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
