"""What the driver says about each GPU now: users, clock, temperature, throttling."""

from __future__ import annotations

import dataclasses
from typing import Any

from harness.machine import gpus
from results.texts import printable

# Bits of NVML's reasons for a lower clock; idle and settings by the user are none.
_REASONS = {
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x20: "heat",
    0x40: "heat (hardware)",
    0x80: "power brake",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GpuState:
    """One GPU. None: the driver does not say.

    Attributes:
      name: Product name.
      num_users: Processes with a context on it, this one not counted.
      utilization: Fraction of the last moments in which a kernel ran.
      clock_mhz: Clock of the multiprocessors.
      max_clock_mhz: The highest one.
      temperature_celsius: Of the chip.
      slowed_by: Why its clock is lowered; empty if it is not.
    """

    name: str
    num_users: int | None
    utilization: float | None
    clock_mhz: int | None
    max_clock_mhz: int | None
    temperature_celsius: int | None
    slowed_by: tuple[str, ...]


def read_gpu_states(own_pid: int) -> tuple[GpuState, ...]:
    """Returns the state of every GPU; none without a driver.

    Args:
      own_pid: A process that does not count as a user.
    """
    try:
        import pynvml

        with gpus.driver():
            count = int(pynvml.nvmlDeviceGetCount())
            return tuple(_read(pynvml, i, own_pid) for i in range(count))
    except pynvml.NVMLError:
        return ()


def _read(nvml: Any, index: int, own_pid: int) -> GpuState:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    users = _ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle)
    rates = _ask(nvml, "nvmlDeviceGetUtilizationRates", handle)
    reasons = _ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle) or 0
    return GpuState(
        name=printable(str(nvml.nvmlDeviceGetName(handle))),
        num_users=None
        if users is None
        else sum(1 for user in users if user.pid != own_pid),
        utilization=None if rates is None else rates.gpu / 100,
        clock_mhz=_ask(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
        max_clock_mhz=_ask(
            nvml, "nvmlDeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM
        ),
        temperature_celsius=_ask(
            nvml, "nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU
        ),
        slowed_by=tuple(text for bit, text in _REASONS.items() if reasons & bit),
    )


def _ask(nvml: Any, name: str, *arguments: Any) -> Any:
    """Returns an answer of the driver; None where this GPU does not support it."""
    try:
        return getattr(nvml, name)(*arguments)
    except nvml.NVMLError:
        return None
