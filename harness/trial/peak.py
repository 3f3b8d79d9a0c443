"""The highest rate of floating-point operations that this process's devices reach.

Measured as the fastest of several runs of products of two square matrices, in the
number type that the program computes in, on the cores and threads (or GPUs) of the
trial: what model FLOP utilisation is relative to (Chowdhery et al., "PaLM: Scaling
Language Modeling with Pathways", 2022, appendix B, with a measured peak).
"""

from __future__ import annotations

from concurrent import futures
from typing import TYPE_CHECKING, Final

from harness.trial import matrix_product

if TYPE_CHECKING:
    from collections.abc import Callable

METHOD: Final = (
    "fastest of {count} runs of {size} x {size} matrix products in {dtype}, {number} at"
    " a time"
)
_CPU_SIZE: Final = 512
_COUNT: Final = 3
_RUN_SEC: Final = 0.05


def measure_peak(
    dtype: str, *, num_replicas: int, num_gpus: int = 0
) -> tuple[float, str]:
    """Returns floating-point operations per second, and how they were measured.

    Runs outside of every timed window; takes about 0.3 s.
    """
    devices = [f"GPU:{index}" for index in range(num_gpus)] or ["CPU:0"] * num_replicas
    size = matrix_product.TRIAL_SIZE if num_gpus else _CPU_SIZE
    kernels = [matrix_product.make_kernel(device, size, dtype) for device in devices]

    def run(multiply: Callable[[], None]) -> float:
        return matrix_product.rate(multiply, _RUN_SEC)

    with futures.ThreadPoolExecutor(len(kernels)) as pool:
        list(pool.map(run, kernels))  # starts threads, raises clocks
        fastest = max(sum(pool.map(run, kernels)) for _ in range(_COUNT))
    method = METHOD.format(count=_COUNT, size=size, dtype=dtype, number=len(kernels))
    return fastest * 2 * size**3, method
