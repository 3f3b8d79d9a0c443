"""Programs in any language are held to the protocol, and told what they do wrong."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.conformance import __main__ as conformance
from harness.conformance.checks import CHECKS

pytestmark = pytest.mark.processes
ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = Path(__file__).parent / "programs"
EXAMPLE = ROOT / "docs" / "examples" / "scaling_client.cpp"
COMPILER = shutil.which("g++") or shutil.which("clang++")


@pytest.fixture(autouse=True)
def _client(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "harness" / "client"))


def words_of(program="train.py", *words):
    return [sys.executable, str(PROGRAMS / program), *words]


def test_two_ranks_in_python_conform(capsys):
    """All checks, with the ranks as one program."""
    assert 0 == conformance.main(["--", *words_of("start.py", "{replicas}")])
    lines = capsys.readouterr().out.splitlines()
    assert len(CHECKS) == len(lines) == sum(line.startswith("ok ") for line in lines)
    assert "2 ranks, with losses" in lines[0]


@pytest.mark.skipif(COMPILER is None, reason="there is no g++ and no clang++ here")
def test_the_example_in_cpp_conforms(tmp_path, capsys):
    """Under 150 lines, without a warning, with nothing but the standard library."""
    assert 150 > len(EXAMPLE.read_text().splitlines())
    program = tmp_path / "heat"
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([COMPILER, *flags, EXAMPLE, "-o", program], check=True)

    assert 0 == conformance.main(["--", str(program)]), capsys.readouterr().out


@pytest.mark.parametrize(
    ("check", "behavior", "message"),
    [
        (
            "runs alone",
            "leaves",
            "rank 0 recorded a failure: the loop over run.steps()",
        ),
        (
            "takes turns",
            "says_other_version",
            "rank 0 speaks version 99 of the protocol",
        ),
        ("takes turns", "raise", "exit code 1; its last line: 'second line'"),
        ("controls", "no_steps", "rank 0 recorded a failure: the program connected"),
        ("other versions", "says_other_version", "client.json of version 99 gave exit"),
    ],
)
def test_what_a_program_does_wrong_is_said(
    capsys, monkeypatch, check, behavior, message
):
    monkeypatch.setenv("BEHAVIOR", behavior)

    assert 4 == conformance.main(["--only", check, "--", *words_of()])
    (line,) = capsys.readouterr().out.splitlines()
    assert f"failed  {check:<15} {message}" in line


def test_a_program_that_is_not_there_is_an_error(capsys):
    assert 2 == conformance.main(["--", "no-such-program"])
    assert "there is no program 'no-such-program' here" in capsys.readouterr().err
    assert 2 == conformance.main(["--", sys.executable, "{replica}"])
    assert "did you mean 'replicas'" in capsys.readouterr().err
