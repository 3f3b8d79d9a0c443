"""Compares the GPUs that TensorFlow sees with those that it was given.

TensorFlow is silent where it cannot use a GPU, and runs on the CPU. Each process of a
trial therefore compares before it builds; ``sweep`` and ``doctor`` ask a process first:

    python -m harness.trial.gpu_probe
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import TYPE_CHECKING, Final

from harness.errors import UnfitMachineError
from harness.machine import environment
from harness.machine.gpus import NO_GPU
from results.records.texts import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    # Takes the ids of GPUs; returns what TensorFlow sees of them.
    Probe = Callable[[Sequence[str]], "TensorFlowGpus"]

INSTALL: Final = "make setup-gpu (it installs requirements-gpu.lock)"
_TIMEOUT_SEC = 120.0
_MOST_SHOWN = 120


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TensorFlowGpus:
    num_gpus: int  # How many it sees.
    is_built_with_cuda: bool  # Whether this build can use GPUs at all.
    cuda_version: str = ""  # That it was built with; "" without.
    cudnn_version: str = ""  # That it was built with; "" without.
    # With machine code (``sm_80``) or PTX (``compute_90``); empty where unknown.
    architectures: Sequence[str] = ()


class MissingGpuError(UnfitMachineError):
    """TensorFlow does not see the GPUs that the process was given."""


def read_here() -> TensorFlowGpus:
    """Asks TensorFlow in this process; does not initialize the GPUs."""
    import tensorflow as tf

    build = tf.sysconfig.get_build_info()
    return TensorFlowGpus(
        num_gpus=len(tf.config.list_physical_devices("GPU")),
        is_built_with_cuda=bool(tf.test.is_built_with_cuda()),
        cuda_version=str(build.get("cuda_version", "")),
        cudnn_version=str(build.get("cudnn_version", "")),
        architectures=tuple(map(str, build.get("cuda_compute_capabilities", ()))),
    )


def probe(ids: Sequence[str]) -> TensorFlowGpus:
    try:
        answer = environment.ask_on_gpus(
            ids, "harness.trial.gpu_probe", timeout_sec=_TIMEOUT_SEC
        )
        return TensorFlowGpus(**answer)
    except (environment.OwnProgramError, TypeError) as error:
        raise MissingGpuError(
            "TensorFlow does not say which GPUs it sees:"
            f" {printable(str(error))[:_MOST_SHOWN]}; install it with {INSTALL}"
        ) from error


def given_ids() -> tuple[str, ...]:
    """Returns the GPUs that this process was given; none for one that only serves."""
    text = os.environ.get("CUDA_VISIBLE_DEVICES", NO_GPU)
    return () if text in ("", NO_GPU) else tuple(text.split(","))


def complaint(seen: TensorFlowGpus, given: Sequence[str]) -> str:
    """Returns why TensorFlow cannot use the GPUs, and the remedy; "" if it can."""
    if seen.num_gpus >= len(given):
        return ""
    ids = printable(",".join(given))[:_MOST_SHOWN]
    counts = (
        f"TensorFlow sees {seen.num_gpus} GPUs, but was given {len(given)}"
        f" (CUDA_VISIBLE_DEVICES={ids})"
    )
    if not seen.is_built_with_cuda:
        return (
            f"{counts}: this build of TensorFlow has no CUDA; install one that has"
            f" with {INSTALL}, or use --device cpu"
        )
    if not seen.num_gpus:
        return (
            f"{counts}: it cannot load CUDA {seen.cuda_version} and cuDNN"
            f" {seen.cudnn_version}, which it was built with; install them with"
            f" {INSTALL}, or use --device cpu"
        )
    return (
        f"{counts}: it skips the others; TF_CPP_MIN_LOG_LEVEL=0 {sys.executable} -m"
        " harness.trial.gpu_probe says why, and CUDA_VISIBLE_DEVICES leaves them out"
    )


def check(seen: TensorFlowGpus, given: Sequence[str]) -> None:
    if text := complaint(seen, given):
        raise MissingGpuError(text)


def main() -> int:
    sys.stdout.write(json.dumps(dataclasses.asdict(read_here())) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
