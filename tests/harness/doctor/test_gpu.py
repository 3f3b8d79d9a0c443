"""GPUs that others use, or whose clock is lowered, are found."""

from __future__ import annotations

import re
import sys
import types
from typing import Any

import pytest

from harness.doctor import gpu, gpu_state
from harness.doctor.gpu_state import GpuState
from harness.machine import gpus


def _state(**fields: Any) -> GpuState:
    defaults: dict[str, Any] = {
        "name": "H100",
        "num_users": 0,
        "utilization": 0.0,
        "clock_mhz": 345,
        "max_clock_mhz": 1980,
        "temperature_celsius": 31,
        "slowed_by": (),
    }
    return GpuState(**(defaults | fields))


@pytest.mark.parametrize(
    ("fields", "level", "found", "advice"),
    [
        (
            {},
            "ok",
            "H100, no other processes, 0 % busy, 345 of 1980 MHz, 31 degrees Celsius",
            "",
        ),
        (
            {"num_users": 1},
            "bad",
            "H100, 1 other process, .*",
            r"end its other users \(nvidia-smi\), or hide it: CUDA_VISIBLE_DEVICES",
        ),
        (
            {"num_users": None, "utilization": 0.5},
            "bad",
            "H100, 50 % busy, .*",
            r"end its other users \(nvidia-smi\), or hide it: CUDA_VISIBLE_DEVICES",
        ),
        (
            {"slowed_by": ("power limit", "heat")},
            "bad",
            ".* slowed by power limit and heat",
            "let it cool, or raise its power limit: its clock is lowered",
        ),
        (
            {"num_users": None, "clock_mhz": None, "temperature_celsius": None},
            "caution",
            "H100, 0 % busy",
            "look for other users with nvidia-smi: the driver does not list them",
        ),
    ],
)
def test_each_state_of_a_gpu_has_its_finding(
    fields: dict[str, Any], level: str, found: str, advice: str
) -> None:
    """Users and a lowered clock make timings unusable."""
    (finding,) = gpu.check_gpus([_state(**fields)])

    assert ("GPU 0", level) == (finding.check, finding.level)
    assert re.fullmatch(found, finding.found)
    assert re.fullmatch(advice, finding.advice)


def test_no_gpu_is_fine() -> None:
    """Most machines of this project have none."""
    (finding,) = gpu.check_gpus([])

    assert ("ok", "none visible") == (finding.level, finding.found)


class _NVMLError(Exception):
    pass


def _refuse(*_: object) -> None:
    raise _NVMLError


def _make_driver(**functions: Any) -> Any:
    """A stand-in for the library of the driver, which knows one GPU."""
    defaults: dict[str, Any] = {
        "NVMLError": _NVMLError,
        "NVML_CLOCK_SM": 1,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda _: "H100",
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [
            types.SimpleNamespace(pid=pid) for pid in (7, 8)
        ],
        "nvmlDeviceGetUtilizationRates": lambda _: types.SimpleNamespace(gpu=25),
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 0x1 | 0x4 | 0x20,
        "nvmlDeviceGetClockInfo": lambda *_: 1200,
        "nvmlDeviceGetMaxClockInfo": lambda *_: 1980,
        "nvmlDeviceGetTemperature": lambda *_: 80,
        "nvmlSystemGetDriverVersion": lambda: "570.1",
    }
    return types.SimpleNamespace(**(defaults | functions))


def test_the_driver_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is no other user; an idle clock is no throttling."""
    monkeypatch.setitem(sys.modules, "pynvml", _make_driver())
    (state,) = gpu_state.read_gpu_states(8)

    assert state == GpuState(
        name="H100",
        num_users=1,
        utilization=0.25,
        clock_mhz=1200,
        max_clock_mhz=1980,
        temperature_celsius=80,
        slowed_by=("power limit", "heat"),
    )
    assert "570.1" == gpus.driver_version()


def test_what_a_gpu_does_not_support_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old and virtual GPUs answer a part of the questions."""
    names = [
        name
        for name in vars(_make_driver())
        if name.startswith("nvmlDeviceGet") and not name.endswith(("Count", "Name"))
    ]
    refused = {n: _refuse for n in names if n != "nvmlDeviceGetHandleByIndex"}
    monkeypatch.setitem(sys.modules, "pynvml", _make_driver(**refused))
    (state,) = gpu_state.read_gpu_states(8)

    assert state.num_users is state.utilization is state.clock_mhz is None
    assert () == state.slowed_by


def test_without_a_driver_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a state nor a version."""
    monkeypatch.setitem(sys.modules, "pynvml", _make_driver(nvmlInit=_refuse))

    assert () == gpu_state.read_gpu_states(8)
    assert gpus.driver_version() is None
