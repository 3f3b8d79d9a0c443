"""The highest rate of floating-point operations that this process's devices reach.

Measured as the fastest of several products of two square matrices, in the number type
that the program computes in, on the cores and threads (or GPUs) of the trial: what
model FLOP utilisation is relative to (Chowdhery et al., "PaLM: Scaling Language
Modeling with Pathways", 2022, appendix B, with a measured peak, not the vendor's).
"""

from __future__ import annotations

import time
from typing import Final

METHOD: Final = "fastest of {count} products of {size} x {size} matrices in {dtype}"
_SIZES: Final = {"CPU": 1024, "GPU": 8192}
_COUNT: Final = 8


def measure_peak(dtype: str, num_gpus: int = 0) -> tuple[float, str]:
    """Returns floating-point operations per second, and how they were measured.

    Runs outside of every timed window; takes about 0.2 s per device.

    Args:
      dtype: Number type of the operands, such as ``float32``.
      num_gpus: GPUs of this process, one after the other; 0 for its CPU cores.
    """
    import tensorflow as tf

    kind = "GPU" if num_gpus else "CPU"
    size = _SIZES[kind]
    total = 0.0
    for index in range(max(num_gpus, 1)):
        with tf.device(f"{kind}:{index}"):
            matrix = tf.cast(tf.random.stateless_normal((size, size), (1, 2)), dtype)
            fastest = min(_seconds(matrix) for _ in range(_COUNT + 1))
        total += 2 * size**3 / fastest
    return total, METHOD.format(count=_COUNT + 1, size=size, dtype=dtype)


def _seconds(matrix: object) -> float:
    import tensorflow as tf

    start = time.perf_counter()
    product = tf.linalg.matmul(matrix, matrix)
    # Reading one number waits for the product.
    float(product[0, 0])
    return time.perf_counter() - start
