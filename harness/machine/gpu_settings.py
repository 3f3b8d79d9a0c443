"""Reads how the GPUs of a trial are set and connected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from harness.machine import gpus
from results.records.machines.machine_record import GpuSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.machine.gpus import Gpu

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


def read(chosen: Sequence[Gpu]) -> tuple[GpuSettings, ...]:
    """The settings of some GPUs; none without a driver, or where one is lost."""
    import pynvml

    try:
        with gpus.driver() as nvml:
            handles = [nvml.nvmlDeviceGetHandleByIndex(gpu.index) for gpu in chosen]
            return tuple(
                _read(nvml, gpu.index, handle, handles)
                for gpu, handle in zip(chosen, handles, strict=True)
            )
    except pynvml.NVMLError:
        return ()


def _read(nvml: Any, index: int, handle: Any, others: Sequence[Any]) -> GpuSettings:
    def ask(name: str, *arguments: Any) -> Any:
        return gpus.ask(nvml, name, handle, *arguments)

    limit = ask("nvmlDeviceGetEnforcedPowerLimit")
    mode = ask("nvmlDeviceGetPersistenceMode")
    ecc = ask("nvmlDeviceGetEccMode")
    errors = [
        ask("nvmlDeviceGetTotalEccErrors", kind, nvml.NVML_VOLATILE_ECC)
        for kind in (
            nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        )
    ]
    links = [ask("nvmlDeviceGetNvLinkState", link) for link in range(_MOST_LINKS)]
    known = [link for link in links if link is not None]
    num_links = sum(1 for link in known if link == nvml.NVML_FEATURE_ENABLED)
    return GpuSettings(
        index=index,
        power_limit_watts=None if limit is None else limit / 1000,
        is_persistent=None if mode is None else bool(mode),
        is_ecc_enabled=None if ecc is None else bool(ecc[0]),
        num_corrected_errors=errors[0],
        num_uncorrected_errors=errors[1],
        pcie_generation=ask("nvmlDeviceGetMaxPcieLinkGeneration"),
        pcie_width=ask("nvmlDeviceGetCurrPcieLinkWidth"),
        num_nvlinks=num_links if known else None,
        paths=tuple(
            "X" if other is handle else _path(nvml, handle, other, num_links)
            for other in others
        ),
    )


def _path(nvml: Any, handle: Any, other: Any, num_links: int) -> str:
    status = gpus.ask(
        nvml,
        "nvmlDeviceGetP2PStatus",
        handle,
        other,
        nvml.NVML_P2P_CAPS_INDEX_NVLINK,
    )
    if num_links and status == nvml.NVML_P2P_STATUS_OK:
        return f"NV{num_links}"
    level = gpus.ask(nvml, "nvmlDeviceGetTopologyCommonAncestor", handle, other)
    names = {getattr(nvml, constant): name for constant, name in _LEVELS}
    return names.get(level, "?")
