"""Checks of the GPUs: other users, a lowered clock, what TensorFlow can use of them."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from harness.doctor import gpu_code
from harness.doctor.checks import Finding, bad, caution, ok
from harness.errors import DoctorError, UnfitMachineError
from harness.machine import environment, gpu_watch, gpus
from harness.trial import gpu_probe

if TYPE_CHECKING:
    from harness.machine.gpus import Gpu
    from harness.trial.gpu_probe import Probe, TensorFlowGpus


def check_gpus(states: Sequence[GpuState]) -> list[Finding]:
    """Returns one finding for each GPU, or one that says that there is none."""
    if not states:
        return [ok("GPU", "none visible")]
    return [
        (_unread if state.fault else _check)(f"GPU {state.index}", state)
        for state in states
    ]


def _unread(check: str, state: GpuState) -> Finding:
    return bad(
        check,
        f"{state.name}, cannot be read: {state.fault}",
        "reset it (sudo nvidia-smi --gpu-reset), or hide it: CUDA_VISIBLE_DEVICES",
    )


def _check(check: str, state: GpuState) -> Finding:
    found = _facts(state)
    if state.is_busy:
        advice = "end its other users (nvidia-smi), or hide it: CUDA_VISIBLE_DEVICES"
        return bad(check, found, advice)
    if state.num_uncorrected_errors:
        advice = "reset it (sudo nvidia-smi --gpu-reset), or have its memory replaced"
        return bad(check, found, advice)
    if state.is_capped:
        watts = state.default_power_limit_watts
        advice = f"sudo nvidia-smi -i {state.index} -pl {watts:.0f}"
        return bad(check, found, advice)
    if state.slowed_by:
        advice = "let it cool, or raise its power limit: its clock is lowered"
        return bad(check, found, advice)
    if state.num_users is None:
        advice = "look for other users with nvidia-smi: the driver does not list them"
        return caution(check, found, advice)
    return ok(check, found)


def _facts(state: GpuState) -> str:
    parts = [state.name]
    if state.num_users is not None:
        parts.append(
            f"{state.num_users or 'no'} other process{_plural(state.num_users)}"
        )
    if state.utilization is not None:
        parts.append(f"{state.utilization:.0%} busy".replace("%", " %"))
    if state.clock_mhz is not None and state.max_clock_mhz is not None:
        parts.append(f"{state.clock_mhz} of {state.max_clock_mhz} MHz")
    if state.temperature_celsius is not None:
        parts.append(f"{state.temperature_celsius} degrees Celsius")
    if state.is_capped:
        limits = state.power_limit_watts, state.default_power_limit_watts
        parts.append("limited to {:.0f} of {:.0f} W".format(*limits))
    if state.num_uncorrected_errors:
        parts.append(f"{state.num_uncorrected_errors} uncorrected ECC errors")
    if state.slowed_by:
        parts.append(f"slowed by {' and '.join(state.slowed_by)}")
    return ", ".join(parts)


def _plural(count: int) -> str:
    return "" if count == 1 else "es"


def check_set(
    visible: Sequence[Gpu],
    *,
    driver: str | None,
    cuda: str | None,
    installed: str = "",
    probe: Probe = gpu_probe.probe,
) -> list[Finding]:
    """Returns the findings about all GPUs together, for a sweep on them."""
    if not visible:
        found = "none" if driver is None else f"none visible, driver {driver}"
        advice = "install the NVIDIA driver, or show GPUs with CUDA_VISIBLE_DEVICES"
        return [bad("GPUs", found, advice)]
    findings = [_check_models(visible), _check_mig(visible)]
    ids = [gpu.cuda_id for gpu in visible]
    try:
        seen = probe(ids)
    except gpu_probe.MissingGpuError as error:
        return [*findings, bad("TensorFlow", str(error), gpu_probe.INSTALL)]
    return [
        *findings,
        _check_seen(seen, ids),
        _check_driver(seen, driver, cuda, installed),
        *gpu_code.check_code(visible, seen.architectures, driver=driver),
    ]


def _check_models(visible: Sequence[Gpu]) -> Finding:
    names = {gpu.name for gpu in visible}
    found = f"{len(visible)} visible, {gpus.models(visible)}"
    if len(names) > 1:
        advice = "hide those of other models: CUDA_VISIBLE_DEVICES"
        return bad("GPU models", found, advice)
    return ok("GPU models", f"{len(visible)} of model {visible[0].name}")


def _check_mig(visible: Sequence[Gpu]) -> Finding:
    instances = [gpu for gpu in visible if gpu.is_mig]
    if not instances:
        return ok("MIG", "off")
    return bad(
        "MIG",
        f"on, {len(instances)} instances: CUDA gives a process one at most",
        "sudo nvidia-smi -mig 0, or sweep with --replicas 1",
    )


def _check_seen(seen: TensorFlowGpus, ids: Sequence[str]) -> Finding:
    text = gpu_probe.complaint(seen, ids)
    if text:
        found, _, advice = text.partition(": ")
        return bad("TensorFlow", found, advice)
    return ok("TensorFlow", f"sees all {len(ids)} GPUs")


def _check_driver(
    seen: TensorFlowGpus, driver: str | None, cuda: str | None, installed: str
) -> Finding:
    found = f"{driver} for CUDA up to {cuda}"
    if seen.cuda_version:
        found += (
            f"; TensorFlow was built with CUDA {seen.cuda_version}, cuDNN"
            f" {seen.cudnn_version}"
        )
    if installed:
        found += f", has CUDA {installed} beside it"
    wanted = max(_numbers(seen.cuda_version), _numbers(installed))
    offered = _numbers(cuda or "")
    if wanted and offered and offered[:1] < wanted[:1]:
        version = ".".join(map(str, wanted))
        advice = f"install a driver for CUDA {version} or newer"
        return bad("driver", found, advice)
    if wanted and offered and offered < wanted:
        advice = "a newer driver: kernels that are compiled at run time may not load"
        return caution("driver", found, advice)
    return ok("driver", found)


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts) if all(map(str.isdecimal, parts)) else ()


_NOTABLE_UTILIZATION = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GpuState:
    """One GPU. None: the driver does not say."""

    name: str  # Product name.
    # Processes with a context on it, this one not counted.
    num_users: int | None = None
    # Fraction of the last moments in which a kernel ran.
    utilization: float | None = None
    clock_mhz: int | None = None  # Clock of the multiprocessors.
    max_clock_mhz: int | None = None  # The highest one.
    temperature_celsius: int | None = None  # Of the chip.
    slowed_by: tuple[str, ...] = ()  # Why its clock is lowered; empty if it is not.
    index: int = 0  # Its number for the driver.
    power_limit_watts: float | None = None  # The most power that it may draw now.
    default_power_limit_watts: float | None = None  # The same, as delivered.
    num_uncorrected_errors: int | None = None  # ECC errors since the last reset.
    is_mig: bool = False  # Whether it is an instance of a GPU in MIG mode.
    # What the driver says where it cannot read it; nothing else is known then.
    fault: str = ""

    @property
    def is_busy(self) -> bool:
        """Whether others use it."""
        return bool(self.num_users) or (self.utilization or 0.0) > _NOTABLE_UTILIZATION

    @property
    def is_capped(self) -> bool:
        """Whether it may draw less power than as delivered."""
        limit, default = self.power_limit_watts, self.default_power_limit_watts
        return limit is not None and default is not None and limit < default


def read_gpu_states(
    own_pid: int, chosen: Sequence[Gpu] | None = None
) -> tuple[GpuState, ...]:
    """Returns the state of some GPUs; none without a driver."""
    import pynvml

    wanted = gpus.listed_gpus() if chosen is None else chosen
    try:
        with gpus.driver() as nvml:
            return tuple(_read(nvml, gpu, own_pid) for gpu in wanted)
    except pynvml.NVMLError:
        return ()


def _read(nvml: Any, gpu: Gpu, own_pid: int) -> GpuState:
    try:
        return _read_working(nvml, gpu, own_pid)
    except nvml.NVMLError as error:
        fault = gpus.fault_text(error)
        return GpuState(name=gpu.name, index=gpu.index, fault=fault)


def _read_working(nvml: Any, gpu: Gpu, own_pid: int) -> GpuState:
    handle = nvml.nvmlDeviceGetHandleByIndex(gpu.index)
    ask = gpus.asker(nvml, handle)
    users = ask("nvmlDeviceGetComputeRunningProcesses")
    rates = ask("nvmlDeviceGetUtilizationRates")
    reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
    limit = ask("nvmlDeviceGetEnforcedPowerLimit")
    default = ask("nvmlDeviceGetPowerManagementDefaultLimit")
    return GpuState(
        name=gpu.name,
        num_users=None
        if users is None
        else sum(1 for user in users if user.pid != own_pid),
        utilization=None if rates is None else rates.gpu / 100,
        clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        max_clock_mhz=ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
        temperature_celsius=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        slowed_by=tuple(
            reason for bit, reason in gpus.THROTTLE_REASONS.items() if reasons & bit
        ),
        index=gpu.index,
        power_limit_watts=None if limit is None else limit / 1000,
        default_power_limit_watts=None if default is None else default / 1000,
        num_uncorrected_errors=ask(
            "nvmlDeviceGetTotalEccErrors",
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        ),
        is_mig=gpu.is_mig,
    )


# One GPU that is slower than the others of its model makes every synchronous step wait
# for it, and looks like poor scaling.

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


def multiply(
    ids: Sequence[str],
    devices: Sequence[str],
    *,
    size: int = SIZE,
    turn_sec: float = TURN_SEC,
) -> Rates:
    """Times the product in a process of its own."""
    try:
        found = environment.ask_on_gpus(
            ids,
            "harness.doctor.canary_worker",
            *("gpus", str(turn_sec), str(size), *devices),
            timeout_sec=_TIMEOUT_SEC,
            TF_FORCE_GPU_ALLOW_GROWTH="true",
            **gpus.cache_variables(),
        )
        return {name: list(found[name]) for name in ("alone", "together")}
    except (environment.OwnProgramError, LookupError) as error:
        raise DoctorError(
            f"the matrix product on {', '.join(devices)} failed: {str(error)[:300]};"
            " see docs/gpu.md"
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


def measure_gpus(
    _cores: Sequence[int],
    *,
    probe: Probe = gpu_probe.probe,
    multiply: Multiply = multiply,
) -> list[Finding]:
    """Checks what a sweep on GPUs needs; times them only where it has that."""
    # Of the others, check_gpus says that they cannot be read.
    visible = [of for of in gpus.listed_gpus() if not of.fault]
    findings = check_set(
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
    ids = [of.cuda_id for of in visible]
    devices = [f"GPU:{place}" for place in range(len(ids))]
    try:
        with gpu_watch.hold_gpus(visible, study="doctor"):
            return [*findings, *check_rates(multiply(ids, devices))]
    except UnfitMachineError as error:  # timing them now would disturb a sweep
        found, _, advice = str(error).partition("; ")
        return [*findings, bad("other sweeps", found, advice)]
