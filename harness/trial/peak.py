"""The highest rate of floating-point operations that this process's devices reach.

Measured as the fastest of several runs of products of two square matrices, in the
number type that the program computes in, on the cores and threads (or GPUs) of the
trial: what model FLOP utilisation is relative to (Chowdhery et al., "PaLM: Scaling
Language Modeling with Pathways", 2022, appendix B, with a measured peak).
"""

from __future__ import annotations

from typing import Final

from harness.trial import matrix_product

METHOD: Final = (
    "fastest of {count} runs of products of {size} x {size} matrices, {dtype}"
)
_CPU_SIZE: Final = 512
_COUNT: Final = 3
_RUN_SEC: Final = 0.05


def measure_peak(dtype: str, num_gpus: int = 0) -> tuple[float, str]:
    """Returns floating-point operations per second, and how they were measured.

    Runs outside of every timed window; takes about 0.3 s per device.

    Args:
      dtype: Number type of the operands, such as ``float32``.
      num_gpus: GPUs of this process, one after the other; 0 for its CPU cores.
    """
    devices = [f"GPU:{index}" for index in range(num_gpus)] or ["CPU:0"]
    size = matrix_product.TRIAL_SIZE if num_gpus else _CPU_SIZE
    total = 0.0
    for device in devices:
        multiply = matrix_product.make_kernel(device, size, dtype)
        multiply()  # starts threads, raises the clock
        fastest = max(matrix_product.rate(multiply, _RUN_SEC) for _ in range(_COUNT))
        total += fastest * 2 * size**3
    return total, METHOD.format(count=_COUNT, size=size, dtype=dtype)
