"""Checks the GPUs together, then times a matrix product on each of them.

One GPU that is slower than the others of its model makes every synchronous step wait
for it, and looks like poor scaling.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.doctor import gpu
from harness.doctor.finding import Finding, bad, caution, ok
from harness.errors import DoctorError, UnfitMachineError
from harness.machine import cuda_cache, environment, gpu_watch, gpus
from harness.trial import gpu_probe
from results.records.texts import printable

if TYPE_CHECKING:
    from harness.trial.gpu_probe import Probe

Rates = dict[str, list[float]]
Multiply = Callable[[Sequence[str], Sequence[str]], Rates]
"""Takes ids of GPUs and names of devices; returns rates alone and together."""

TURN_SEC = 1.0
SIZE = 8192
"""About 1.1e12 operations per product: a few milliseconds on an H100."""
DURATION_SEC = 40.0
"""About how long the checks of 8 GPUs take."""
_TIMEOUT_SEC = 300.0
_LEAST_OF_MEDIAN = 0.95
_LEAST_TOGETHER = 0.9
_OPERATIONS = 2 * SIZE**3
_SOURCE_ROOT = Path(__file__).resolve().parents[2]


def multiply(
    ids: Sequence[str],
    devices: Sequence[str],
    *,
    size: int = SIZE,
    turn_sec: float = TURN_SEC,
) -> Rates:
    """Times the product in a process of its own."""
    paths = [str(_SOURCE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", "harness.doctor.gpu_canary_worker"]
    try:
        done = subprocess.run(
            [*command, str(turn_sec), str(size), *devices],
            capture_output=True,
            check=True,
            text=True,
            timeout=_TIMEOUT_SEC,
            env={
                **os.environ,
                **cuda_cache.variables(),
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "CUDA_VISIBLE_DEVICES": ",".join(ids) or gpus.NO_GPU,
                "PYTHONPATH": os.pathsep.join(paths),
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "TF_FORCE_GPU_ALLOW_GROWTH": "true",
            },
        )
        found: Any = json.loads(done.stdout.splitlines()[-1])
        return {name: list(found[name]) for name in ("alone", "together")}
    except (subprocess.SubprocessError, ValueError, LookupError) as error:
        output = (getattr(error, "stderr", None) or str(error)).strip()
        last = printable(output.splitlines()[-1] if output else "no output")
        raise DoctorError(
            f"the matrix product on {', '.join(devices)} failed: {last[:300]}; see"
            " docs/gpu.md"
        ) from error


def check_rates(rates: Rates, operations: float = _OPERATIONS) -> list[Finding]:
    """Returns a finding for each GPU about its rate, alone and with the others."""
    median = statistics.median(rates["alone"])
    findings = []
    for index, (alone, together) in enumerate(
        zip(rates["alone"], rates["together"], strict=True)
    ):
        check = f"product on GPU {index}"
        ratio = alone / median
        found = f"{alone * operations / 1e12:.4g} TFLOP/s"
        if len(rates["alone"]) > 1:
            found += f", {ratio:.2f} of the median"
            found += f", {together / alone:.2f} of it when all run"
        if ratio < _LEAST_OF_MEDIAN:
            advice = "every step would wait for it: leave it out or have it checked"
            findings.append(bad(check, found, advice))
        elif together < _LEAST_TOGETHER * alone:
            advice = "GPUs share power, cooling or launch threads: compare with solo"
            findings.append(caution(check, found, advice))
        else:
            findings.append(ok(check, found))
    return findings


def check_gpus(
    _cores: Sequence[int],
    *,
    probe: Probe = gpu_probe.probe,
    multiply: Multiply = multiply,
) -> list[Finding]:
    """Checks what a sweep on GPUs needs; times them only where it has that."""
    # Of the others, check_gpus says that they cannot be read.
    visible = [of for of in gpus.listed_gpus() if not of.fault]
    findings = gpu.check_set(
        visible,
        driver=gpus.driver_version(),
        cuda=gpus.cuda_version(),
        installed=environment.read_packages().get("nvidia-cuda-runtime-cu12", ""),
        probe=probe,
    )
    if any(
        finding.check in ("GPUs", "MIG", "TensorFlow") and finding.level == "bad"
        for finding in findings
    ):
        return findings
    ids = [gpu.cuda_id for gpu in visible]
    devices = [f"GPU:{place}" for place in range(len(ids))]
    try:
        with gpu_watch.hold_gpus(visible, study="doctor"):
            return [*findings, *check_rates(multiply(ids, devices))]
    except UnfitMachineError as error:  # timing them now would disturb a sweep
        found, _, advice = str(error).partition("; ")
        return [*findings, bad("other sweeps", found, advice)]
