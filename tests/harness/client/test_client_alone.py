"""The file of the client outside of a study, and programs held to the protocol."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_lines import run_module

from harness.client import scaling_client
from harness.client.scaling_client import AloneRun, ClientError, find_rank

FOLDER = Path(scaling_client.__file__).parent
FILES = ("scaling_callbacks.py", "scaling_client.py")


class Clock:
    ns = 0

    def __call__(self):
        return self.ns


@pytest.mark.parametrize("name", FILES)
def test_the_files_are_for_old_interpreters(name):
    source = (FOLDER / name).read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 8))
    at_import = [
        alias.name
        for node in tree.body
        if isinstance(node, ast.Import)
        for alias in node.names
    ]
    too_new = ("removeprefix", "strict=", "math.lcm", "itertools.pairwise", "slots=")

    assert set(at_import) <= sys.stdlib_module_names
    assert not [word for word in too_new if word in source]


def test_the_files_are_written_beside_a_program(tmp_path, capsys):
    assert 0 == run_module("harness.client", str(tmp_path))
    assert set(FILES) == {path.name for path in tmp_path.iterdir()}
    assert 2 == run_module("harness.client", str(tmp_path / "no"))
    assert "usage: python -m harness.client FOLDER" in capsys.readouterr().err


_CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"]}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "4", "TF_CONFIG": "x"}, (1, 4)),
        ({"RANK": "1"}, (0, 1)),
        ({"LOCAL_RANK": "1", "NODE_RANK": "0", "WORLD_SIZE": "2"}, (1, 2)),
        ({"LOCAL_RANK": "1"}, (0, 1)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, (2, 3)),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, (1, 2)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, (0, 1)),  # the batch script
        (
            {
                "TF_CONFIG": json.dumps(
                    {"cluster": _CLUSTER, "task": {"type": "worker", "index": 1}}
                )
            },
            (2, 3),
        ),
    ],
)
def test_ranks_are_those_of_the_launcher(variables, expected):
    assert expected == find_rank(variables)


NO_NUMBERS = [
    ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x' and WORLD_SIZE='2' must be numbers"),
    (
        {"LOCAL_RANK": "1", "NODE_RANK": "1", "WORLD_SIZE": "4"},
        "do not say which rank this is; pass rank and num_ranks",
    ),
    ({"TF_CONFIG": "[]"}, r"TF_CONFIG='\[\]' is not what TensorFlow reads"),
]


@pytest.mark.parametrize(("variables", "message"), NO_NUMBERS)
def test_a_launcher_that_says_no_number_is_named(variables, message):
    with pytest.raises(ClientError, match=message):
        find_rank(variables)


def loop(num_steps=None, *, examples=8, rank=0, num_ranks=1, last_sec=0.1):
    printed, clock = [], Clock()
    run = AloneRun(rank, num_ranks, clock=clock, write=printed.append)
    for step in run.steps(num_steps):
        clock.ns += int(1e9 * (last_sec if step.index >= 60 else 0.1))
        step.done(loss=1.0, examples=examples)
    run.close()
    return printed


def test_outside_of_a_study_the_rate_is_printed():
    (line,) = loop()

    assert "80 examples/s [80, 80], 100 steps after 3 of warm-up" in line
    assert "95 % over 10 parts of this one run, outside of a study" in line
    (line,) = loop(examples=None, last_sec=0.2)
    assert "steps/s [" in line
    low, high = line.partition("[")[2].partition("]")[0].split(", ")
    assert float(low) < float(line.split()[1]) < float(high)


def test_processes_outside_of_a_study_end_at_the_same_step():
    """By their own clocks they would wait for each other for ever; one prints."""
    (line,) = loop(num_ranks=2)

    assert "50 steps after 3" in line
    assert [] == loop(num_ranks=2, rank=1)
    (line,) = loop(23)
    assert "20 steps after 3" in line


def test_a_share_has_the_interval_of_wilson():
    printed = []
    run = AloneRun(0, 1, write=printed.append)
    run.quality("top_1", 0.75, num_examples=100, correct=75)

    assert printed == ["scaling_client: top_1 0.75 [0.657, 0.8245], n = 100\n"]
    with pytest.raises(ClientError, match=r"'top_1' is 75, but 75 of 100 are 0\.75"):
        run.quality("top_1", 75, num_examples=100, correct=75)
    with pytest.raises(ClientError, match=r"is nan on 5 examples: it must be a finite"):
        run.quality("top_1", float("nan"), num_examples=5)


ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).parent / "programs" / "train.py"
EXAMPLE = ROOT / "docs" / "examples" / "scaling_client.cpp"
COMPILER = shutil.which("g++") or shutil.which("clang++")


@pytest.fixture(autouse=True)
def _client(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "harness" / "client"))


def words_of(*words):
    return [sys.executable, str(PROGRAM), *words]


def conform(*words):
    return run_module("harness.conformance", *words)


@pytest.mark.processes
def test_two_ranks_in_python_conform(capsys):
    assert 0 == conform("--", *words_of("{replicas}"))
    lines = capsys.readouterr().out.splitlines()
    assert 5 <= len(lines) == sum(line.startswith("ok ") for line in lines)
    assert "2 ranks, with losses" in lines[0]


@pytest.mark.processes
@pytest.mark.skipif(COMPILER is None, reason="there is no g++ and no clang++ here")
def test_the_example_in_cpp_conforms(tmp_path, capsys):
    assert 150 > len(EXAMPLE.read_text().splitlines())
    program = tmp_path / "heat"
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([COMPILER, *flags, EXAMPLE, "-o", program], check=True)

    assert 0 == conform("--", str(program)), capsys.readouterr().out


WRONG = [
    ("runs alone", "leaves", "rank 0 recorded a failure: the loop over run.steps()"),
    ("takes turns", "says_other_version", "rank 0 speaks version 99 of the protocol"),
    ("controls", "no_steps", "rank 0 recorded a failure: the program connected"),
    ("other versions", "says_other_version", "client.json of version 99 gave exit"),
]


@pytest.mark.processes
@pytest.mark.parametrize(("check", "behavior", "message"), WRONG)
def test_what_a_program_does_wrong_is_said(
    capsys, monkeypatch, check, behavior, message
):
    monkeypatch.setenv("BEHAVIOR", behavior)

    assert 4 == conform("--only", check, "--", *words_of())
    (line,) = capsys.readouterr().out.splitlines()
    assert f"failed  {check:<15} {message}" in line
