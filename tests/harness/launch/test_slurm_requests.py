"""``sweep --launcher slurm``: what is submitted, and what is refused before that."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Any

import pytest

from harness.launch.slurm import srun

if TYPE_CHECKING:
    from pathlib import Path

SWEEP = (
    "sweep", "--workload=resnet50", "--preset=smoke", "--backends=multi_worker",
    "--replicas=2", "--mode=weak", "--repeats=3", "--launcher=slurm",
)  # fmt: skip
PROGRAMS = {
    "sinfo": 'echo "main* 2"; echo "big 8"',
    "sbatch": 'cat > "$SUBMITTED"; echo "42;cluster"',
    "srun": "exit 1",
}


@pytest.fixture
def cluster(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Puts programs into PATH that answer as Slurm's; returns what was submitted."""
    folder = tmp_path_factory.mktemp("slurm")
    for name, text in PROGRAMS.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("SUBMITTED", str(folder / "submitted"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return folder / "submitted"


def test_outside_of_an_allocation_a_job_is_submitted(
    harness: Any, cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id is printed, and how to follow it; the job runs the same command."""
    argv = (*SWEEP, "--nodes=2", "--time-limit=01:00:00")
    monkeypatch.setattr("sys.argv", ["harness", *argv])
    code, out, err = harness(*argv)
    text = cluster.read_text()

    assert (0, "42\n") == (code, out)
    assert re.search(r"submitted job 42; follow it with 'squeue --jobs=42'", err)
    assert re.search(
        r"-m harness sweep .*--launcher=slurm .*--study resnet50-smoke-", text
    )
    assert '#SBATCH --nodes="2"' in text
    assert '#SBATCH --time="01:00:00"' in text


def test_an_array_names_its_study_once(
    harness: Any, cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its jobs get shards of the study, and not the option that made them."""
    argv = (*SWEEP, "--array=3", "--study", "s")
    monkeypatch.setattr("sys.argv", ["harness", *argv])
    code, _, _ = harness(*argv)
    text = cluster.read_text()

    assert 0 == code
    assert '--study s --shard "$SLURM_ARRAY_TASK_ID/3"' in text
    assert "--array=3" not in text.replace('--array="1-3"', "")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--partition=mains",),
            r"unknown --partition 'mains'; known are main, big; did",
        ),
        (("--nodes=3",), r"--nodes 3: partition 'main' has 2; use at most --nodes 2"),
        (
            ("--workers=3", "--gpus-per-worker=1"),
            r"--workers 3 x --replicas-per-worker 1 makes 3 replicas, but the largest",
        ),
        (("--array=4",), r"4 shards of a sweep with 3 repetitions: .*use at most 3"),
        (("--array=2", "--shard=1/2"), r"--array submits jobs that have a --shard"),
        (("--nodes=2", "--order=relay"), r"--order relay on 2 hosts: turns are judged"),
        (
            ("--device=gpu",),
            r"--device gpu with --launcher slurm: .*give --workers and",
        ),
    ],
)
def test_nothing_is_submitted_that_cannot_run(
    harness: Any, cluster: Path, written: Any, options: tuple[str, ...], message: str
) -> None:
    """One line, exit code 2, and no file."""
    code, _, err = harness(*SWEEP, *options)

    assert 2 == code
    assert re.search(message, err)
    assert 1 == err.count("\n")
    assert not cluster.exists()
    assert [] == written()


def test_without_slurm_the_program_that_is_missing_is_named(
    harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where the command would work."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    code, _, err = harness(*SWEEP)

    assert 2 == code
    assert (
        "'sbatch' is not in PATH, so there is no Slurm here; run the command on" in err
    )


def test_resuming_needs_an_allocation(
    harness: Any, finished: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same size; ``sweep`` submits, ``resume`` does not."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    code, _, err = harness("resume", "s", "--launcher=slurm")

    assert 2 == code
    assert "this process is in no allocation (SLURM_JOB_ID is not set)" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--launcher=slrum",), r"unknown launcher 'slrum'; known are local, slurm"),
        (("--nodes=2",), r"--nodes 2 has no effect with --launcher local; add"),
        (("--partition=x",), r"--partition x has no effect with --launcher local"),
        (("--shard=3",), r"--shard '3' is not I/K with I from 1 to K; write for"),
        (("--shard=3/2",), r"--shard '3/2' is not I/K"),
        (("--shard=1/9",), r"9 shards of a sweep with 2 repetitions"),
    ],
)
def test_options_of_a_launcher_are_checked(
    harness: Any, small: Any, written: Any, options: tuple[str, ...], message: str
) -> None:
    """One line, exit code 2, and no file."""
    code, _, err = harness("sweep", *small, *options)

    assert 2 == code
    assert re.search(message, err)
    assert [] == written()


def test_shards_are_the_whole_sweep(harness: Any, small: Any) -> None:
    """Each repetition is in one of them, with all of its cases."""
    outs = [
        harness("sweep", *small, "--dry-run", *shard)[1].splitlines()[:-1]
        for shard in ((), ("--shard=1/2",), ("--shard=2/2",))
    ]
    trials = [{line.split()[1] for line in out} for out in outs]

    assert trials[0] == trials[1] | trials[2]
    assert not trials[1] & trials[2]
    assert len(trials[1]) == len(trials[2])


def test_a_step_that_slurm_takes_for_running_does_not_hold_up_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cancelled once; then what is left of the trial is ended on every node."""
    ran: list[tuple[str, ...]] = []

    def run(*command: str) -> str:
        ran.append(command)
        return f"42.0 other\n42.1 {tmp_path.name}\n" if "squeue" in command else ""

    monkeypatch.setenv(srun.JOB_VARIABLE, "42")
    monkeypatch.setattr(srun, "_run", run)
    monkeypatch.setattr(srun, "_END_BY_ITSELF_SEC", 0.1)
    srun.end_steps(tmp_path, 2)
    cancelled, ended = [command for command in ran if command[0] != "squeue"]

    assert ("scancel", "42.1") == cancelled
    assert {"srun", "--nodes=2", "harness.run.process_tree"} <= set(ended)
    assert str(tmp_path) == ended[-1]
