"""GPUs that others use, that are slow, or that TensorFlow does not see are found."""

from __future__ import annotations

import json
import re

import pytest
from fake_nvml import FakeGpu, FakeMig, make_gpus, without

from harness.cli import exit_codes
from harness.doctor import gpu, gpu_code
from harness.doctor.gpu import GpuState
from harness.errors import DoctorError
from harness.machine import environment, gpu_watch, gpus
from harness.trial.gpu_probe import MissingGpuError, TensorFlowGpus


def _state(**fields):
    defaults = {
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
            {"num_users": None, "utilization": 0.5},
            "bad",
            "H100, 50 % busy, .*",
            r"end its other users \(nvidia-smi\), or hide it: CUDA_VISIBLE_DEVICES",
        ),
        (
            {"num_users": None, "clock_mhz": None, "temperature_celsius": None},
            "caution",
            "H100, 0 % busy",
            "look for other users with nvidia-smi: the driver does not list them",
        ),
    ],
)
def test_each_state_of_a_gpu_has_its_finding(fields, level, found, advice):
    """Users and a lowered clock make timings unusable."""
    (finding,) = gpu.check_gpus([_state(**fields)])

    assert ("GPU 0", level) == (finding.check, finding.level)
    assert re.fullmatch(found, finding.found)
    assert re.fullmatch(advice, finding.advice)


def test_no_gpu_is_fine():
    """Most machines of this project have none."""
    (finding,) = gpu.check_gpus([])

    assert ("ok", "none visible") == (finding.level, finding.found)


def test_the_driver_is_asked(install_gpus):
    """This process is no other user; an idle clock is no throttling."""
    fake = FakeGpu(
        users=[7, 8],
        utilization=25,
        reasons=0x1 | 0x4 | 0x20,
        clock_mhz=1200,
        temperature_celsius=80,
        power_limit_watts=400,
        uncorrected_errors=3,
    )
    nvml = install_gpus([fake])
    (state,) = gpu.read_gpu_states(8)

    assert state == GpuState(
        name="NVIDIA H100 80GB HBM3",
        num_users=1,
        utilization=0.25,
        clock_mhz=1200,
        max_clock_mhz=1980,
        temperature_celsius=80,
        slowed_by=("power limit", "heat"),
        power_limit_watts=400.0,
        default_power_limit_watts=700.0,
        num_uncorrected_errors=3,
    )
    assert 0 == nvml.num_open


def test_what_a_gpu_does_not_support_is_none(install_gpus):
    """Old and virtual GPUs answer a part of the questions."""
    unsupported = without(
        "ComputeRunningProcesses UtilizationRates CurrentClocksThrottleReasons "
        "ClockInfo MaxClockInfo Temperature EnforcedPowerLimit "
        "PowerManagementDefaultLimit TotalEccErrors"
    )
    install_gpus([FakeGpu(unsupported=unsupported)])
    (state,) = gpu.read_gpu_states(8)

    assert state == GpuState(
        name="NVIDIA H100 80GB HBM3",
        num_users=None,
        utilization=None,
        clock_mhz=None,
        max_clock_mhz=None,
        temperature_celsius=None,
        slowed_by=(),
    )


def test_hidden_gpus_are_not_checked(install_gpus, monkeypatch):
    machine = make_gpus(4)
    machine[0].users.append(1)
    install_gpus(machine)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    findings = gpu.check_gpus(gpu.read_gpu_states(8))

    assert [("GPU 1", "ok"), ("GPU 3", "ok")] == [(f.check, f.level) for f in findings]


def test_a_lost_gpu_is_a_bad_finding(install_gpus):
    machine = make_gpus(2)
    machine[1].is_lost = True
    install_gpus(machine)
    first, second = gpu.check_gpus(gpu.read_gpu_states(8))

    assert "ok" == first.level
    assert ("GPU 1", "bad") == (second.check, second.level)
    assert "cannot be read: GPU is lost" in second.found


MIXED = [*make_gpus(1), FakeGpu(uuid="GPU-a", name="NVIDIA A100")]
BUSY = [*make_gpus(1), FakeGpu(uuid="GPU-b", users=[1])]
MIG = [FakeGpu(mig=[FakeMig(uuid="MIG-1"), FakeMig(uuid="MIG-2")])]
TWO = make_gpus(2)
CAPPED = make_gpus(2, power_limit_watts=400.0)
FAULTY = make_gpus(1, uncorrected_errors=3)
INSTALL = "install the NVIDIA driver, or show GPUs with CUDA_VISIBLE_DEVICES"
OTHERS = r"end its other users \(nvidia-smi\), or hide it: CUDA_VISIBLE_DEVICES"
COOL = "let it cool, or raise its power limit: its clock is lowered"
RESET = r"reset it \(sudo nvidia-smi --gpu-reset\), or have its memory replaced"
HIDE = "hide those of other models: CUDA_VISIBLE_DEVICES"
MIG_OFF = "sudo nvidia-smi -mig 0, or sweep with --replicas 1"
NONE = r"TensorFlow sees 0 GPUs, but was given 2 \(CUDA_VISIBLE_DEVICES=0,1\)"
BUILD = "this build of TensorFlow has no CUDA; .* make setup-gpu .*"
UP_TO = r"570\.86\.15 for CUDA up to "
BUILT = r"TensorFlow was built with CUDA 12\.5\.1, cuDNN 9"
BESIDE = r".*, has CUDA 12\.9\.79 beside it"
FOR_CUDA = "install a driver for CUDA 12.5 or newer"
NEWER = "a newer driver: kernels that are compiled at run time may not load"


@pytest.fixture
def doctor(install_gpus, monkeypatch, doctor_of_gpus):
    """Returns a function that runs the verb; it returns its code and its findings."""

    def run(machine, num_seen=None, is_built_with_cuda=True, installed="", **fields):
        def probe(ids):
            return TensorFlowGpus(
                num_gpus=len(ids) if num_seen is None else num_seen,
                is_built_with_cuda=is_built_with_cuda,
                cuda_version="12.5.1",
                cudnn_version="9",
            )

        packages = {"nvidia-cuda-runtime-cu12": installed}
        monkeypatch.setattr(environment, "read_packages", lambda: packages)
        install_gpus(machine, **fields)
        code, out = doctor_of_gpus(probe, is_json=True)
        findings = json.loads(out)["findings"]
        return code, {of.pop("check"): of for of in findings}

    return run


@pytest.mark.parametrize("count", [1, 8])
def test_equal_and_idle_gpus_are_fit(doctor, count):
    """What was found is said of each check; each GPU has its product."""
    code, findings = doctor(make_gpus(count))

    assert exit_codes.OK == code
    assert {"ok"} == {of["level"] for of in findings.values()}
    assert count == sum(check.startswith("product on GPU ") for check in findings)
    assert {
        "GPU models": f"{count} of model NVIDIA H100 80GB HBM3",
        "MIG": "off",
        "TensorFlow": f"sees all {count} GPUs",
        "driver": "570.86.15 for CUDA up to 12.8; TensorFlow was built with CUDA"
        " 12.5.1, cuDNN 9",
    }.items() <= {check: of["found"] for check, of in findings.items()}.items()


UNFIT_GPUS = [
    ([], {}, "GPUs", r"none visible, driver 570\.86\.15", INSTALL),
    ([], {"driver": None}, "GPUs", "none", INSTALL),
    (BUSY, {}, "GPU 1", ".* 1 other process,.*", OTHERS),
    (make_gpus(2, reasons=0x24), {}, "GPU 1", ".* by power limit and heat", COOL),
    (make_gpus(2, reasons=0x80), {}, "GPU 1", ".* slowed by power.*", COOL),
    (CAPPED, {}, "GPU 1", ".* limited to 400 of 700 W", "sudo nvidia-smi -i 1 -pl 700"),
    (FAULTY, {}, "GPU 0", ".* 3 uncorrected ECC errors", RESET),
    (MIXED, {}, "GPU models", "2 visible, GPU 0 is .* HBM3, GPU 1 is .* A100", HIDE),
    (MIG, {}, "MIG", "on, 2 instances: CUDA gives a process one at most", MIG_OFF),
    (TWO, {"num_seen": 0, "is_built_with_cuda": False}, "TensorFlow", NONE, BUILD),
    (TWO, {"num_seen": 0}, "TensorFlow", NONE, ".* make setup-gpu.*"),
    (TWO, {"num_seen": 1}, "TensorFlow", "TensorFlow sees 1 GPUs, .*", "it skips .*"),
    (TWO, {"cuda": 11_080}, "driver", f"{UP_TO}11.8; {BUILT}", FOR_CUDA),
    (TWO, {"cuda": 12_020}, "driver", f"{UP_TO}12.2; {BUILT}", NEWER),
    (TWO, {"installed": "12.9.79"}, "driver", f"{UP_TO}12.8; {BESIDE}", NEWER),
]


@pytest.mark.parametrize(("machine", "fields", "check", "found", "advice"), UNFIT_GPUS)
def test_what_makes_gpus_unfit_is_found_with_its_remedy(
    doctor, machine, fields, check, found, advice
):
    """Exit code 6, but for a caution."""
    code, findings = doctor(machine, **fields)

    level = "caution" if advice == NEWER else "bad"
    assert (exit_codes.OK if advice == NEWER else exit_codes.UNFIT) == code
    assert level == findings[check]["level"]
    assert re.fullmatch(found, findings[check]["found"])
    assert re.fullmatch(advice, findings[check]["advice"])


def test_gpus_of_a_sweep_are_not_timed(doctor, install_gpus):
    """That would make its trials void."""
    install_gpus(make_gpus(2))
    with gpu_watch.hold_gpus(gpus.read_gpus()[1:], study="s"):
        code, findings = doctor(make_gpus(2))

    assert exit_codes.UNFIT == code
    assert not any(check.startswith("product on GPU") for check in findings)
    assert "bad" == findings["other sweeps"]["level"]
    assert re.match("GPU 1 .* is used by another", findings["other sweeps"]["found"])


def test_a_tensorflow_that_does_not_answer_is_a_finding(install_gpus):
    """It may not be installed at all."""
    install_gpus(make_gpus(1))

    def refuse(_ids):
        raise MissingGpuError("TensorFlow does not say which GPUs it sees: x")

    findings = gpu.check_set(gpus.read_gpus(), driver="1", cuda="12.8", probe=refuse)
    assert ("TensorFlow", "bad") == (findings[-1].check, findings[-1].level)


def _probe(ids):
    return TensorFlowGpus(num_gpus=len(ids), is_built_with_cuda=True)


def test_a_slow_gpu_is_bad_and_a_shared_limit_is_a_caution():
    rates = {
        "alone": [600.0, 610.0, 500.0, 600.0],
        "together": [590.0, 500.0, 495, 598],
    }
    findings = gpu.check_rates(rates, operations=1e12)

    assert ["ok", "caution", "bad", "ok"] == [f.level for f in findings]
    expected = "500 TFLOP/s, 0.83 of the median, 0.99 of it when all run"
    assert expected == findings[2].found
    assert "product on GPU 2" == findings[2].check
    assert re.match("every step would wait for it", findings[2].advice)
    assert re.match("GPUs share power", findings[1].advice)


def test_one_gpu_has_no_others_to_compare_with():
    (finding,) = gpu.check_rates({"alone": [3.0], "together": [3.0]}, 1e12)

    assert ("ok", "3 TFLOP/s") == (finding.level, finding.found)


def test_all_visible_gpus_are_timed(install_gpus, monkeypatch):
    """By the ids of CUDA_VISIBLE_DEVICES, and as TensorFlow numbers them."""
    install_gpus(make_gpus(4))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    calls = []

    def multiply(ids, devices):
        calls.append((ids, devices))
        return {"alone": [9.0, 9.0], "together": [9.0, 9.0]}

    findings = gpu.measure_gpus([0], probe=_probe, multiply=multiply)

    assert [(["1", "3"], ["GPU:0", "GPU:1"])] == calls
    assert {"ok"} == {f.level for f in findings}
    assert "product on GPU 1" == findings[-1].check


@pytest.mark.parametrize(
    "machine", [[], [FakeGpu(mig=[FakeMig(uuid="MIG-1"), FakeMig(uuid="MIG-2")])]]
)
def test_what_cannot_be_used_is_not_timed(install_gpus, machine):
    install_gpus(machine)
    findings = gpu.measure_gpus([0], probe=_probe, multiply=None)

    assert "bad" in {f.level for f in findings}


@pytest.mark.processes
def test_the_product_runs_on_any_device():
    """Here on the CPU, twice; all rates are those of real products."""
    rates = gpu.multiply([], ["CPU:0", "CPU:0"], size=64, turn_sec=0.05)

    assert [2, 2] == [len(rates["alone"]), len(rates["together"])]
    assert all(rate > 1 for rate in (*rates["alone"], *rates["together"]))


@pytest.mark.processes
def test_a_product_that_fails_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('no libcudart\\n.so')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(
        DoctorError,
        match=r"^the matrix product on GPU:0 failed: [^\n]*\.so; see [^\n]*$",
    ):
        gpu.multiply(["0"], ["GPU:0"])


@pytest.mark.full
@pytest.mark.processes
def test_a_device_that_does_not_exist_is_one_line():
    """TensorFlow takes no other in its place, which only the full run tries."""
    with pytest.raises(
        DoctorError, match=r"the matrix product on GPU:7 failed: .*;"
    ) as e:
        gpu.multiply([], ["GPU:7"], size=64, turn_sec=0.05)

    assert "\n" not in str(e.value)


WHEEL = ("sm_60", "sm_70", "sm_80", "sm_89", "compute_90")
A100, H100, B200 = (8, 0), (9, 0), (10, 0)
DRIVER = "570.86.15"


def _check(tmp_path, **environ):
    environ = {"CUDA_CACHE_PATH": str(tmp_path), **environ}
    return gpu_code.check_code(gpus.read_gpus(), WHEEL, driver=DRIVER, environ=environ)


@pytest.mark.parametrize(
    ("capability", "environ", "level", "found", "advice"),
    [
        (A100, {}, "ok", r"TensorFlow \(sm_60, .*\) has that of GPUs with 8\.0", ""),
        (
            H100,
            {},
            "caution",
            r"TensorFlow \(sm_60, .*compute_90\) has none for GPUs with 9\.0",
            r"make setup-gpu compiles once, for minutes, into /.+",
        ),
        (
            H100,
            {"CUDA_CACHE_DISABLE": "1"},
            "caution",
            r".* has none for GPUs with 9\.0",
            r"unset CUDA_CACHE_DISABLE: every process compiles for minutes",
        ),
        (
            (5, 2),
            {},
            "bad",
            r".* has none for GPUs with 5\.2",
            r"an older or newer TensorFlow, or TensorFlow built for them",
        ),
    ],
)
def test_each_gpu_is_compared_with_what_tensorflow_was_built_for(
    install_gpus, tmp_path, capability, environ, level, found, advice
):
    install_gpus(make_gpus(8, capability=capability))
    (finding,) = _check(tmp_path, **environ)

    assert ("machine code", level) == (finding.check, finding.level)
    assert re.fullmatch(found, finding.found)
    assert re.fullmatch(advice, finding.advice)


def test_where_nobody_knows_nothing_is_said(install_gpus):
    """An older driver, or a TensorFlow that does not list what it has."""
    unsupported = without("CudaComputeCapability")
    install_gpus(make_gpus(1, unsupported=unsupported))
    assert [] == gpu_code.check_code(gpus.read_gpus(), WHEEL, driver=DRIVER)
    install_gpus(make_gpus(1))
    assert [] == gpu_code.check_code(gpus.read_gpus(), (), driver=DRIVER)


class Compiler:
    """Runs the program, with a workload that only notes how it was started."""

    def __init__(self, folder, *, code=0):
        self.folder, self.code = folder, code
        self.started = []
        self.lines = []

    def run(self, name, environ):
        """Writes as much as a driver could; the folder is the one that was chosen."""
        assert str(self.folder) == environ["CUDA_CACHE_PATH"]
        assert "4294967296" == environ["CUDA_CACHE_MAXSIZE"]
        self.started.append((name, environ["CUDA_VISIBLE_DEVICES"]))
        self.folder.mkdir(exist_ok=True)
        (self.folder / name).write_bytes(b"x" * 2**20)
        return self.code

    def __call__(self, architectures=WHEEL, **environ):
        def probe(ids):
            return TensorFlowGpus(
                num_gpus=len(ids), is_built_with_cuda=True, architectures=architectures
            )

        return gpu_code.compile_once(
            probe=probe,
            run=self.run,
            say=self.lines.append,
            environ={"CUDA_CACHE_PATH": str(self.folder), **environ},
        )


def test_the_driver_compiles_once_for_each_model(install_gpus, tmp_path):
    install_gpus([*make_gpus(2), *make_gpus(1, capability=B200)])
    compiler = Compiler(tmp_path / "cache")
    code = compiler()
    names = ["resnet50", "sngan", "d4pg", "keras_fit", "transformer"]

    assert 0 == code, compiler.lines
    assert [(n, i) for i in ("0", "2") for n in names] == compiler.started
    text = "\n".join(compiler.lines)
    assert re.search(r"resnet50: the driver compiles into /.*/cache \.\.\.", text)
    assert re.search(r"d4pg: \d+ s, 3 MiB are kept", text)
    assert re.search(r"need CUDA_CACHE_PATH=/.+ CUDA_CACHE_MAXSIZE=4294967296$", text)
    findings = _check(tmp_path / "cache")
    assert ["ok", "ok"] == [finding.level for finding in findings]
    assert "; compiled once, 5 MiB in /" in findings[0].found

    compiler.started.clear()
    assert 0 == compiler()
    assert [] == compiler.started


def test_a_workload_that_fails_is_not_noted(install_gpus, tmp_path):
    install_gpus(make_gpus(1))
    compiler = Compiler(tmp_path / "cache", code=3)

    assert 1 == compiler()
    assert (
        "error: resnet50 ended with 3 after 0 s; its last lines say why"
        == (compiler.lines[-1])
    )
    assert ["caution"] == [f.level for f in _check(tmp_path / "cache")]


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
    install_gpus, tmp_path, capability, environ, code, line
):
    install_gpus(make_gpus(1, capability=capability))
    compiler = Compiler(tmp_path / "cache")

    assert code == compiler(**environ)
    assert re.fullmatch(line, compiler.lines[-1])
    assert [] == compiler.started


def test_a_tensorflow_without_gpus_is_one_line(install_gpus):
    install_gpus(make_gpus(1))
    lines = []

    def refuse(_ids):
        raise MissingGpuError("TensorFlow does not say which GPUs it sees: x")

    assert 1 == gpu_code.compile_once(probe=refuse, say=lines.append)
    assert ["error: TensorFlow does not say which GPUs it sees: x"] == lines


def test_a_workload_is_run_with_its_variables(tmp_path, monkeypatch, capfd):
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads/__init__.py").touch()  # or the real one comes first
    (tmp_path / "workloads/warm_up.py").write_text(
        "import os, sys, time\ntime.sleep(0.3)\nprint(sys.argv[1], "
        "os.environ['CUDA_CACHE_PATH'], flush=True)\nsys.exit(5)\n"
    )
    monkeypatch.chdir(tmp_path)  # Python looks there first
    monkeypatch.setattr(environment, "SOURCE_ROOT", tmp_path)
    monkeypatch.setattr(gpu_code, "_PERIOD_SEC", 0.05)
    code = gpu_code._run("sngan", {"CUDA_CACHE_PATH": str(tmp_path)})
    printed = capfd.readouterr().out

    assert 5 == code
    assert f"sngan {tmp_path}\n" in printed
    assert re.search(r"^  0 s, 0 MiB$", printed, re.MULTILINE)
