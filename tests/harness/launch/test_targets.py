"""``launch render`` writes files, submits nothing, and refuses what cannot run."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from harness.launch import targets
from harness.launch.slurm import script

if TYPE_CHECKING:
    from pathlib import Path

GANG = ("launch", "render", "--target=slurm", "--workers=4", "--gpus-per-worker=2")
PROGRAM = ("--", "python", "train.py", "--text", "a b")


def test_a_gang_is_one_step_of_all_workers(harness: Any, tmp_path: Path) -> None:
    """What ``sbatch`` reads, and the command as it was given."""
    code, out, _ = harness(
        *GANG, "--nodes=2", "--replicas=8", "--partition=a", "--output=files", *PROGRAM
    )
    text = (tmp_path / "files" / "replicator.sbatch").read_text()

    assert (0, "files/replicator.sbatch\n") == (code, out)
    for option in ("nodes=", "ntasks-per-node=", "gpus-per-node="):
        assert f"#SBATCH --{option}" in text
    assert '#SBATCH --ntasks-per-node="2"' in text
    assert '#SBATCH --gpus-per-node="4"' in text
    assert '#SBATCH --partition="a"' in text
    assert "--gpus-per-task=2 python train.py --text 'a b'" in text


def test_an_array_gives_each_job_a_shard() -> None:
    """Numbered from 1, as ``--shard`` is."""
    job = targets.Job(name="x", command=("sweep",), array=20)
    (text,) = targets.render("slurm", job).values()

    assert '#SBATCH --array="1-20"' in text
    assert 'sweep --shard "$SLURM_ARRAY_TASK_ID/20"' in text


@pytest.mark.parametrize("array", [None, 3])
def test_the_batch_file_of_a_sweep_is_valid_shell(array: int | None) -> None:
    """``bash -n`` reads it; it has to stop before the time limit."""
    bash = shutil.which("bash")
    assert bash is not None
    job = targets.Job(name="x", command=("sweep", "it's"), array=array)
    text = script.of_sweep(job, "ru ns")
    done = subprocess.run(
        [bash, "-n"], input=text, capture_output=True, text=True, check=False
    )

    assert (0, "") == (done.returncode, done.stderr)
    assert f'#SBATCH --signal="B:USR1@{script.GRACE_SEC}"' in text
    assert "#SBATCH --requeue" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--target=slum",), r"unknown target 'slum'; known are slurm.*did you mean"),
        (("--replicas=4",), r"--workers 4 x --gpus-per-worker 2 makes 8 replicas, not"),
        (("--nodes=5",), r"--nodes 5 is more than --workers 4: .*at most --nodes 4"),
        (("--name=A B",), r"job name 'A B' is not valid; allowed are"),
        (("--partition=a\nb",), r"cannot stand in a batch file|printable"),
        (("--workers=0",), r"0 is not in the range"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(
    harness: Any, written: Any, options: tuple[str, ...], message: str
) -> None:
    """With exit code 2, and nothing is written."""
    code, _, err = harness(*GANG, *options, *PROGRAM)

    assert 2 == code
    assert 1 == err.count("\n")
    assert re.search(message, err)
    assert [] == written()


def test_a_command_is_needed(harness: Any) -> None:
    """And how to write it."""
    code, _, err = harness(*GANG)

    assert 2 == code
    assert "no command to run; write it after '--'" in err


def test_a_file_is_not_overwritten(harness: Any, tmp_path: Path) -> None:
    """Somebody may have changed it."""
    (tmp_path / "replicator.sbatch").write_text("mine")
    code, _, err = harness(*GANG, *PROGRAM)

    assert 2 == code
    assert "exists and is not overwritten; choose another --output" in err
    assert "mine" == (tmp_path / "replicator.sbatch").read_text()
