"""GPUs that others use, that are slow, or that TensorFlow does not see are found."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import run_module
from fake_machine import FakeGpu, FakeMig, install_packages, make_gpus, without

from harness import ExitCode
from harness.doctor import checks
from harness.machine import gpu_watch, gpus

ROOT = Path(__file__).resolve().parents[3]
WHEEL = ("sm_60", "sm_70", "sm_80", "sm_89", "compute_90")
A100, H100, B200 = (8, 0), (9, 0), (10, 0)


# In place of Python, for the programs of ours that use GPUs.
STAND_IN = """#!/bin/sh
module=$2 name=$3
IFS=,; set -- $CUDA_VISIBLE_DEVICES
case $module in
harness.trial.gpu_probe) echo '{probe}' | sed "s/COUNT/$#/" ;;
harness.doctor.gpu) echo '{rates}' ;;
workloads.catalog)
  echo "$name $CUDA_VISIBLE_DEVICES" >> {started}
  mkdir -p "$CUDA_CACHE_PATH"
  head -c 1048576 /dev/zero > "$CUDA_CACHE_PATH/$name"  # what a driver could keep
  exit {code} ;;
esac
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Returns a function that says what those programs answer."""
    started = tmp_path / "started"
    started.touch()

    def install(seen=None, rates=None, code=0):
        probe = {"num_gpus": "COUNT", "is_built_with_cuda": True} | (seen or {})
        text = STAND_IN.format(
            probe=json.dumps(probe).replace('"COUNT"', "COUNT"),
            rates=json.dumps(rates),
            started=started,
            code=code,
        )
        (tmp_path / "python").write_text(text)
        (tmp_path / "python").chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        return started

    return install


@pytest.fixture
def doctor(install_gpus, stand_in, monkeypatch, harness, tmp_path):
    """Returns a function that runs ``doctor`` on GPUs only; nothing is timed."""

    def diagnosed(measures):
        return [finding for each in measures[::2] for finding in each([0])]

    monkeypatch.setenv("CUDA_CACHE_PATH", str(tmp_path / "cache"))
    monkeypatch.setattr(checks, "diagnose", diagnosed)

    def run(machine, seen=None, installed="", rates=None, **fields):
        if installed:
            packages = {"nvidia-cuda-runtime-cu12": installed}
            install_packages(tmp_path / "site", monkeypatch, packages)
        usual = dict.fromkeys(["alone", "together"], [9.0] * len(machine))
        versions = {"cuda_version": "12.5.1", "cudnn_version": "9"}
        stand_in(versions | (seen or {}), rates or usual)
        install_gpus(machine, **fields)
        code, out, _ = harness("doctor", "--device=gpu", "--aa-pair=0", "--json")
        findings = json.loads(out)["findings"]
        return code, {of.pop("check"): of for of in findings}

    return run


@pytest.mark.parametrize("count", [1, 8])
def test_equal_and_idle_gpus_are_fit(doctor, count):
    machine = make_gpus(count, reasons=0x1, clock_mhz=345)
    machine[0].users = [os.getpid()]
    code, findings = doctor(machine)
    name = "NVIDIA H100 80GB HBM3"

    assert ExitCode.OK == code
    assert {"ok"} == {of["level"] for of in findings.values()}
    assert count == sum(check.startswith("product on GPU ") for check in findings)
    assert {
        "GPU 0": f"{name}, no other processes, 0 % busy, 345 of 1980 MHz, 31 degrees"
        " Celsius",
        "GPU models": f"{count} of model {name}",
        "MIG": "off",
        "TensorFlow": f"sees all {count} GPUs",
        "driver": "570.86.15 for CUDA up to 12.8; TensorFlow was built with CUDA"
        " 12.5.1, cuDNN 9",
    }.items() <= {check: of["found"] for check, of in findings.items()}.items()
    assert "machine code" not in findings  # this TensorFlow does not say what it has


TWO = make_gpus(2)
MIXED = [*make_gpus(1), FakeGpu(uuid="GPU-a", name="NVIDIA A100")]
BUSY = [*make_gpus(1), FakeGpu(uuid="GPU-b", users=[os.getpid(), 1])]
MIG = [FakeGpu(mig=[FakeMig(uuid="MIG-1"), FakeMig(uuid="MIG-2")])]
SILENT = without(
    "ComputeRunningProcesses UtilizationRates CurrentClocksThrottleReasons ClockInfo "
    "MaxClockInfo Temperature EnforcedPowerLimit PowerManagementDefaultLimit "
    "TotalEccErrors CudaComputeCapability"
)
CAPPED = make_gpus(2, power_limit_watts=400.0)
FAULTY = make_gpus(1, uncorrected_errors=3)
NO_CUDA = {"seen": {"num_gpus": 0, "is_built_with_cuda": False}}
SEES_NONE = "TensorFlow sees 0 GPUs, but was given 2 (CUDA_VISIBLE_DEVICES=0,1)"
CUDA = "570.86.15 for CUDA up to {}; TensorFlow was built with CUDA 12.5.1, cuDNN 9"
CODE = {"seen": {"architectures": WHEEL}}
NO_CODE = "compute_90) has none for GPUs with "
OLD, NEW = make_gpus(1, capability=(5, 2)), make_gpus(8, capability=H100)

UNFIT_GPUS = [
    ([], {}, "GPUs", "none visible, driver 570.86.15"),
    ([], {"driver": None}, "GPUs", "none"),
    (BUSY, {}, "GPU 1", " 1 other process,"),
    (make_gpus(2, reasons=0x24), {}, "GPU 1", " by power limit and heat"),
    (CAPPED, {}, "GPU 1", " limited to 400 of 700 W"),
    (FAULTY, {}, "GPU 0", " 3 uncorrected ECC errors"),
    (MIXED, {}, "GPU models", "2 visible, GPU 0 is NVIDIA H100 80GB HBM3, GPU 1 is"),
    (MIG, {}, "MIG", "on, 2 instances: CUDA gives a process one at most"),
    (TWO, NO_CUDA, "TensorFlow", SEES_NONE),
    (TWO, {"cuda": 11_080}, "driver", CUDA.format("11.8")),
    (OLD, CODE, "machine code", f"{NO_CODE}5.2"),
]
CAUTIONS = [
    (make_gpus(1, unsupported=SILENT), CODE, "GPU 0", "NVIDIA H100 80GB HBM3"),
    (TWO, {"cuda": 12_020}, "driver", CUDA.format("12.2")),
    (TWO, {"installed": "12.9.79"}, "driver", ", has CUDA 12.9.79 beside it"),
    (NEW, CODE, "machine code", f"{NO_CODE}9.0"),
]
REMEDIES = {
    "limited to 400": "sudo nvidia-smi -i 1 -pl 700",
    "sees 0 GPUs": "this build of TensorFlow has no CUDA; .* make setup-gpu .*",
    "up to 11.8": "install a driver for CUDA 12.5 or newer",
}


@pytest.mark.parametrize(
    ("level", "machine", "fields", "check", "found"),
    [
        *(("bad", *case) for case in UNFIT_GPUS),
        *(("caution", *case) for case in CAUTIONS),
    ],
)
def test_what_is_wrong_with_gpus_is_found(doctor, level, machine, fields, check, found):
    code, findings = doctor(machine, **fields)
    finding = findings[check]

    assert (ExitCode.UNFIT if level == "bad" else ExitCode.OK) == code
    assert level == finding["level"]
    assert found in finding["found"]
    assert finding["advice"]
    for part, advice in REMEDIES.items():
        assert part not in finding["found"] or re.fullmatch(advice, finding["advice"])
    is_timed = any(name.startswith("product on GPU") for name in findings)
    cannot = level == "bad" and check in ("GPUs", "MIG", "TensorFlow")
    assert is_timed is not cannot


def test_hidden_gpus_are_not_checked(doctor, monkeypatch):
    machine = make_gpus(4)
    machine[0].users.append(1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    code, findings = doctor(machine)

    assert ExitCode.OK == code
    assert {"GPU 1", "GPU 3"} == {of for of in findings if re.match(r"GPU \d", of)}


def test_gpus_of_a_sweep_are_not_timed(doctor, install_gpus):
    install_gpus(make_gpus(2))
    with gpu_watch.hold_gpus(gpus.read_gpus()[1:], study="s"):
        code, findings = doctor(make_gpus(2))

    assert ExitCode.UNFIT == code
    assert not any(check.startswith("product on GPU") for check in findings)
    assert "bad" == findings["other sweeps"]["level"]
    assert re.match("GPU 1 .* is used by another", findings["other sweeps"]["found"])


OPERATIONS = 2 * 8192**3
"""Of one product."""


def test_a_slow_gpu_is_bad_and_a_shared_limit_is_a_caution(doctor):
    def measured(alone, together):
        rates = {"alone": alone, "together": together}
        rates = {k: [tera * 1e12 / OPERATIONS for tera in v] for k, v in rates.items()}
        _, findings = doctor(make_gpus(len(alone)), rates=rates)
        return [of for check, of in findings.items() if "product on GPU" in check]

    findings = measured([600.0, 610.0, 500.0, 600.0], [590.0, 500.0, 495, 598])
    (only,) = measured([3.0], [3.0])

    assert ["ok", "caution", "bad", "ok"] == [of["level"] for of in findings]
    expected = "500 TFLOP/s, 0.83 of the median, 0.99 of it when all run"
    assert expected == findings[2]["found"]
    assert re.match("every step would wait for it", findings[2]["advice"])
    assert re.match("GPUs share power", findings[1]["advice"])
    assert ("ok", "3 TFLOP/s") == (only["level"], only["found"])


@pytest.mark.processes
def test_the_product_runs_on_any_device():
    words = ("0.05", "64", "CPU:0", "CPU:0")
    done = subprocess.run(
        [sys.executable, "-m", "harness.doctor.gpu", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    rates = json.loads(done.stdout)

    assert [2, 2] == [len(rates["alone"]), len(rates["together"])]
    assert all(rate > 1 for rate in (*rates["alone"], *rates["together"]))


@pytest.fixture
def compile_once(tmp_path, monkeypatch, capsys, stand_in):
    """Returns a function that runs the program, with workloads that compile nothing.

    It returns the exit code, the lines, and which were started with which GPUs.
    """

    def run(code=0, **environ):
        started = stand_in({"architectures": WHEEL}, code=code)
        started.write_text("")
        folder = str(tmp_path / "cache")
        for name, value in {"CUDA_CACHE_PATH": folder, **environ}.items():
            monkeypatch.setenv(name, value)
        found = run_module("harness.doctor.gpu")
        lines = capsys.readouterr().out.splitlines()
        return found, lines, [line.split() for line in started.open()]

    return run


# Its other half is a part of ``doctor``.
imported = pytest.mark.filterwarnings("ignore:'harness.doctor.gpu' found in sys.mod")


@imported
def test_the_driver_compiles_once_for_each_model(install_gpus, compile_once):
    install_gpus([*make_gpus(2), *make_gpus(1, capability=B200)])
    code, lines, _ = compile_once(code=3)
    assert 1 == code
    expected = "error: resnet50 ended with 3 after 0 s; its last lines say why"
    assert expected == lines[-1]

    names = ["resnet50", "sngan", "d4pg", "keras_fit", "transformer"]
    code, lines, started = compile_once()
    assert 0 == code, lines
    assert [[n, i] for i in ("0", "2") for n in names] == started
    assert re.search(r"d4pg: \d+ s, 3 MiB are kept", "\n".join(lines))

    code, _, started = compile_once()
    assert (0, []) == (code, started)


@imported
@pytest.mark.parametrize(
    ("capability", "environ", "code", "line"),
    [
        (A100, {}, 0, r"TensorFlow .* has that of GPUs with 8\.0"),
        (H100, {"CUDA_CACHE_DISABLE": "1"}, 1, r"error: unset CUDA_CACHE_DISABLE: .*"),
        ((5, 2), {}, 1, r"error: an older or newer TensorFlow, .*"),
        (
            H100,
            {"CUDA_VISIBLE_DEVICES": "9"},
            1,
            r"error: CUDA_VISIBLE_DEVICES=9: '9' is no GPU of this machine.*",
        ),
        (H100, {"CUDA_VISIBLE_DEVICES": ""}, 0, r"no NVIDIA GPU here: where .*"),
    ],
)
def test_where_nothing_can_be_compiled_the_last_line_says_why(
    install_gpus, compile_once, capability, environ, code, line
):
    install_gpus(make_gpus(1, capability=capability))
    found, lines, started = compile_once(**environ)

    assert code == found
    assert re.fullmatch(line, lines[-1])
    assert [] == started
