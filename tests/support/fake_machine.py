"""Machines that are not there: their GPUs, their ``/proc`` and their loads."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from harness import CpuTopology, Disturbance, LogicalCpu

# Of what measures two replicas: no trial takes more cores than there are.
two_cores = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="needs two cores"
)


TICK_SEC = 1 / os.sysconf("SC_CLK_TCK")
"""What the kernel counts in."""
SAYS_VARIABLES = ("/bin/sh", "-c", 'env -0 > "$0/variables"')
"""A process of a trial that says its variables, and nothing else."""


def variables_of(folder, trial_id):
    """Returns what such a process has said, of a study somewhere in a folder."""
    (path,) = folder.glob(f"runs/*/trials/{trial_id}/variables")
    return dict(line.partition("=")[::2] for line in path.read_text().split("\0"))


def with_cpus(cpus):
    """Returns what makes a run one of a machine of these logical CPUs, a core each."""
    return {"topology": CpuTopology(cpus=tuple(LogicalCpu(cpu=cpu) for cpu in cpus))}


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


def install_packages(folder, patch, versions):
    """Makes packages installed, as far as what says their versions is concerned."""
    for name, version in versions.items():
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (info / "METADATA").write_text(metadata)
    patch.syspath_prepend(str(folder))


def without(questions):
    """Returns the functions of a driver that a GPU does not support, by their ends."""
    return frozenset(f"nvmlDeviceGet{name}" for name in questions.split())


# Says what it would reserve on its hosts, and reserves nothing.
RAY = """
import json, os, sys
sys.modules["ray.util"] = sys.modules["ray.util.placement_group"] = sys.modules["ray"]

class exceptions:
    RayError = type("RayError", (Exception,), {})
    RayTaskError = type("RayTaskError", (RayError,), {})

def init(**_): ...
def shutdown(): ...
def nodes(): return json.loads(os.environ["FAKE_RAY_NODES"])
def remove_placement_group(_): ...

class placement_group:
    def __init__(self, bundles, **_): self.bundles = bundles
    def wait(self, _): raise exceptions.RayError(str(self.bundles))
"""


def install_ray(folder, patch, *hosts, text=RAY):
    """Gives processes that tests start a Ray of hosts of so many cores and GPUs."""
    (folder / "ray.py").write_text(text)
    nodes = [
        {
            "NodeID": str(number),
            "NodeManagerAddress": f"10.0.0.{number}",
            "Resources": {"CPU": float(cores), "GPU": float(gpus)},
            "Alive": not is_dead,
        }
        for number, (cores, gpus, *is_dead) in enumerate(hosts)
    ]
    patch.setenv("FAKE_RAY_NODES", json.dumps(nodes))
    patch.setenv("PYTHONPATH", str(folder))


def make_gpus(count, **fields):
    """Returns GPUs that differ only in their addresses, and have no users."""
    assert not {"users", "users_later"} & {*fields}, "all of them would share the list"
    return [
        FakeGpu(uuid=f"GPU-{i:02x}ab", bus_id=f"00000000:{i + 16:02X}:00.0", **fields)
        for i in range(count)
    ]


def _energy(gpu):
    gpu.energy_joules += gpu.joules_per_reading
    return round(gpu.energy_joules * 1000)


def _users(gpu):
    pids = [*gpu.users, *([] if gpu.asked_before else gpu.users_later)]
    gpu.asked_before = max(gpu.asked_before - 1, 0)
    return [SimpleNamespace(pid=pid) for pid in pids]


def _link(gpu, link):
    """1 for those that are active; an error for those that do not exist."""
    if link >= gpu.num_nvlinks:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return 1


def _clock(gpu, kind):
    kinds = {
        pynvml.NVML_CLOCK_SM: "clock_mhz",
        pynvml.NVML_CLOCK_MEM: "memory_clock_mhz",
    }
    return getattr(gpu, kinds[kind])


def _errors(gpu, kind, counter):
    assert counter == pynvml.NVML_VOLATILE_ECC
    is_corrected = kind == pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
    return gpu.corrected_errors if is_corrected else gpu.uncorrected_errors


def _instance(gpu, index):
    """The instances have the first places."""
    if gpu.mig is None or index >= len(gpu.mig):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    return gpu.mig[index]


ANSWERS = {
    "ClockInfo": _clock,
    "ComputeRunningProcesses": _users,
    "CudaComputeCapability": lambda gpu: list(gpu.capability),
    "CurrPcieLinkWidth": lambda gpu: gpu.pcie_width,
    "CurrentClocksThrottleReasons": lambda gpu: gpu.reasons,
    "EccMode": lambda _gpu: [1, 1],  # current and pending
    "EnforcedPowerLimit": lambda gpu: round(gpu.power_limit_watts * 1000),
    "MaxClockInfo": lambda gpu, _kind: gpu.max_clock_mhz,
    "MaxMigDeviceCount": lambda _gpu: 7,  # of an H100
    "MaxPcieLinkGeneration": lambda gpu: gpu.pcie_generation,
    "MigDeviceHandleByIndex": _instance,
    "MigMode": lambda gpu: [int(gpu.mig is not None)] * 2,
    "Name": lambda gpu: gpu.name,
    "NvLinkState": _link,
    # Over NVLink, between any two that have links.
    "P2PStatus": lambda gpu, other, _: 5 * (not gpu.num_nvlinks * other.num_nvlinks),
    "PciInfo": lambda gpu: SimpleNamespace(busId=gpu.bus_id),
    "PersistenceMode": lambda gpu: int(gpu.is_persistent),
    "PowerManagementDefaultLimit": lambda gpu: round(
        gpu.default_power_limit_watts * 1000
    ),
    "PowerUsage": lambda gpu: round(gpu.power_watts * 1000),
    "Temperature": lambda gpu, _sensor: gpu.temperature_celsius,
    "TotalEccErrors": _errors,
    "TotalEnergyConsumption": _energy,
    "UUID": lambda gpu: gpu.uuid,
    "UtilizationRates": lambda gpu: SimpleNamespace(gpu=gpu.utilization),
}
"""What the driver says of a GPU, by the end of the name of its function."""


class FakeNvml:
    """The module ``pynvml``, on a machine with some GPUs."""

    def __init__(self, gpus, *, driver="570.86.15", cuda=12_080):
        self.gpus = gpus
        self.driver = driver
        self.cuda = cuda
        self.num_open = 0

    def __getattr__(self, name):
        """Returns constants and exceptions of the real module, and what is answered."""
        question = name.removeprefix("nvmlDeviceGet")
        if question in ANSWERS:
            return functools.partial(self._answer, name, ANSWERS[question])
        if name.startswith("nvml") and callable(getattr(pynvml, name, None)):
            raise AssertionError(f"the stand-in does not have {name}")
        return getattr(pynvml, name)

    def _answer(self, name, answer, gpu, *arguments):
        self._check_open()
        if getattr(gpu, "is_lost", False):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        if name in getattr(gpu, "unsupported", ()):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return answer(gpu, *arguments)

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's name
        if self.driver is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        self.num_open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        assert self.num_open, "shut down more often than initialized"
        self.num_open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        self._check_open()
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

    def nvmlDeviceGetTopologyCommonAncestor(  # noqa: N802
        self, handle: FakeGpu, other: FakeGpu
    ) -> int:
        """Two neighbours share a switch; the first and the second half, a socket."""
        first, second = self.gpus.index(handle), self.gpus.index(other)
        if first // 2 == second // 2:
            return int(pynvml.NVML_TOPOLOGY_SINGLE)
        if first // 4 == second // 4:
            return int(pynvml.NVML_TOPOLOGY_NODE)
        return int(pynvml.NVML_TOPOLOGY_SYSTEM)

    def _check_open(self):
        if not self.num_open:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)


class FakeRoot:
    """Writes the files of ``/proc`` and ``/sys`` below a temporary directory."""

    def __init__(self, path):
        self.path = path

    def write(self, name, text):
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def show(self, patch, *names):
        """Has this process find its files where the kernel has those of some names."""
        for module, call in ((os, "open"), (Path, "read_text")):
            real = getattr(module, call)

            def found(path, *args, real=real, **options):
                if str(path).startswith(names):
                    path = type(path)(f"{self.path}{path}")
                return real(path, *args, **options)

            patch.setattr(module, call, found)

    def cores(self, *rows):
        """Sets idle, irq, softirq and steal of cores 0, 1, ..., in ticks."""
        lines = ["cpu  1 2 3 4 5 6 7 8 0 0"]
        for cpu, (idle, irq, softirq, steal) in enumerate(rows):
            lines.append(f"cpu{cpu} 5 5 5 {idle} 0 {irq} {softirq} {steal} 0 0")
        self.write("proc/stat", "\n".join([*lines, "intr 5 0", "ctxt 7", ""]))

    def thread(self, pid, tid, run_sec, delay_sec=0):
        """Sets the totals of one thread."""
        text = f"{round(run_sec * 1e9)} {round(delay_sec * 1e9)} 3\n"
        self.write(f"proc/{pid}/task/{tid}/schedstat", text)

    def process(self, pid, user, system, name="a) b (c"):
        """Sets the totals of one process in ticks; its name can have parentheses."""
        fields = " ".join(["S", *"0" * 10, str(user), str(system), *"0" * 20])
        self.write(f"proc/{pid}/stat", f"{pid} ({name}) {fields}\n")


QUIET = Disturbance(
    foreign_cpu_fraction=0.012345678,
    foreign_resolution=0.031,
    stolen_cpu_fraction=0.001234567,
    stolen_resolution=0.031,
    run_delay_sec=0.012345678,
    num_throttled=0,
)
"""The block counts."""
BUSY = dataclasses.replace(
    QUIET, foreign_cpu_fraction=0.312345678, run_delay_sec=0.112345678
)
"""The block is discarded."""
