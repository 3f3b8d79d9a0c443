"""Checks whether TensorFlow has machine code for the GPUs, and what it lacks is kept.

``make setup-gpu`` ends with this module as a program, which has the driver compile it:

    python -m harness.doctor.gpu_code
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness import catalog
from harness.doctor.checks import Finding, judged
from harness.errors import PlanError
from harness.machine import environment, gpus
from harness.trial import gpu_probe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.machine.gpus import Gpu

CHECK: Final = "machine code"
COMMAND: Final = "python -m harness.doctor.gpu_code"
_PERIOD_SEC = 10.0
_OTHER = "an older or newer TensorFlow, or TensorFlow built for them"
_EACH = "every process compiles for minutes"


def check_code(
    visible: Sequence[Gpu],
    architectures: Sequence[str],
    *,
    driver: str | None,
) -> list[Finding]:
    """A finding for each compute capability; none where TensorFlow is silent."""
    folder = Path(gpus.cache_variables()[gpus.CACHE_PATH])
    built = ", ".join(architectures)
    findings = []
    for capability in _capabilities(visible) if architectures else ():
        version = "{}.{}".format(*capability)
        code = gpus.code_for(capability, architectures)
        is_kept = _key(capability, driver) in gpus.noted_code(folder)
        is_disabled = gpus.is_cache_disabled()
        found = f"TensorFlow ({built}) has none for GPUs with {version}"
        if code == "native":
            found = f"TensorFlow ({built}) has that of GPUs with {version}"
        needs = code == "compiled"
        if needs and is_kept and not is_disabled:
            kept = gpus.cache_bytes(folder) / 2**20
            found += f"; compiled once, {kept:.0f} MiB in {folder}"
        finding = judged(
            CHECK,
            found,
            bad={_OTHER: code == "none"},
            caution={
                f"unset {gpus.CACHE_DISABLE}: {_EACH}": needs and is_disabled,
                f"make setup-gpu compiles once, for minutes, into {folder}": needs
                and not is_kept,
            },
        )
        findings.append(finding)
    return findings


def _capabilities(visible: Sequence[Gpu]) -> list[tuple[int, int]]:
    return sorted({gpu.capability for gpu in visible if gpu.capability is not None})


def _key(capability: tuple[int, int], driver: str | None) -> str:
    """Names what compiled code depends on."""
    tensorflow = environment.read_packages().get("tensorflow", "")
    version = "{}.{}".format(*capability)
    return f"{version}, driver {driver}, TensorFlow {tensorflow}"


def compile_once() -> int:
    """Has the driver compile what TensorFlow's wheel lacks for this machine's GPUs."""
    try:
        visible = gpus.visible_gpus()
        if not visible:
            _say(f"no NVIDIA GPU here: where there is one, {COMMAND} compiles for it")
            return 0
        seen = gpu_probe.probe([gpu.cuda_id for gpu in visible])
        gpu_probe.check(seen, [gpu.cuda_id for gpu in visible])
    except (PlanError, gpu_probe.MissingGpuError) as error:
        _say(f"error: {error}")
        return 1
    driver = gpus.driver_version()
    findings = check_code(visible, seen.architectures, driver=driver)
    for finding in findings:
        _say(finding.found)
    todo = [
        capability
        for capability in _capabilities(visible)
        if gpus.code_for(capability, seen.architectures) == "compiled"
    ]
    is_kept = not (todo and gpus.is_cache_disabled())
    for finding in findings:
        if finding.level == "bad" or not is_kept:
            _say(f"error: {finding.advice}")
            return 1
    variables = gpus.cache_variables()
    folder = Path(variables[gpus.CACHE_PATH])
    for capability in todo:
        if (key := _key(capability, driver)) in gpus.noted_code(folder):
            continue
        chosen = next(gpu for gpu in visible if gpu.capability == capability)
        given = {
            **os.environ,
            **variables,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": chosen.cuda_id,
        }
        if not _compile(given, folder):
            return 1
        gpus.note_code(folder, key)
    if todo:
        names = (gpus.CACHE_PATH, gpus.CACHE_SIZE)
        of_own = " ".join(f"{name}={variables[name]}" for name in names)
        _say(f"programs that the harness does not start need {of_own}")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _compile(environ: Mapping[str, str], folder: Path) -> bool:
    for name, info in catalog.WORKLOADS.items():
        if all(preset.name != "gpu" for preset in info.presets):
            continue
        _say(f"{name}: the driver compiles into {folder} ...")
        start = time.monotonic()
        code = _run(name, environ)
        took = f"{time.monotonic() - start:.0f} s"
        if code:
            _say(
                f"error: {name} ended with {code} after {took}; its last lines say why"
            )
            return False
        _say(f"{name}: {took}, {gpus.cache_bytes(folder) / 2**20:.0f} MiB are kept")
    return True


def _run(name: str, environ: Mapping[str, str]) -> int:
    """Runs a workload, and shows that it goes on; there is no limit to its time."""
    process = subprocess.Popen(
        [sys.executable, "-m", "workloads.warm_up", name],
        env=environment.own_variables({"TF_CPP_MIN_LOG_LEVEL": "2", **environ}),
    )
    folder = Path(environ[gpus.CACHE_PATH])
    start = time.monotonic()
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_PERIOD_SEC)
            size = gpus.cache_bytes(folder) / 2**20
            _say(f"  {time.monotonic() - start:.0f} s, {size:.0f} MiB")
    finally:
        if process.poll() is None:
            process.terminate()


if __name__ == "__main__":
    sys.exit(compile_once())
