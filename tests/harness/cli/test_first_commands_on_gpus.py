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
from fake_nvml import FakeGpu, make_gpus

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
SMALL = ("--preset=smoke", "--repeats=1", "--no-match")


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


class Machine:
    def __init__(self, harness, overrides, folder):
        self.harness, self.overrides, self.folder = harness, overrides, folder
        self.lines = []

    def probe(self, ids):
        return TensorFlowGpus(
            num_gpus=len(ids), is_built_with_cuda=True, architectures=WHEEL
        )

    def compile(self, _name, environ):
        Path(environ["CUDA_CACHE_PATH"]).mkdir(exist_ok=True)
        return 0

    def run(self, words, *more):
        if words[0] == "make":
            (line,) = recipe(words[1])
            if words[1] == "setup-gpu":
                assert line.endswith("-m harness.doctor.gpu_code")
                code = gpu_code.compile_once(
                    probe=self.probe, run=self.compile, say=self.lines.append
                )
                return code, "\n".join(self.lines)
            words = ["python", "-m", *line.split(" -m ", 1)[1].split()]
        argv = words[words.index("harness") + 1 :]
        if argv[0] == "doctor":
            assert ["doctor", "--device", "gpu", "--relay", "0"] == argv
            return 0, ""
        code, out, err = self.harness(*argv, *more, overrides=self.overrides)
        return code, out + err

    def estimated_sec(self, argv):
        code, out, err = self.harness("sweep", "--dry-run", "--json", *argv)
        assert exit_codes.OK == code, err
        return float(json.loads(out)["estimated_sec"])


@pytest.fixture
def machine(harness, gpu_overrides, tmp_path, monkeypatch):
    """Returns what runs the commands; compiled code is kept in the test's folder."""
    monkeypatch.setenv("CUDA_CACHE_PATH", str(tmp_path / "cache"))
    made = Machine(harness, gpu_overrides, tmp_path)
    made.overrides = {**gpu_overrides, "probe": made.probe}
    return made


@pytest.fixture
def doctor(doctor_of_gpus, machine):
    def run():
        code, out = doctor_of_gpus(machine.probe)
        return code, " ".join(out.split())

    return run


@pytest.mark.parametrize("count", [1, 8])
def test_the_commands_work_in_their_order(
    install_gpus, machine, doctor, tmp_path, count
):
    """On H100, for which the wheel has no code: compiled by the first, found later."""
    install_gpus(make_gpus(count))
    (setup, check, tests, plan, sweep), _ = blocks()

    code, text = doctor()
    assert (exit_codes.OK, True) == (code, "make setup-gpu compiles once" in text)
    code, text = machine.run(setup)
    assert (0, True) == (code, "d4pg: the driver compiles" in text)
    assert (exit_codes.OK, "") == machine.run(check)
    code, text = doctor()
    assert (exit_codes.OK, True) == (code, "compiled once" in text), text
    assert "REQUIRE_GPU=1 $(BIN)/python -m pytest tests/gpu" == recipe(tests[1])[0]
    code, text = machine.run(plan)
    assert (exit_codes.OK, True) == (code, f"x{count}" in text), text
    assert plan[plan.index("--dry-run") + 1 :] == arguments(recipe(sweep[1])[0])[1:]
    code, text = machine.run(sweep, *SMALL)

    assert exit_codes.OK == code, text
    (plan_file,) = (tmp_path / "runs").glob("*/plan.json")
    primary = json.loads(plan_file.read_text())["measuring"]["primary"]["text"]
    expected = {
        1: "single / in_graph, weak scaling, x1",
        8: "in_graph, weak scaling, x8 / x1",
    }
    assert expected[count] == primary


def test_two_machines_are_planned_and_submitted(
    install_gpus, machine, tmp_path_factory, monkeypatch
):
    install_gpus([], driver=None)
    submitted_to = fake_slurm.install(tmp_path_factory.mktemp("slurm"), monkeypatch)
    _, (plan, sweep) = blocks()

    code, text = machine.run(plan)
    assert (exit_codes.OK, True) == (code, "x16" in text), text
    monkeypatch.setattr("sys.argv", sweep[2:])
    code, text = machine.run(sweep)
    assert (exit_codes.OK, True) == (code, "submitted job 42" in text), text
    submitted = submitted_to.read_text()
    assert '#SBATCH --gpus-per-node="8"' in submitted
    assert '#SBATCH --nodes="2"' in submitted
    assert 'export CUDA_CACHE_PATH="${CUDA_CACHE_PATH:-$HOME/' in submitted


@pytest.mark.parametrize(
    ("gpus", "command", "code", "remedy"),
    [
        ([], "sweep", exit_codes.USAGE, "--device cpu"),
        ([], "doctor", exit_codes.UNFIT, "install the NVIDIA driver"),
        (make_gpus(1), "setup", 1, "unset CUDA_CACHE_DISABLE"),
        ([*make_gpus(1), FakeGpu(uuid="b", is_lost=True)], "sweep", 2, "--gpu-reset"),
    ],
)
def test_a_command_that_fails_says_what_to_do(
    install_gpus, machine, doctor, monkeypatch, gpus, command, code, remedy
):
    install_gpus(gpus)
    if command == "setup":
        monkeypatch.setenv("CUDA_CACHE_DISABLE", "1")
    (setup, _, _, _, sweep), _ = blocks()
    run = {
        "setup": lambda: machine.run(setup),
        "sweep": lambda: machine.run(sweep, *SMALL),
        "doctor": doctor,
    }[command]
    found, text = run()

    assert (code, True) == (found, remedy in text), text


@pytest.mark.parametrize("name", MACHINES)
def test_the_minutes_are_those_of_the_plan(install_gpus, machine, name):
    """To a factor of 1.3: of the tests on GPUs as well, whose sweeps are planned."""
    num_gpus, column = MACHINES[name]
    install_gpus(make_gpus(num_gpus))
    _, (plan, _) = blocks()
    if name == "2 x 8":
        found = machine.estimated_sec(plan[plan.index("--dry-run") + 1 :])
    else:
        found = machine.estimated_sec(arguments(recipe("sweep-gpu")[0])[1:])
    assert minutes("sweep")[column] * 60 == pytest.approx(found, rel=0.3)

    module = conftest_of_gpus()
    sweeps = {k: (*module.COMMON, "--device=gpu", *v) for k, v in module.SWEEPS.items()}
    asked = ["one replica", "compiled", "compiled", "beyond memory"]
    asked += ["eight"] * (num_gpus == 8)
    total = PROGRAMS_SEC + sum(machine.estimated_sec(sweeps[key]) for key in asked)
    assert minutes("test-gpu")[column] * 60 == pytest.approx(total, rel=0.3)
