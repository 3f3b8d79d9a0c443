"""Checks of the GPUs: other users, a lowered clock, what TensorFlow can use of them.

    python -m harness.doctor.gpu

has the driver compile the machine code that TensorFlow lacks (``make setup-gpu``). With
``DURATION_SEC SIZE DEVICE...`` it prints one line of JSON: matrix products per second
of each device alone, and of all at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any

import click

from harness import catalog
from harness.doctor.checks import Finding, judged
from harness.errors import DoctorError, PlanError, UnfitMachineError
from harness.machine import environment, gpu_watch, gpus
from harness.trial import gpu_probe

_NOTABLE_UTILIZATION = 0.05
_RESET = "reset it (sudo nvidia-smi --gpu-reset)"
_HIDE = "hide it: CUDA_VISIBLE_DEVICES"
_LOOK = "look for other users with nvidia-smi: the driver does not list them"
_NEWER = "a newer driver: kernels that are compiled at run time may not load"
_SLOW = "every step would wait for it: leave it out or have it checked"
_SHARED = (
    "GPUs share power, cooling or launch threads: compare with --controls independent"
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GpuState:
    """One GPU. None: the driver does not say."""

    name: str  # Product name.
    index: int  # Its number for the driver.
    reading: gpu_watch.GpuReading | None = None  # None where it cannot be read.
    utilization: float | None = None  # Fraction of the time in which a kernel ran.
    max_clock_mhz: int | None = None  # Of the multiprocessors.
    limit_watts: float | None = None  # That it may draw now.
    usual_limit_watts: float | None = None  # As delivered.
    fault: str = ""  # What the driver says where it cannot read it.

    @property
    def num_users(self) -> int | None:
        """Processes with a context on it, this one not counted."""
        return None if self.reading is None else self.reading.num_foreign

    @property
    def is_busy(self) -> bool:
        return bool(self.num_users) or (self.utilization or 0.0) > _NOTABLE_UTILIZATION

    @property
    def is_capped(self) -> bool:
        limit, usual = self.limit_watts, self.usual_limit_watts
        return limit is not None and usual is not None and limit < usual


def read_gpu_states(chosen: Sequence[gpus.Gpu] | None = None) -> tuple[GpuState, ...]:
    """Returns the state of some GPUs; none without a driver."""
    wanted = gpus.listed_gpus() if chosen is None else chosen
    return gpus.from_driver((), lambda nvml: tuple(_read(nvml, gpu) for gpu in wanted))


def _read(nvml: Any, gpu: gpus.Gpu) -> GpuState:
    try:
        own = gpu_watch.OwnProcesses(most_on_gpu=0)
        reading = gpu_watch.read(nvml, gpu.index, own)
        ask = gpus.asker(nvml, nvml.nvmlDeviceGetHandleByIndex(gpu.index))
        rates = ask("UtilizationRates")
        return GpuState(
            name=gpu.name,
            index=gpu.index,
            reading=reading,
            utilization=None if rates is None else rates.gpu / 100,
            max_clock_mhz=ask("MaxClockInfo", nvml.NVML_CLOCK_SM),
            limit_watts=gpus.from_milli(ask("EnforcedPowerLimit")),
            usual_limit_watts=gpus.from_milli(ask("PowerManagementDefaultLimit")),
        )
    except nvml.NVMLError as error:
        fault = gpus.fault_text(error)
        return GpuState(name=gpu.name, index=gpu.index, fault=fault)


def check_gpus(_cores: Sequence[int] = ()) -> list[Finding]:
    """Returns a finding for each GPU that this process may use."""
    findings = [_check(state) for state in read_gpu_states()]
    return findings or [Finding("GPU", "ok", "none visible")]


def _check(state: GpuState) -> Finding:
    now = state.reading
    if now is None:
        fact = f"{state.name}, cannot be read: {state.fault}"
        return Finding(f"GPU {state.index}", "bad", fact, f"{_RESET}, or {_HIDE}")
    parts, slowed_by = [state.name], gpus.throttle_reasons(now.reasons)
    if now.num_foreign is not None:
        plural = "" if now.num_foreign == 1 else "es"
        parts.append(f"{now.num_foreign or 'no'} other process{plural}")
    if state.utilization is not None:
        parts.append(f"{100 * state.utilization:.0f} % busy")
    if now.clock_mhz is not None and state.max_clock_mhz is not None:
        parts.append(f"{now.clock_mhz} of {state.max_clock_mhz} MHz")
    if now.temperature_celsius is not None:
        parts.append(f"{now.temperature_celsius} degrees Celsius")
    watts = state.usual_limit_watts
    if state.is_capped:
        parts.append(f"limited to {state.limit_watts:.0f} of {watts:.0f} W")
    if now.num_memory_errors:
        parts.append(f"{now.num_memory_errors} uncorrected ECC errors")
    if slowed_by:
        parts.append(f"slowed by {' and '.join(slowed_by)}")
    return judged(
        f"GPU {state.index}",
        ", ".join(parts),
        bad={
            f"end its other users (nvidia-smi), or {_HIDE}": state.is_busy,
            f"{_RESET}, or have its memory replaced": now.num_memory_errors,
            f"sudo nvidia-smi -i {state.index} -pl {watts or 0:.0f}": state.is_capped,
            "let it cool, or raise its power limit: its clock is lowered": slowed_by,
        },
        caution={_LOOK: now.num_foreign is None},
    )


def check_set(visible: Sequence[gpus.Gpu]) -> list[Finding]:
    """Returns the findings about all GPUs together, for a sweep on them."""
    driver = gpus.driver_version()
    if not visible:
        fact = "none" if driver is None else f"none visible, driver {driver}"
        advice = "install the NVIDIA driver, or show GPUs with CUDA_VISIBLE_DEVICES"
        return [Finding("GPUs", "bad", fact, advice)]
    is_mixed = len({gpu.name for gpu in visible}) > 1
    models = f"of model {visible[0].name}"
    if is_mixed:
        models = f"visible, {gpus.models(visible)}"
    advice = "hide those of other models: CUDA_VISIBLE_DEVICES"
    fact = f"{len(visible)} {models}"
    findings = [judged("GPU models", fact, bad={advice: is_mixed})]
    num_instances = sum(gpu.is_mig for gpu in visible)
    on = f"on, {num_instances} instances: CUDA gives a process one at most"
    advice = "sudo nvidia-smi -mig 0, or sweep with --replicas 1"
    fact = on if num_instances else "off"
    findings += [judged("MIG", fact, bad={advice: num_instances})]
    ids = [gpu.cuda_id for gpu in visible]
    try:
        seen = gpu_probe.probe(ids)
    except gpu_probe.MissingGpuError as error:
        return [*findings, Finding("TensorFlow", "bad", str(error), gpu_probe.INSTALL)]
    fact, _, advice = gpu_probe.complaint(seen, ids).partition(": ")
    fits = judged("TensorFlow", fact or f"sees all {len(ids)} GPUs", bad={advice: fact})
    codes = check_code(visible, seen.architectures, driver).values()
    return [*findings, fits, _check_driver(seen, driver), *codes]


def _check_driver(seen: gpu_probe.TensorFlowGpus, driver: str | None) -> Finding:
    cuda = gpus.cuda_version()
    installed = environment.read_packages().get("nvidia-cuda-runtime-cu12", "")
    built = f"CUDA {seen.cuda_version}, cuDNN {seen.cudnn_version}"
    fact = f"{driver} for CUDA up to {cuda}"
    fact += f"; TensorFlow was built with {built}" * bool(seen.cuda_version)
    fact += f", has CUDA {installed} beside it" * bool(installed)
    wanted = max(_numbers(seen.cuda_version), _numbers(installed))
    offered = _numbers(cuda or "") or wanted
    version = ".".join(map(str, wanted))
    bad = {f"install a driver for CUDA {version} or newer": offered[:1] < wanted[:1]}
    return judged("driver", fact, bad=bad, caution={_NEWER: offered < wanted})


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts) if all(map(str.isdecimal, parts)) else ()


_PERIOD_SEC = 10.0


def check_code(
    visible: Sequence[gpus.Gpu], architectures: Sequence[str], driver: str | None
) -> dict[tuple[int, int], Finding]:
    """A finding for each compute capability; none where TensorFlow is silent."""
    folder = Path(gpus.cache_variables()[gpus.CACHE_PATH])
    built = ", ".join(architectures)
    findings, is_disabled = {}, gpus.is_cache_disabled()
    known = {gpu.capability for gpu in visible if gpu.capability and architectures}
    for capability in sorted(known):
        code = gpus.code_for(capability, architectures)
        needs = code == "compiled"
        is_kept = _key(capability, driver) in gpus.noted_code(folder)
        has = "has that of" if code == "native" else "has none for"
        fact = "TensorFlow ({}) {} GPUs with {}.{}".format(built, has, *capability)
        if needs and is_kept and not is_disabled:
            kept = gpus.cache_bytes(folder) / 2**20
            fact += f"; compiled once, {kept:.0f} MiB in {folder}"
        advice = "an older or newer TensorFlow, or TensorFlow built for them"
        disable = f"unset {gpus.CACHE_DISABLE}: every process compiles for minutes"
        compiles = f"make setup-gpu compiles once, for minutes, into {folder}"
        caution = {disable: needs and is_disabled, compiles: needs and not is_kept}
        bad = {advice: code == "none"}
        findings[capability] = judged("machine code", fact, bad=bad, caution=caution)
    return findings


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
            text = "no NVIDIA GPU here: where there is one, python -m"
            click.echo(f"{text} harness.doctor.gpu compiles for it")
            return 0
        seen = gpu_probe.probe([gpu.cuda_id for gpu in visible])
        gpu_probe.check(seen, [gpu.cuda_id for gpu in visible])
    except (PlanError, gpu_probe.MissingGpuError) as error:
        click.echo(f"error: {error}")
        return 1
    driver, built = gpus.driver_version(), seen.architectures
    findings = check_code(visible, built, driver)
    for finding in findings.values():
        click.echo(finding.found)
    hinders = ("bad", "caution") if gpus.is_cache_disabled() else ("bad",)
    for finding in findings.values():
        if finding.level in hinders:
            click.echo(f"error: {finding.advice}")
            return 1
    variables = gpus.cache_variables()
    for capability, finding in findings.items():
        if finding.level == "caution":
            chosen = next(gpu for gpu in visible if gpu.capability == capability)
            own = {"CUDA_VISIBLE_DEVICES": chosen.cuda_id, **variables}
            if not _compile({**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **own}):
                return 1
            folder = Path(variables[gpus.CACHE_PATH])
            gpus.note_code(folder, _key(capability, driver))
    if any(gpus.code_for(each, built) == "compiled" for each in findings):
        needed = " ".join(f"{name}={value}" for name, value in variables.items())
        click.echo(f"programs that the harness does not start need {needed}")
    return 0


def _compile(environ: Mapping[str, str]) -> bool:
    folder = Path(environ[gpus.CACHE_PATH])
    for name, info in catalog.WORKLOADS.items():
        if all(preset.name != "gpu" for preset in info.presets):
            continue
        click.echo(f"{name}: the driver compiles into {folder} ...")
        start = time.monotonic()
        code = _run(name, environ)
        took = f"{time.monotonic() - start:.0f} s"
        if code:
            end = f"{name} ended with {code} after {took}"
            click.echo(f"error: {end}; its last lines say why")
            return False
        kept = gpus.cache_bytes(folder) / 2**20
        click.echo(f"{name}: {took}, {kept:.0f} MiB are kept")
    return True


def _run(name: str, environ: Mapping[str, str]) -> int:
    """Runs a workload, and shows that it goes on; there is no limit to its time."""
    process = subprocess.Popen(
        [sys.executable, "-m", "workloads.catalog", name],
        env=environment.own_variables({"TF_CPP_MIN_LOG_LEVEL": "2", **environ}),
    )
    folder = Path(environ[gpus.CACHE_PATH])
    start = time.monotonic()
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_PERIOD_SEC)
            size = gpus.cache_bytes(folder) / 2**20
            click.echo(f"  {time.monotonic() - start:.0f} s, {size:.0f} MiB")
    finally:
        if process.poll() is None:
            process.terminate()


# One GPU that is slower than the others of its model makes every synchronous step wait
# for it, and looks like poor scaling.

Rates = dict[str, list[float]]
BLOCK_SEC = 1.0
SIZE = 8192
"""About 1.1e12 operations per product: a few milliseconds on an H100."""
DURATION_SEC = 40.0
"""About how long the checks of 8 GPUs take."""
_TIMEOUT_SEC = 300.0
_LEAST_OF_MEDIAN = 0.95
_LEAST_TOGETHER = 0.9
_OPERATIONS = 2 * SIZE**3


def multiply(ids: Sequence[str], devices: Sequence[str]) -> Rates:
    """Times the product on GPUs, by ids and names of devices, in its own process."""
    try:
        answer = environment.ask_on_gpus(
            ids,
            "harness.doctor.gpu",
            *(str(BLOCK_SEC), str(SIZE), *devices),
            timeout_sec=_TIMEOUT_SEC,
            TF_FORCE_GPU_ALLOW_GROWTH="true",
            **gpus.cache_variables(),
        )
        return {name: list(answer[name]) for name in ("alone", "together")}
    except (environment.OwnProgramError, LookupError) as error:
        raise DoctorError(
            f"the matrix product on {', '.join(devices)} failed: {str(error)[:300]};"
            " see docs/gpu.md"
        ) from error


def check_rates(rates: Rates) -> list[Finding]:
    """Returns a finding for each GPU about its rate, alone and with the others."""
    median = statistics.median(rates["alone"])
    is_one, findings = len(rates["alone"]) == 1, []
    pairs = zip(rates["alone"], rates["together"], strict=True)
    for index, (alone, together) in enumerate(pairs):
        fact = f"{alone * _OPERATIONS / 1e12:.4g} TFLOP/s"
        if not is_one:
            fact += f", {alone / median:.2f} of the median"
            fact += f", {together / alone:.2f} of it when all run"
        bad = {_SLOW: alone < _LEAST_OF_MEDIAN * median}
        caution = {_SHARED: together < _LEAST_TOGETHER * alone}
        check = f"product on GPU {index}"
        findings.append(judged(check, fact, bad=bad, caution=caution))
    return findings


def measure_gpus(_cores: Sequence[int]) -> list[Finding]:
    """Checks what a sweep on GPUs needs; times them only where it has that."""
    # Of the others, check_gpus says that they cannot be read.
    visible = [gpu for gpu in gpus.listed_gpus() if not gpu.fault]
    findings = check_set(visible)
    needed = ("GPUs", "MIG", "TensorFlow")
    if any(one.check in needed and one.level == "bad" for one in findings):
        return findings
    ids = [gpu.cuda_id for gpu in visible]
    devices = [f"GPU:{index}" for index in range(len(ids))]
    try:
        with gpu_watch.hold_gpus(visible, study="doctor"):
            return [*findings, *check_rates(multiply(ids, devices))]
    except UnfitMachineError as error:  # timing them now would disturb a sweep
        fact, _, advice = str(error).partition("; ")
        return [*findings, Finding("other sweeps", "bad", fact, advice)]


def print_products(duration_sec: float, size: int, devices: Sequence[str]) -> int:
    """Prints products per second of each device ``alone``, and all ``together``."""
    import tensorflow as tf

    from harness.trial.measure import product_rate

    # Otherwise a device that does not exist would be a CPU, without an error.
    tf.config.set_soft_device_placement(enabled=False)
    timers = [product_rate(device, size) for device in devices]
    for rate in timers:
        rate(duration_sec / 4)  # raises the clock, compiles
    rates = {"alone": [rate(duration_sec) for rate in timers]}
    with futures.ThreadPoolExecutor(len(timers)) as pool:
        together = pool.map(lambda rate: rate(duration_sec), timers)
        rates["together"] = list(together)
    sys.stdout.write(json.dumps(rates) + "\n")
    return 0


if __name__ == "__main__":
    sec, size, *devices = sys.argv[1:] or ("", "")
    sys.exit(print_products(float(sec), int(size), devices) if sec else compile_once())
