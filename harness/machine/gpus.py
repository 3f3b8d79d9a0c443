"""Counts and names NVIDIA GPUs through the driver, without TensorFlow."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NO_GPU = "-1"
"""The value of ``CUDA_VISIBLE_DEVICES`` that hides all of them."""


@contextlib.contextmanager
def driver() -> Iterator[object]:
    """Opens the driver's library; raises NVMLError where there is none."""
    import pynvml

    pynvml.nvmlInit()
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def visible_gpus(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Returns the ids of the GPUs this process may use, for CUDA_VISIBLE_DEVICES.

    A CUDA_VISIBLE_DEVICES that is already set is respected: as in CUDA, an id that
    does not exist hides itself and all ids after it. Without a driver, none are found.
    """
    num_gpus = len(gpu_names())
    limit = environment.get("CUDA_VISIBLE_DEVICES")
    if limit is None:
        return tuple(str(i) for i in range(num_gpus))
    ids: list[str] = []
    for text in limit.split(","):
        name = text.strip()
        is_index = name.isdigit() and int(name) < num_gpus
        is_uuid = name.startswith(("GPU-", "MIG-")) and num_gpus > 0
        if not (is_index or is_uuid):
            break
        ids.append(name)
    return tuple(ids)


def gpu_names() -> tuple[str, ...]:
    """Returns the product names of all GPUs; empty without a driver."""
    try:
        import pynvml

        with driver():
            handles = [
                pynvml.nvmlDeviceGetHandleByIndex(i)
                for i in range(pynvml.nvmlDeviceGetCount())
            ]
            return tuple(str(pynvml.nvmlDeviceGetName(h)) for h in handles)
    except pynvml.NVMLError:
        return ()


def driver_version() -> str | None:
    """Returns the version of the NVIDIA driver; None without one."""
    try:
        import pynvml

        with driver():
            return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return None
