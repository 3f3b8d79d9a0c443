"""Places that cannot be written to, and plans that are not their own: one line each."""

import os
import subprocess
import sys
from pathlib import Path

import published_studies
import pytest

from harness.cli import exit_codes

ROOT = Path(__file__).resolve().parents[3]
STUDY = published_studies.study("d4pg")


@pytest.mark.processes
@pytest.mark.parametrize("verb", ["status {} --json", "list"])
def test_a_full_disk_behind_stdout_is_one_line(verb, tmp_path):
    """As in ``status --json > file`` on a full disk; exit code 2."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "harness", *verb.format(STUDY).split()],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert exit_codes.USAGE == done.returncode, done.stderr
    assert done.stderr == (
        "error: cannot write the output: No space left on device; free space, or"
        " redirect it\n"
    )


@pytest.mark.parametrize("output", ["/proc/x", "/dev/null", "file"])
def test_files_that_cannot_be_rendered_are_one_line(harness, tmp_path, output):
    """A folder of the kernel's, a device, a file; exit code 2."""
    (tmp_path / "file").touch()
    code, out, err = harness(
        *("launch", "render", "--launcher", "slurm", "-o", output, "--", "true")
    )

    assert (exit_codes.USAGE, "") == (code, out)
    assert err.startswith("error: cannot write ")
    assert 1 == err.count("\n")
