"""The environment record: facts about machine and software, without the host name."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from harness import SOURCE_ROOT
from harness.errors import PlanError
from harness.machine.gpus import NO_GPU, Gpu, read_settings
from results.records import identity
from results.records.models import Environment, Placement
from results.records.program import IDENTITY, recorded_variables
from results.records.texts import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from harness.machine.owned_folders import Owned
    from results.records.measuring import MachineState


PACKAGES = (
    *("dm-control", "keras", "mujoco", "numpy"),
    *(
        f"nvidia-{part}-cu12"
        for part in (
            *("cublas", "cuda-cupti", "cuda-nvcc", "cuda-nvrtc", "cuda-runtime"),
            *("cudnn", "cufft", "curand", "cusolver", "cusparse", "nccl", "nvjitlink"),
        )
    ),
    *("replicator-harness", "tensorflow", "tensorflow-datasets"),
)


def read_environment(
    placement: Placement,
    variables: Mapping[str, str],
    *,
    chosen: Sequence[Gpu] = (),
    state: MachineState | None = None,
    versions: Mapping[str, str] | None = None,
) -> Environment:
    import psutil

    match = None
    with contextlib.suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        match = re.search(r"^model name\s*:(.*)$", text, re.MULTILINE)
    env = Environment(
        fingerprint="",
        cpu_model=match[1].strip() if match else platform.machine(),
        num_physical_cores=psutil.cpu_count(logical=False),
        num_logical_cores=os.cpu_count() or 1,
        memory_bytes=int(psutil.virtual_memory().total),
        gpus=tuple(gpu.name for gpu in chosen),
        gpu_settings=read_settings(chosen) if chosen else (),
        kernel=f"{platform.system()} {platform.release()}",
        python_version=platform.python_version(),
        packages=read_packages(),
        environment_variables=recorded_variables(variables),
        load_average_before=os.getloadavg()[0],
        machine_state=state,
        placement=placement,
    )
    identifying = {"variables": recorded_variables(os.environ, IDENTITY)}
    update: dict[str, Any] = {
        "fingerprint": identity.digest(env.machine_facts | identifying)
    }
    if versions is not None:  # of what runs the trial; the machine's are in the digest
        update["packages"] = {n: versions[n] for n in PACKAGES if n in versions}
    return env.model_copy(update=update)


def read_packages() -> dict[str, str]:
    """Returns the versions of the packages that can affect a measurement."""
    # Reading all versions would be the longest step before a trial.
    return dict(_versions(state_of(sys.path)))


def state_of(paths: Iterable[str]) -> tuple[tuple[Path, int], ...]:
    """Returns what differs once something was installed or removed, in microseconds."""
    known = [path for path in map(Path, paths) if path.exists()]
    return tuple((path, path.stat().st_mtime_ns) for path in known)


@functools.lru_cache(maxsize=1)
def _versions(_state: object) -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


# A process cannot ask Docker for its image. Podman writes the id of the image into a
# file; elsewhere whoever starts the container passes it in ``REPLICATOR_IMAGE``.

VARIABLE: Final = "REPLICATOR_IMAGE"
_ID = re.compile(r"(?:sha256:)?(?P<id>[0-9a-f]{64})")
_OF_PODMAN: Final = "run/.containerenv"
_PODMAN_ID = re.compile(r'^imageid="(?P<id>[0-9a-f]{64})"$', re.MULTILINE)
# By what is there; the first that fits. Inside Kubernetes there is also an engine.
_VARIABLES: Final = ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER")
_FILES: Final = {
    "run/secrets/kubernetes.io": "kubernetes",
    _OF_PODMAN: "podman",
    ".dockerenv": "docker",
}


def read_container(root: Path) -> str | None:
    """Kind and image, such as ``docker sha256:0123...``; None outside of one."""
    kinds = ["apptainer"] * any(map(os.environ.get, _VARIABLES))
    kinds += [kind for name, kind in _FILES.items() if (root / name).exists()]
    image = image_of(root)
    if not kinds and not image:
        return None
    return " ".join(filter(None, [kinds[0] if kinds else "container", image]))


def image_of(root: Path = Path("/")) -> str:
    """Returns the id of the image, such as ``sha256:0123...``; empty if unknown."""
    if text := os.environ.get(VARIABLE, ""):
        match = _ID.fullmatch(text)
        if match is None:
            raise PlanError(
                f"{VARIABLE}={text[:100]!r} is no id of an image: 64 hexadecimal"
                " digits, after sha256: or alone; take it from 'docker image inspect"
                " --format {{.Id}} NAME'"
            )
        return f"sha256:{match['id']}"
    try:
        match = _PODMAN_ID.search((root / _OF_PODMAN).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return ""
    return f"sha256:{match['id']}" if match else ""


class OwnProgramError(RuntimeError):
    """A program of ours has failed; the message is the last line that it printed."""


def own_variables(
    environ: Mapping[str, str], root: Path | None = None, /, *paths: str, **more: str
) -> dict[str, str]:
    """Returns the variables of a process that imports this tree from any folder."""
    inherited = filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))
    own = [str(root or SOURCE_ROOT), *map(os.path.abspath, inherited), *paths]
    return {**environ, "PYTHONPATH": os.pathsep.join(own), **more}


def ask_on_gpus(
    ids: Sequence[str], module: str, *arguments: str, timeout_sec: float, **more: str
) -> Any:
    """Returns the last line, of JSON, of a module of ours that may use some GPUs."""
    given = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(ids) or NO_GPU,
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    try:
        done = run_module(module, *arguments, timeout_sec=timeout_sec, **given, **more)
        return json.loads(done.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, LookupError) as error:
        raise OwnProgramError(printable(str(error))) from error


def run_module(
    module: str, *arguments: str, timeout_sec: float, **variables: str
) -> str:
    """Returns what a module of ours prints, as a program; raises where it fails."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        check=False,
        text=True,
        timeout=timeout_sec,
        env=own_variables(os.environ, **variables),
    )
    if done.returncode:
        output = done.stderr.strip() or f"exit code {done.returncode}"
        raise OwnProgramError(printable(output.splitlines()[-1]))
    return done.stdout


def run_git(
    folder: Path,
    *arguments: str,
    timeout_sec: float | None = None,
    holds: Owned | None = None,
) -> subprocess.CompletedProcess[str]:
    # Variables of a hook or an outer command would name another repository.
    variables = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    # Without locks, which an interrupt would leave in the user's repository.
    command = ["git", "--no-optional-locks", "-c", "core.hooksPath=/dev/null"]
    return subprocess.run(
        [*command, "-C", str(folder), *arguments],
        env=variables | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        pass_fds=() if holds is None else (holds.descriptor,),
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        check=False,
        timeout=timeout_sec,
    )
