"""The threads of trials on GPUs: some launch kernels, the others feed pipelines.

By default TensorFlow launches the kernels of all GPUs from the pool that also runs
input pipelines and the host's part of a step: a busy pipeline then delays launches, and
GPUs wait. So every GPU gets threads of its own for launches, and the pools get the rest
of the trial's cores. TensorFlow takes this from environment variables only, which are
therefore part of the identity of a trial.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

LAUNCH_THREADS_PER_GPU = 2
"""One launches while the other waits for a copy or an allocation."""
_DEFAULTS = {
    "TF_GPU_THREAD_MODE": "gpu_private",
    "TF_GPU_THREAD_COUNT": str(LAUNCH_THREADS_PER_GPU),
}


def with_gpu_threads(variables: Mapping[str, str], device: str) -> dict[str, str]:
    """Returns the variables of a trial's identity, completed for its device."""
    return {**(_DEFAULTS if device == "gpu" else {}), **variables}


def of_gpu_threads(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a trial's identity that choose its launch threads."""
    return {name: variables[name] for name in _DEFAULTS if name in variables}


def num_pool_threads(num_cores: int, num_gpus: int) -> int:
    """Returns how many threads of a pool have a core of their own beside launches."""
    return max(1, num_cores - LAUNCH_THREADS_PER_GPU * num_gpus)
