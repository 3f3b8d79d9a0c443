"""GPUs that TensorFlow has no machine code for are found, and compiled for once."""

import re

import pytest
from fake_nvml import make_gpus, without

from harness.doctor import gpu_code
from harness.machine import environment, gpus
from harness.trial.gpu_probe import MissingGpuError, TensorFlowGpus

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
