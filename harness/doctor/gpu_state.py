"""What the driver says about each GPU now: users, clock, power, errors."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from harness.machine import gpu_choice, gpus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.machine.gpus import Gpu

_NOTABLE_UTILIZATION = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GpuState:
    """One GPU. None: the driver does not say."""

    name: str  # Product name.
    num_users: int | None  # Processes with a context on it, this one not counted.
    utilization: float | None  # Fraction of the last moments in which a kernel ran.
    clock_mhz: int | None  # Clock of the multiprocessors.
    max_clock_mhz: int | None  # The highest one.
    temperature_celsius: int | None  # Of the chip.
    slowed_by: tuple[str, ...]  # Why its clock is lowered; empty if it is not.
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

    wanted = gpu_choice.listed_gpus() if chosen is None else chosen
    try:
        with gpus.driver() as nvml:
            return tuple(_read(nvml, gpu, own_pid) for gpu in wanted)
    except pynvml.NVMLError:
        return ()


def _read(nvml: Any, gpu: Gpu, own_pid: int) -> GpuState:
    try:
        return _read_working(nvml, gpu, own_pid)
    except nvml.NVMLError as error:
        return GpuState(
            name=gpu.name,
            num_users=None,
            utilization=None,
            clock_mhz=None,
            max_clock_mhz=None,
            temperature_celsius=None,
            slowed_by=(),
            index=gpu.index,
            fault=gpus.fault_text(error),
        )


def _read_working(nvml: Any, gpu: Gpu, own_pid: int) -> GpuState:
    handle = nvml.nvmlDeviceGetHandleByIndex(gpu.index)

    def ask(name: str, *arguments: Any) -> Any:
        return gpus.ask(nvml, name, handle, *arguments)

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
