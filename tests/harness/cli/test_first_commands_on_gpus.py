"""The first commands of ``docs/gpu.md``, in order, on machines that nobody here has.

The driver is the stand-in, trials are made by the fake worker, and Slurm by programs
that answer as its own. The page's minutes are compared with what a dry run estimates.
"""

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path

import fake_slurm
import pytest
from fake_nvml import make_gpus

from harness.cli import exit_codes
from harness.doctor import gpu_code
from harness.trial.gpu_probe import TensorFlowGpus

pytestmark = pytest.mark.usefixtures("forked_trials")

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/gpu.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
SECTION = PAGE.split("## The first commands")[1].split("\n#")[0]
WHEEL = ("sm_60", "sm_70", "sm_80", "sm_89", "compute_90")
MACHINES = {"1": (1, 0), "8": (8, 1), "2 x 8": (8, 2)}
"""GPUs of one machine, and the column of minutes."""
# Four programs of the tests: TensorFlow, a network, and its first steps.
PROGRAMS_SEC = 4 * 60


def blocks():
    """Returns the commands of one machine, and of two, as words."""
    texts = re.findall(r"(?:^    .+\n)+", SECTION, re.MULTILINE)
    return [[shlex.split(line) for line in text.splitlines()] for text in texts]


def recipe(target):
    (lines,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    (flags,) = re.findall(r"^SWEEP_GPU_FLAGS \?= (.+)$", MAKEFILE, re.MULTILINE)
    text = lines.replace("$(SWEEP_GPU_FLAGS)", flags)
    return [line.strip() for line in text.splitlines()]


def arguments(line):
    words = shlex.split(line)
    return words[words.index("harness") + 1 :]


def minutes(name):
    (cell,) = re.findall(rf"^\| `{name}` \| ([^|]+) \|", SECTION, re.MULTILINE)
    return [float(of) for of in cell.split(",")]


def conftest_of_gpus():
    name = "conftest_of_gpus"
    spec = importlib.util.spec_from_file_location(name, ROOT / "tests/gpu/conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, name, module)  # its dataclasses look there
        spec.loader.exec_module(module)
    return module


def probe(ids):
    return TensorFlowGpus(
        num_gpus=len(ids), is_built_with_cuda=True, architectures=WHEEL
    )


def compile_code(_name, environ):
    Path(environ["CUDA_CACHE_PATH"]).mkdir(exist_ok=True)
    return 0


@pytest.fixture
def run(harness, gpu_overrides, doctor_of_gpus, tmp_path, monkeypatch):
    """Returns a function that runs a command: the code, and all that it says.

    Compiled code is kept in the test's folder; ``doctor`` looks at GPUs only.
    """
    monkeypatch.setenv("CUDA_CACHE_PATH", str(tmp_path / "cache"))

    def run_command(words, *more):
        if words[:2] == ["make", "setup-gpu"]:
            assert recipe("setup-gpu")[0].endswith("-m harness.doctor.gpu_code")
            lines = []
            code = gpu_code.compile_once(
                probe=probe, run=compile_code, say=lines.append
            )
            return code, " ".join(lines)
        if words[0] == "make":
            words = shlex.split(recipe(words[1])[0])
        argv = words[words.index("harness") + 1 :]
        if argv[0] == "doctor":
            assert ["doctor", "--device", "gpu", "--relay", "0"] == argv
            code, text = doctor_of_gpus(probe)
        else:
            overrides = gpu_overrides | {"probe": probe}
            code, out, err = harness(*argv, *more, overrides=overrides)
            text = out + err
        return code, " ".join(text.split())

    return run_command


@pytest.mark.parametrize(
    ("count", "primary"),
    [
        (1, "single / in_graph, weak scaling, x1"),
        (8, "in_graph, weak scaling, x8 / x1"),
    ],
)
def test_the_commands_work_in_their_order(install_gpus, run, tmp_path, count, primary):
    """On H100, for which the wheel has no code: compiled by the first, found later."""
    install_gpus(make_gpus(count))
    (setup, doctor, tests, plan, sweep), _ = blocks()
    for words, expected in (
        (doctor, "make setup-gpu compiles once"),
        (setup, "d4pg: the driver compiles"),
        (doctor, "compiled once"),
        (plan, f"x{count}"),
    ):
        code, text = run(words)
        assert (exit_codes.OK, True) == (code, expected in text), text
    assert "REQUIRE_GPU=1 $(BIN)/python -m pytest tests/gpu" == recipe(tests[1])[0]
    assert plan[plan.index("--dry-run") + 1 :] == arguments(recipe(sweep[1])[0])[1:]
    code, text = run(sweep, "--preset=smoke", "--repeats=1", "--no-match")

    assert exit_codes.OK == code, text
    (plan_file,) = (tmp_path / "runs").glob("*/plan.json")
    assert primary == json.loads(plan_file.read_text())["measuring"]["primary"]["text"]


def test_two_machines_are_planned_and_submitted(
    install_gpus, run, tmp_path_factory, monkeypatch
):
    """From a login node, which has no GPU; the job asks for those of both."""
    install_gpus([], driver=None)
    submitted_to = fake_slurm.install(tmp_path_factory.mktemp("slurm"), monkeypatch)
    (_, doctor, *_), (plan, sweep) = blocks()
    monkeypatch.setattr("sys.argv", sweep[2:])
    for words, expected, of in (
        (doctor, exit_codes.UNFIT, "install the NVIDIA driver"),
        (plan, exit_codes.OK, "x16"),
        (sweep, exit_codes.OK, "submitted job 42"),
    ):
        code, text = run(words)
        assert (expected, True) == (code, of in text), text
    submitted = submitted_to.read_text()
    assert '#SBATCH --gpus-per-node="8"' in submitted
    assert '#SBATCH --nodes="2"' in submitted
    assert 'export CUDA_CACHE_PATH="${CUDA_CACHE_PATH:-$HOME/' in submitted


@pytest.mark.parametrize("name", MACHINES)
def test_the_minutes_are_those_of_the_plan(install_gpus, harness, name):
    """To a factor of 1.3: of the tests on GPUs as well, whose sweeps are planned."""
    num_gpus, column = MACHINES[name]
    install_gpus(make_gpus(num_gpus))

    def seconds(argv):
        code, out, err = harness("sweep", "--dry-run", "--json", *argv)
        assert exit_codes.OK == code, err
        return float(json.loads(out)["estimated_sec"])

    _, (plan, _) = blocks()
    found = seconds(
        plan[plan.index("--dry-run") + 1 :]
        if name == "2 x 8"
        else arguments(recipe("sweep-gpu")[0])[1:]
    )
    assert minutes("sweep")[column] * 60 == pytest.approx(found, rel=0.3)

    module = conftest_of_gpus()
    sweeps = {k: (*module.COMMON, "--device=gpu", *v) for k, v in module.SWEEPS.items()}
    asked = ["one replica", "compiled", "compiled", "beyond memory"]
    asked += ["eight"] * (num_gpus == 8)
    total = PROGRAMS_SEC + sum(seconds(sweeps[key]) for key in asked)
    assert minutes("test-gpu")[column] * 60 == pytest.approx(total, rel=0.3)
