"""The command line: what it prints, where, with which exit code; and bad input."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click.testing
import pytest
from command_words import overridden

from harness.cli import exit_codes
from harness.cli import main as cli


def test_plan_lists_trials_on_stdout_and_notes_on_stderr(harness, written):
    """Data and remarks do not mix, and nothing is written."""
    code, out, err = harness(
        "sweep", "--dry-run", "--workload=resnet50", "--preset=smoke"
    )

    assert exit_codes.OK == code
    assert "in_graph x1 weak+strong, batch 1x4, generation 0" in out
    assert "5 generations of 2 min 24 s, or less after 23 rounds" in out
    assert "default for" in err
    assert [] == written()


def test_list_prints_names_as_text_and_json(harness):
    _, everything, _ = harness("list")
    for what in ("workloads", "backends", "presets"):
        code, out, _ = harness("list", what, "--json")
        (rows,) = json.loads(out).values()
        _, text, _ = harness("list", what)

        assert exit_codes.OK == code
        assert rows
        assert all(row["name"] in text and row["name"] in everything for row in rows)


BAD_INPUT = [
    (("--workload=vgg",), r"unknown workload 'vgg'; known are resnet50"),
    (("--backends=nccl",), r"unknown backend 'nccl'; known are single, in_graph"),
    (("--preset=huge",), r"unknown preset of resnet50 'huge'; known are smoke"),
    (("--data=mnst",), r"'mnst'"),
    (("--replicas=0",), r"--replicas: '0' is not positive"),
    (("--replicas=1,3", "--mode=strong"), r"global batch 4 is not divisible by 3"),
    (("--mode=medium",), r"--mode: unknown scaling mode 'medium'; allowed are weak"),
    (("--repeats=0",), r"--repeats: '0' is not an integer from 1 to \d+"),
    (("--timeout=0s",), r"--timeout: '0s' is not a duration; allowed are numbers"),
    (("--study=",), r"--study '' is not a study name"),
    (("--study=a/b",), r"--study 'a/b' is not a study name"),
    (("--study=..",), r"--study '..' is not a study name; allowed are up to 100"),
    ((f"--study={'a' * 101}",), r"--study 'a+' is not a study name"),
    (("--option=depth",), r"--option: 'depth' is not KEY=VALUE"),
    (("--option=a=1", "--option=a=2"), r"--option: 'a' is given twice"),
    (("--option=no_such_option=1",), r"no_such_option"),
    (
        ("--option=jit=step", "--backends=in_graph", "--replicas=1"),
        r"option jit='step' must be one of 'off', 'compute'",
    ),
    (("--device=tpu",), r"--device: 'tpu' is not one of 'cpu', 'gpu'"),
    (("--repeat=3",), r"No such option.*--repeat"),
    (("--runs-dir=file",), r"--runs-dir 'file': 'file' is a file, but a directory"),
    (("--runs-dir=file/x",), r"'.*file' is a file, but a directory is needed"),
    (("--runs-dir=/proc/runs",), r"cannot write study directory '/proc/runs/"),
    (("--runs-dir=taken", "--study=f"), r"'taken/f' is a file, but a study is a dir"),
    (("--runs-dir=taken", "--study=d"), r"'taken/d' is not a study: it has 'x'"),
]


@pytest.mark.parametrize(("args", "message"), BAD_INPUT)
def test_bad_input_is_one_line_exit_2_and_nothing_written(
    refuse, tmp_path, args, message
):
    (tmp_path / "file").write_text("")
    (tmp_path / "taken" / "d").mkdir(parents=True)
    (tmp_path / "taken" / "d" / "x").write_text("")
    (tmp_path / "taken" / "f").write_text("")
    defaults = ("--workload=resnet50", "--preset=smoke")
    err = refuse("sweep", *overridden(defaults, *args))

    assert re.search(message, err)


@pytest.mark.parametrize("verb", ["status", "sweep --study", "report"])
def test_what_is_no_study_is_one_line(refuse, tmp_path, verb):
    """Each reading verb says the same; a directory is not a study yet.

    An unset shell variable gives an empty name.
    """
    (tmp_path / "runs" / "empty").mkdir(parents=True)
    for name, message in (
        ("nothing", r"no study at 'runs/nothing': .*does not exist"),
        ("empty", r"no study at 'runs/empty': .*plan.json"),
        ("", r"study '' is empty; name a study in 'runs'"),
    ):
        if name or "--study" not in verb:
            assert re.search(f"^error: {message}", refuse(*verb.split(), name))


def test_every_verb_has_help():
    runner = click.testing.CliRunner()
    for name in cli.cli.commands:
        result = runner.invoke(cli.cli, [name, "--help"])

        assert result.exit_code == 0
        assert cli.cli.commands[name].help


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("broken inside"),
        # Of a missing file of ours no path of the user's is blamed.
        FileNotFoundError(errno.ENOENT, "No such file: broken inside", "x"),
        OSError("broken inside"),
    ],
)
def test_a_fault_of_ours_has_an_exit_code_of_its_own(monkeypatch, capsys, error):
    """Code 1 means a regression, so a crash must not use it."""

    def crash(*_, **__):
        raise error

    monkeypatch.setattr(cli.cli, "main", crash)
    code = cli.main(["list"])
    message = capsys.readouterr().err

    assert exit_codes.INTERNAL_FAULT == code
    assert "broken inside" in message
    assert (
        "error: internal error; finished trials are kept, "
        "run the same command to resume" in message
    )


ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def users_folder(tmp_path):
    for name in ("click", "replicator", "reports", "results", "rich", "workloads"):
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('user: {name}')\n")
    return tmp_path


def run_module(users_folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=users_folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.processes
def test_modules_of_a_user_do_not_shadow_the_packages(users_folder):
    words = ("sweep", "--dry-run", "--workload=resnet50", "--preset=smoke")
    done = run_module(users_folder, "harness", *words, "--no-match")

    assert 0 == done.returncode, done.stderr
    assert "user: " not in done.stderr


@pytest.mark.processes
def test_processes_that_the_harness_starts_find_them_too(users_folder):
    """They are called as modules, some of them in the user's folder."""
    done = run_module(users_folder, "harness.trial.ranks")

    assert "harness/trial/ranks.py" in done.stderr
    assert "user: " not in done.stderr


@pytest.mark.processes
def test_a_tree_of_sources_is_its_own_folder():
    """Called in the folder that the packages are in, that folder stays in the path."""
    code = "import sys; sys.argv = ['-m']; import harness; print(sys.path[0])"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() in ("", str(ROOT))
