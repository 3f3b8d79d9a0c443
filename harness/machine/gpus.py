"""The NVIDIA GPUs of this machine through the driver, without TensorFlow."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from harness.errors import PlanError
from results.errors import UnavailableRecordError
from results.records.measuring import GpuSettings
from results.records.texts import printable
from results.store import untrusted

T = TypeVar("T")
NO_GPU = "-1"
"""The value of ``CUDA_VISIBLE_DEVICES`` that hides all of them."""

_THROTTLE_REASONS = {
    0x4: "power limit",
    0x8: "hardware slowdown",
    0x20: "heat",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
"""Bits of NVML's reasons for a lower clock; idle and settings by the user are none."""


def throttle_reasons(bits: int) -> tuple[str, ...]:
    """Returns why a clock is lowered; empty if it is not."""
    return tuple(text for bit, text in _THROTTLE_REASONS.items() if bits & bit)


_DOES_NOT_SAY = (
    *("NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_NO_PERMISSION", "NVML_ERROR_NOT_FOUND"),
    *("NVML_ERROR_INVALID_ARGUMENT", "NVML_ERROR_FUNCTION_NOT_FOUND"),
    *("NVML_ERROR_ARGUMENT_VERSION_MISMATCH", "NVML_ERROR_DEPRECATED"),
)
"""A GPU without the feature, an old driver, a container: no fault."""
_MOST_SAID = 100


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU, or an instance of one that is in MIG mode."""

    index: int  # Its number for the driver, in the order of PCI addresses.
    uuid: str  # Its name for the driver.
    name: str  # Product name.
    node: int | None = None  # Its NUMA node; None if the kernel does not say.
    is_mig: bool = False  # Whether it is an instance of a GPU in MIG mode.
    # Whether CUDA numbers GPUs as the driver does; not where one is in MIG mode.
    has_number: bool = True
    fault: str = ""  # What the driver says where it cannot read it.
    capability: tuple[int, int] | None = None  # None if the driver does not say.

    @property
    def cuda_id(self) -> str:
        """Its name in ``CUDA_VISIBLE_DEVICES``."""
        return str(self.index) if self.has_number else self.uuid


@contextlib.contextmanager
def driver() -> Iterator[Any]:
    import pynvml

    pynvml.nvmlInit()
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def asker(nvml: Any, handle: Any) -> Callable[..., Any]:
    """Returns what asks about one GPU; the answer is None where it has none."""

    def ask(question: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, f"nvmlDeviceGet{question}")(handle, *arguments)
        except nvml.NVMLError as error:
            if error.value in {getattr(nvml, code, None) for code in _DOES_NOT_SAY}:
                return None
            raise

    return ask


def from_milli(value: int | None) -> float | None:
    return None if value is None else value / 1000


def fault_text(error: Exception) -> str:
    """Returns what the driver says of a GPU that it cannot read, in one line."""
    return " ".join(printable(str(error)).split())[:_MOST_SAID]


def from_driver(default: T, read: Callable[[Any], T]) -> T:
    """Returns what is read of the driver's library, or a default without a driver."""
    import pynvml

    try:
        with driver() as nvml:
            return read(nvml)
    except pynvml.NVMLError:
        return default


def read_gpus(root: Path = Path("/")) -> tuple[Gpu, ...]:
    """All GPUs, with the instances of those in MIG mode; none without a driver."""

    def read(nvml: Any) -> tuple[Gpu, ...]:
        indices = range(nvml.nvmlDeviceGetCount())
        return tuple(gpu for index in indices for gpu in _read(nvml, index, root))

    gpus: tuple[Gpu, ...] = from_driver((), read)
    if any(gpu.is_mig for gpu in gpus):
        return tuple(dataclasses.replace(gpu, has_number=False) for gpu in gpus)
    return gpus


def _read(nvml: Any, index: int, root: Path) -> Iterator[Gpu]:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        ask = asker(nvml, handle)
        pci, version = ask("PciInfo"), ask("CudaComputeCapability")
        mode = ask("MigMode")
        is_mig, handles = bool(mode and mode[0]), [handle]
        if is_mig:
            places = range(ask("MaxMigDeviceCount") or 0)
            handles = [ask("MigDeviceHandleByIndex", place) for place in places]
        for instance in handles:
            if instance is not None:
                yield Gpu(
                    index=index,
                    uuid=_text(nvml.nvmlDeviceGetUUID(instance)),
                    name=printable(_text(nvml.nvmlDeviceGetName(instance))),
                    node=None if pci is None else read_node(_text(pci.busId), root),
                    is_mig=is_mig,
                    capability=version and (int(version[0]), int(version[1])),
                )
    except nvml.NVMLError as error:  # of this GPU: the driver itself has answered
        fault = fault_text(error)
        yield Gpu(index=index, uuid=f"GPU-{index}", name="unknown GPU", fault=fault)


def _text(value: Any) -> str:
    """Older versions of the library return bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


def read_node(bus_id: str, root: Path = Path("/")) -> int | None:
    domain, _, rest = bus_id.lower().partition(":")
    path = root / f"sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node"
    try:
        node = int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def driver_version() -> str | None:
    return from_driver(None, lambda nvml: _text(nvml.nvmlSystemGetDriverVersion()))


def cuda_version() -> str | None:
    number = from_driver(0, lambda nvml: int(nvml.nvmlSystemGetCudaDriverVersion_v2()))
    return f"{number // 1000}.{number % 1000 // 10}" if number else None


# CUDA itself is silent about mistakes: an id that does not exist hides all after it,
# and an id that is given twice hides all. Here both are errors.

_MOST_SHOWN = 120


def visible_gpus(environment: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
    """Returns the GPUs this process can use, in the order of CUDA_VISIBLE_DEVICES."""
    chosen = listed_gpus(environment)
    for gpu in chosen:
        if gpu.fault:
            others = ",".join(each.cuda_id for each in read_gpus() if not each.fault)
            raise PlanError(
                f"GPU {gpu.cuda_id} cannot be read ({gpu.fault}), so it may be in use"
                " or broken; reset it (sudo nvidia-smi --gpu-reset), or hide it:"
                f" CUDA_VISIBLE_DEVICES={others or NO_GPU}"
            )
    return chosen


def listed_gpus(environment: Mapping[str, str] = os.environ) -> tuple[Gpu, ...]:
    """Returns the GPUs this process may use, also those that cannot be read."""
    known, limit = read_gpus(), environment.get("CUDA_VISIBLE_DEVICES")
    if limit is None or not known:
        return known
    chosen: list[Gpu] = []
    shown = f"CUDA_VISIBLE_DEVICES={_cut(limit)}"
    for text in limit.split(",") if limit.strip() else []:
        name = text.strip()
        if name == NO_GPU:  # hides itself and the rest, as it is meant to
            break
        gpu = _find(name, known, shown)
        if gpu in chosen:
            raise PlanError(
                f"{shown} names GPU {gpu.cuda_id} twice, so CUDA would show none; name"
                " each GPU once"
            )
        chosen.append(gpu)
    return tuple(chosen)


def _find(name: str, known: Sequence[Gpu], shown: str) -> Gpu:
    matching = []
    if name.isdecimal():
        matching = [gpu for gpu in known if gpu.index == int(name)][:1]
    elif name.startswith(("GPU-", "MIG-")):  # CUDA takes a unique beginning as well
        matching = [gpu for gpu in known if gpu.uuid.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    ids = ", ".join(gpu.cuda_id for gpu in known)
    if matching:
        uuids = ", ".join(gpu.uuid for gpu in matching)
        raise PlanError(
            f"{shown}: '{_cut(name)}' is the beginning of {len(matching)} ids"
            f" ({uuids}); give one of them in full"
        )
    raise PlanError(
        f"{shown}: '{_cut(name)}' is no GPU of this machine, so CUDA would"
        f" hide it and all after it; allowed are {ids} and the UUIDs that"
        " 'nvidia-smi -L' lists"
    )


def _cut(text: str) -> str:
    return printable(text)[:_MOST_SHOWN]


def choose(visible: Sequence[Gpu], num_replicas: int) -> tuple[Gpu, ...]:
    if len(visible) < num_replicas:
        raise PlanError(
            f"the trial needs {num_replicas} GPUs, but this machine shows"
            f" {len(visible)}; continue the study on the machine it was planned for"
        )
    chosen = tuple(visible[:num_replicas])
    if num_replicas > 1 and any(gpu.is_mig for gpu in chosen):
        raise PlanError(
            f"{num_replicas} replicas need {num_replicas} GPUs, but this machine's are"
            " in MIG mode, and CUDA gives a process one MIG instance at most; use"
            " --replicas 1, or switch MIG off: sudo nvidia-smi -mig 0"
        )
    if len({gpu.name for gpu in chosen}) > 1:
        most = statistics.mode(gpu.name for gpu in visible)
        equal = ",".join(gpu.cuda_id for gpu in visible if gpu.name == most)
        raise PlanError(
            f"{num_replicas} replicas need {num_replicas} GPUs of one model, but"
            f" {models(chosen)}; choose equal ones with CUDA_VISIBLE_DEVICES, such as"
            f" CUDA_VISIBLE_DEVICES={equal}"
        )
    return chosen


def models(chosen: Sequence[Gpu]) -> str:
    """Returns which GPUs are of which model, in words."""
    by_name: dict[str, list[str]] = {}
    for gpu in chosen:
        by_name.setdefault(gpu.name, []).append(gpu.cuda_id)
    return ", ".join(
        f"GPU {'+'.join(ids)} {'is' if len(ids) == 1 else 'are'} {name}"
        for name, ids in by_name.items()
    )


_MOST_LINKS: Final = 36
"""More than any GPU has; those that do not exist are no error."""
_LEVELS: Final = (
    ("NVML_TOPOLOGY_INTERNAL", "PIX"),
    ("NVML_TOPOLOGY_SINGLE", "PIX"),
    ("NVML_TOPOLOGY_MULTIPLE", "PXB"),
    ("NVML_TOPOLOGY_HOSTBRIDGE", "PHB"),
    ("NVML_TOPOLOGY_NODE", "NODE"),
    ("NVML_TOPOLOGY_SYSTEM", "SYS"),
)


def read_settings(chosen: Sequence[Gpu]) -> tuple[GpuSettings, ...]:
    """The settings of some GPUs; none without a driver, or where one is lost."""

    def read(nvml: Any) -> tuple[GpuSettings, ...]:
        handles = [nvml.nvmlDeviceGetHandleByIndex(gpu.index) for gpu in chosen]
        return tuple(
            _read_settings(nvml, gpu.index, handle, handles)
            for gpu, handle in zip(chosen, handles, strict=True)
        )

    return from_driver((), read)


def _read_settings(
    nvml: Any, index: int, handle: Any, others: Sequence[Any]
) -> GpuSettings:
    ask = asker(nvml, handle)
    mode, ecc = ask("PersistenceMode"), ask("EccMode")
    kinds = (
        nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
        nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
    )
    errors = [ask("TotalEccErrors", kind, nvml.NVML_VOLATILE_ECC) for kind in kinds]
    links = [ask("NvLinkState", link) for link in range(_MOST_LINKS)]
    num_links = links.count(nvml.NVML_FEATURE_ENABLED)

    def path(other: Any) -> str:
        if other is handle:
            return "X"
        status = num_links and ask("P2PStatus", other, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
        if num_links and status == nvml.NVML_P2P_STATUS_OK:
            return f"NV{num_links}"
        names = {getattr(nvml, constant): name for constant, name in _LEVELS}
        return names.get(ask("TopologyCommonAncestor", other), "?")

    return GpuSettings(
        index=index,
        power_limit_watts=from_milli(ask("EnforcedPowerLimit")),
        is_persistent=None if mode is None else bool(mode),
        is_ecc_enabled=None if ecc is None else bool(ecc[0]),
        num_corrected_errors=errors[0],
        num_uncorrected_errors=errors[1],
        pcie_generation=ask("MaxPcieLinkGeneration"),
        pcie_width=ask("CurrPcieLinkWidth"),
        num_nvlinks=None if set(links) == {None} else num_links,
        paths=tuple(map(path, others)),
    )


# TensorFlow's wheel has machine code for some GPUs, and for newer ones PTX, which the
# driver compiles when a kernel is first used: minutes, once per driver, TensorFlow and
# model of GPU. It keeps the result in a folder, in which ``doctor`` notes it.

CACHE_PATH: Final = "CUDA_CACHE_PATH"
CACHE_SIZE: Final = "CUDA_CACHE_MAXSIZE"
CACHE_DISABLE: Final = "CUDA_CACHE_DISABLE"
CACHE_FOLDER: Final = ".nv/ComputeCache"
"""In the user's home; CUDA takes it by itself, so other programs find it, too."""
LARGEST_CACHE: Final = 2**32
"""The most that CUDA takes; beyond its default of 1 GiB it drops what is oldest."""
_NOTE: Final = "compiled_once.json"
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)(a?)")

Code = Literal["native", "compiled", "none"]


def cache_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the variables by which a process of CUDA finds and keeps its code."""
    default = Path(environ.get("HOME") or Path.home()) / CACHE_FOLDER
    return {
        CACHE_PATH: environ.get(CACHE_PATH) or str(default),
        CACHE_SIZE: environ.get(CACHE_SIZE) or str(LARGEST_CACHE),
    }


def is_cache_disabled(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether every process compiles again."""
    return environ.get(CACHE_DISABLE, "0") not in ("", "0")


def code_for(capability: tuple[int, int], architectures: Sequence[str]) -> Code:
    """What of a build runs on a GPU: code for it, PTX to compile, or nothing."""
    code: Code = "none"
    for text in architectures:
        match = _ARCHITECTURE.fullmatch(text)
        if match is None:
            continue
        kind, built_for = match[1], (int(match[2]), int(match[3]))
        if kind == "sm":
            # Code of a minor version runs on later ones of the same major one.
            is_later = built_for[0] == capability[0] and built_for <= capability
            if capability == built_for or (is_later and not match[4]):
                return "native"
        elif built_for <= capability and not match[4]:
            code = "compiled"
    return code


def noted_code(folder: Path) -> tuple[str, ...]:
    """Returns the keys of what was compiled completely; none where nothing is noted."""
    try:
        notes = untrusted.parsed(untrusted.read_text(folder / _NOTE) or "[]")
    except (UnavailableRecordError, ValueError):
        return ()
    return tuple(map(str, notes)) if isinstance(notes, list) else ()


def note_code(folder: Path, compiled: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(sorted({*noted_code(folder), compiled}), indent=1)
    (folder / _NOTE).write_text(text + "\n", encoding="utf-8")


def cache_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # moved by a process that compiles
            total += path.stat().st_size
    return total
