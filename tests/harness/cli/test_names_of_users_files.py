"""The packages find each other, whatever files lie where a user calls the harness."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NAMES = ("click", "replicator", "reports", "results", "rich", "workloads")

pytestmark = pytest.mark.processes


@pytest.fixture
def folder(tmp_path):
    """A folder of a user, with modules of his own under the names of packages."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"raise RuntimeError('user: {name}')\n")
    return tmp_path


def run(folder, *arguments):
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("list", "studies"),
        ("sweep", "--dry-run", "--workload=resnet50", "--preset=smoke", "--no-match"),
        ("report", "--help"),
    ],
)
def test_modules_of_a_user_do_not_shadow_the_packages(folder, arguments):
    """Neither an ImportError nor exit code 70."""
    done = run(folder, "harness", *arguments)

    assert 0 == done.returncode, done.stderr
    assert "user: " not in done.stderr


def test_processes_that_the_harness_starts_find_them_too(folder):
    """They are called as modules, some of them in the user's folder."""
    done = run(folder, "harness.trial.ranks")

    assert "harness/trial/ranks.py" in done.stderr
    assert "user: " not in done.stderr


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
