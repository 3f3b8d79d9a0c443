"""A stand-in for the library of the NVIDIA driver, with the GPUs that a test describes.

``FakeNvml`` takes the place of the module ``pynvml``: its constants and exceptions are
the real ones, its functions answer from the GPUs of the test. A function that is not
here fails the test that calls it, so that no path of the harness runs unnoticed on
answers that nobody wrote.
"""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pynvml


@dataclasses.dataclass(kw_only=True)
class FakeMig:
    """An instance of a GPU that is in MIG mode."""

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"


@dataclasses.dataclass(kw_only=True)
class FakeGpu:
    """A GPU as its driver describes it; a test may change it while a trial runs."""

    uuid: str = "GPU-00"  # Its name in ``CUDA_VISIBLE_DEVICES``.
    name: str = "NVIDIA H100 80GB HBM3"  # Product name.
    # PCI address, by which the kernel knows its NUMA node.
    bus_id: str = "00000000:1B:00.0"
    # Process ids that have a context on it.
    users: list[int] = dataclasses.field(default_factory=list)
    # More of them, once the driver has been asked ``asked_before`` times.
    users_later: list[int] = dataclasses.field(default_factory=list)
    asked_before: int = 0  # How often that is.
    utilization: int = 0  # Percent of the last moments in which a kernel ran.
    clock_mhz: int = 1980  # Clock of the multiprocessors now.
    max_clock_mhz: int = 1980  # The highest one.
    temperature_celsius: int = 31  # Of the chip.
    reasons: int = 0  # Bits that say why its clock is lowered.
    power_watts: float = 120.0  # Drawn now.
    power_limit_watts: float = 700.0  # Enforced now.
    default_power_limit_watts: float = 700.0  # As delivered.
    # Used since the driver was loaded; grows with each reading.
    energy_joules: float = 1000.0
    joules_per_reading: float = 5.0  # By how much.
    uncorrected_errors: int = 0  # ECC errors since the last reset.
    # Its instances in MIG mode; None if it is not in MIG mode.
    mig: list[FakeMig] | None = None
    # Names of functions that it does not support.
    unsupported: frozenset[str] = frozenset()
    corrected_errors: int = 0  # ECC errors that it corrected since the last reset.
    memory_clock_mhz: int = 2619  # Clock of its memory now.
    is_persistent: bool = True  # Whether the driver stays loaded without users.
    pcie_generation: int = 5  # The highest that GPU and slot have.
    pcie_width: int = 16  # Lanes.
    num_nvlinks: int = 18  # Active links.
    capability: tuple[int, int] = (9, 0)  # Compute capability.
    is_lost: bool = False  # Whether the driver has lost it: every question is an error.


def without(questions):
    """Returns the functions of a driver that a GPU does not support, by their ends."""
    return frozenset(f"nvmlDeviceGet{name}" for name in questions.split())


def make_gpus(count, **fields):
    """Returns GPUs that differ only in their addresses, and have no users."""
    assert not {"users", "users_later"} & {*fields}, "all of them would share the list"
    return [
        FakeGpu(uuid=f"GPU-{i:02x}ab", bus_id=f"00000000:{i + 16:02X}:00.0", **fields)
        for i in range(count)
    ]


class FakeNvml:
    """The module ``pynvml``, on a machine with some GPUs."""

    def __init__(self, gpus, *, driver="570.86.15", cuda=12_080):
        self.gpus = gpus
        self.driver = driver
        self.cuda = cuda
        self.num_open = 0

    def __getattr__(self, name):
        """Returns constants and exceptions of the real module, no function."""
        if name.startswith("nvml") and callable(getattr(pynvml, name, None)):
            raise AssertionError(f"the stand-in does not have {name}")
        return getattr(pynvml, name)

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        """Opens the driver."""
        if self.driver is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        self.num_open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        """Closes it."""
        assert self.num_open, "shut down more often than initialized"
        self.num_open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        """As ``nvidia-smi`` shows it."""
        self._check_open()
        assert self.driver is not None
        return self.driver

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        """1000 * major + 10 * minor."""
        self._check_open()
        return self.cuda

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        """GPUs, whatever CUDA_VISIBLE_DEVICES says."""
        self._check_open()
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        """The handle is the GPU itself."""
        self._check_open()
        if self.gpus[index].is_lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, handle: FakeGpu | FakeMig) -> str:  # noqa: N802
        return handle.uuid

    def nvmlDeviceGetName(self, handle: FakeGpu | FakeMig) -> str:  # noqa: N802
        return handle.name

    def nvmlDeviceGetPciInfo(self, handle: FakeGpu) -> Any:  # noqa: N802
        """As newer versions of the library return it."""
        return types.SimpleNamespace(busId=handle.bus_id)

    def nvmlDeviceGetCudaComputeCapability(self, handle: FakeGpu) -> list[int]:  # noqa: N802
        """Major and minor version."""
        self._check(handle, "nvmlDeviceGetCudaComputeCapability")
        return list(handle.capability)

    def nvmlDeviceGetMigMode(self, handle: FakeGpu) -> list[int]:  # noqa: N802
        """Current and pending mode."""
        return [int(handle.mig is not None)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, _: FakeGpu) -> int:  # noqa: N802
        """Most instances of an H100."""
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(  # noqa: N802
        self, handle: FakeGpu, index: int
    ) -> FakeMig:
        """The instances have the first places."""
        if handle.mig is None or index >= len(handle.mig):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return handle.mig[index]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: FakeGpu) -> Any:  # noqa: N802
        """Processes that have a context."""
        self._check(handle, "nvmlDeviceGetComputeRunningProcesses")
        pids = [*handle.users, *([] if handle.asked_before else handle.users_later)]
        handle.asked_before = max(handle.asked_before - 1, 0)
        return [types.SimpleNamespace(pid=pid) for pid in pids]

    def nvmlDeviceGetUtilizationRates(self, handle: FakeGpu) -> Any:  # noqa: N802
        """In percent."""
        self._check(handle, "nvmlDeviceGetUtilizationRates")
        return types.SimpleNamespace(gpu=handle.utilization)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: FakeGpu) -> int:  # noqa: N802
        """A set of bits."""
        self._check(handle, "nvmlDeviceGetCurrentClocksThrottleReasons")
        return handle.reasons

    def nvmlDeviceGetClockInfo(self, handle: FakeGpu, kind: int) -> int:  # noqa: N802
        assert kind in (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM)
        self._check(handle, "nvmlDeviceGetClockInfo")
        is_memory = kind == pynvml.NVML_CLOCK_MEM
        return handle.memory_clock_mhz if is_memory else handle.clock_mhz

    def nvmlDeviceGetMaxClockInfo(self, handle: FakeGpu, kind: int) -> int:  # noqa: N802
        assert kind == pynvml.NVML_CLOCK_SM
        self._check(handle, "nvmlDeviceGetMaxClockInfo")
        return handle.max_clock_mhz

    def nvmlDeviceGetTemperature(self, handle: FakeGpu, sensor: int) -> int:  # noqa: N802
        """Of the chip."""
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        self._check(handle, "nvmlDeviceGetTemperature")
        return handle.temperature_celsius

    def nvmlDeviceGetPowerUsage(self, handle: FakeGpu) -> int:  # noqa: N802
        """In milliwatts."""
        self._check(handle, "nvmlDeviceGetPowerUsage")
        return round(handle.power_watts * 1000)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: FakeGpu) -> int:  # noqa: N802
        """In milliwatts."""
        self._check(handle, "nvmlDeviceGetEnforcedPowerLimit")
        return round(handle.power_limit_watts * 1000)

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: FakeGpu) -> int:  # noqa: N802
        """In milliwatts."""
        self._check(handle, "nvmlDeviceGetPowerManagementDefaultLimit")
        return round(handle.default_power_limit_watts * 1000)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: FakeGpu) -> int:  # noqa: N802
        """In millijoules."""
        self._check(handle, "nvmlDeviceGetTotalEnergyConsumption")
        handle.energy_joules += handle.joules_per_reading
        return round(handle.energy_joules * 1000)

    def nvmlDeviceGetTotalEccErrors(  # noqa: N802
        self, handle: FakeGpu, kind: int, counter: int
    ) -> int:
        """Errors since the last reset."""
        assert counter == pynvml.NVML_VOLATILE_ECC
        self._check(handle, "nvmlDeviceGetTotalEccErrors")
        is_corrected = kind == pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
        return handle.corrected_errors if is_corrected else handle.uncorrected_errors

    def nvmlDeviceGetPersistenceMode(self, handle: FakeGpu) -> int:  # noqa: N802
        """1 where the driver stays loaded."""
        self._check(handle, "nvmlDeviceGetPersistenceMode")
        return int(handle.is_persistent)

    def nvmlDeviceGetEccMode(self, handle: FakeGpu) -> list[int]:  # noqa: N802
        """Current and pending mode."""
        self._check(handle, "nvmlDeviceGetEccMode")
        return [1, 1]

    def nvmlDeviceGetMaxPcieLinkGeneration(self, handle: FakeGpu) -> int:  # noqa: N802
        """Of GPU and slot."""
        self._check(handle, "nvmlDeviceGetMaxPcieLinkGeneration")
        return handle.pcie_generation

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: FakeGpu) -> int:  # noqa: N802
        """Lanes."""
        self._check(handle, "nvmlDeviceGetCurrPcieLinkWidth")
        return handle.pcie_width

    def nvmlDeviceGetNvLinkState(self, handle: FakeGpu, link: int) -> int:  # noqa: N802
        """1 for those that are active; an error for those that do not exist."""
        self._check(handle, "nvmlDeviceGetNvLinkState")
        if link >= handle.num_nvlinks:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return 1

    def nvmlDeviceGetP2PStatus(  # noqa: N802
        self, handle: FakeGpu, other: FakeGpu, kind: int
    ) -> int:
        """Over NVLink, between any two that have links."""
        assert kind == pynvml.NVML_P2P_CAPS_INDEX_NVLINK
        self._check(handle, "nvmlDeviceGetP2PStatus")
        return 0 if handle.num_nvlinks and other.num_nvlinks else 5

    def nvmlDeviceGetTopologyCommonAncestor(  # noqa: N802
        self, handle: FakeGpu, other: FakeGpu
    ) -> int:
        """Two neighbours share a switch; the first and the second half, a socket."""
        self._check(handle, "nvmlDeviceGetTopologyCommonAncestor")
        first, second = self.gpus.index(handle), self.gpus.index(other)
        if first // 2 == second // 2:
            return int(pynvml.NVML_TOPOLOGY_SINGLE)
        if first // 4 == second // 4:
            return int(pynvml.NVML_TOPOLOGY_NODE)
        return int(pynvml.NVML_TOPOLOGY_SYSTEM)

    def _check_open(self):
        if not self.num_open:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)

    def _check(self, handle, name):
        self._check_open()
        if handle.is_lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        if name in handle.unsupported:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
