"""How GPUs are set and connected, in the words of nvidia-smi."""

import pytest
from fake_nvml import FakeGpu, make_gpus

from harness.machine import gpu_settings, gpus
from results.records.machines.gpu_settings import GpuSettings


def test_settings_of_gpus_with_nvlink(install_gpus):
    """Every pair is connected over all links of one of them."""
    nvml = install_gpus(
        [
            *make_gpus(1, corrected_errors=2, power_limit_watts=500.0),
            FakeGpu(uuid="b", is_persistent=False),
        ]
    )
    first, second = gpu_settings.read(gpus.read_gpus())

    assert first == GpuSettings(
        index=0,
        power_limit_watts=500.0,
        is_persistent=True,
        is_ecc_enabled=True,
        num_corrected_errors=2,
        num_uncorrected_errors=0,
        pcie_generation=5,
        pcie_width=16,
        num_nvlinks=18,
        paths=("X", "NV18"),
    )
    assert (("NV18", "X"), False) == (second.paths, second.is_persistent)
    assert 0 == nvml.num_open


@pytest.mark.parametrize(
    ("chosen", "paths"),
    [
        ([0, 1, 2, 4], [("X", "PIX", "NODE", "SYS"), ("PIX", "X", "NODE", "SYS")]),
        ([4, 0], [("X", "SYS"), ("SYS", "X")]),
    ],
)
def test_paths_over_pcie_are_to_the_gpus_of_the_trial(install_gpus, chosen, paths):
    install_gpus(make_gpus(8, num_nvlinks=0))
    visible = gpus.read_gpus()
    found = gpu_settings.read([visible[index] for index in chosen])

    assert chosen == [of.index for of in found]
    assert paths == [of.paths for of in found[:2]]
    assert {0, None} >= {of.num_nvlinks for of in found}


def test_what_a_gpu_does_not_support_is_none(install_gpus):
    """Old and virtual ones say little; a lost one ends the question."""
    names = (
        "EnforcedPowerLimit",
        "PersistenceMode",
        "EccMode",
        "TotalEccErrors",
        "MaxPcieLinkGeneration",
        "CurrPcieLinkWidth",
        "NvLinkState",
        "P2PStatus",
        "TopologyCommonAncestor",
    )
    unsupported = frozenset(f"nvmlDeviceGet{name}" for name in names)
    machine = make_gpus(2, unsupported=unsupported)
    install_gpus(machine)
    visible = gpus.read_gpus()

    assert (
        GpuSettings(index=0, paths=("X", "?")),
        GpuSettings(index=1, paths=("?", "X")),
    ) == gpu_settings.read(visible)
    machine[1].is_lost = True
    assert () == gpu_settings.read(visible)
