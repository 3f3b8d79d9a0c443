"""The environment record: facts about machine and software, without the host name."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from results.records import identity
from results.records.models import Environment
from results.records.variables import identity_variables, recorded_variables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from results.records.machines.gpu_settings import GpuSettings
    from results.records.machines.machine_record import MachineState
    from results.records.models import Placement

PACKAGES = (
    "dm-control",
    "keras",
    "mujoco",
    "numpy",
    "nvidia-cublas-cu12",
    "nvidia-cuda-cupti-cu12",
    "nvidia-cuda-nvcc-cu12",
    "nvidia-cuda-nvrtc-cu12",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cudnn-cu12",
    "nvidia-cufft-cu12",
    "nvidia-curand-cu12",
    "nvidia-cusolver-cu12",
    "nvidia-cusparse-cu12",
    "nvidia-nccl-cu12",
    "nvidia-nvjitlink-cu12",
    "replicator-harness",
    "tensorflow",
    "tensorflow-datasets",
)


def read_environment(
    placement: Placement,
    variables: Mapping[str, str],
    *,
    gpus: tuple[str, ...] = (),
    gpu_settings: tuple[GpuSettings, ...] = (),
    inherited: Mapping[str, str] = MappingProxyType({}),
    state: MachineState | None = None,
    versions: Mapping[str, str] | None = None,
    root: Path = Path("/"),
) -> Environment:
    """Returns the record of this machine and of the process that will run on it."""
    import psutil

    cpu_model = read_cpu_model(root)
    memory_bytes = int(psutil.virtual_memory().total)
    packages = read_packages()
    kernel = f"{platform.system()} {platform.release()}"
    fingerprint = identity.digest(
        {
            "cpu_model": cpu_model,
            "num_logical_cores": os.cpu_count(),
            "memory_gib": round(memory_bytes / 2**30),
            # Models only: trials on one and on eight of them are of one machine.
            "gpus": sorted(set(gpus)),
            "kernel": kernel,
            "python": platform.python_version(),
            "packages": packages,
            "num_available_cores": placement.num_available_cores,
            "cgroup_quota_cores": placement.cgroup_quota_cores,
            "variables": identity_variables(inherited),
            "state": None if state is None else state.without_code(),
        }
    )
    return Environment(
        fingerprint=fingerprint,
        cpu_model=cpu_model,
        num_physical_cores=psutil.cpu_count(logical=False),
        num_logical_cores=os.cpu_count() or 1,
        memory_bytes=memory_bytes,
        gpus=gpus,
        gpu_settings=gpu_settings,
        kernel=kernel,
        python_version=platform.python_version(),
        packages=(
            packages
            if versions is None
            else {name: versions[name] for name in PACKAGES if name in versions}
        ),
        environment_variables=recorded_variables(variables),
        load_average_before=os.getloadavg()[0],
        machine_state=state,
        placement=placement,
    )


def read_cpu_model(root: Path = Path("/")) -> str:
    """Returns the CPU's product name, or the architecture where it has none."""
    try:
        lines = (root / "proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def read_packages() -> dict[str, str]:
    """Returns the versions of the packages that can affect a measurement."""
    return dict(_versions(_state_of_folders()))


def _state_of_folders() -> tuple[tuple[str, int], ...]:
    """When something was last installed in, or removed from, the folders of packages.

    Looking takes microseconds, and reading all versions longer than anything else
    before a trial.
    """
    folders = [path for path in map(Path, sys.path) if path.is_dir()]
    return tuple((str(path), path.stat().st_mtime_ns) for path in folders)


@functools.lru_cache(maxsize=1)
def _versions(_state: tuple[tuple[str, int], ...]) -> dict[str, str]:
    versions = {name: _version(name) for name in PACKAGES}
    return {name: text for name, text in versions.items() if text is not None}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
