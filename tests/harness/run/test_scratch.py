"""Temporary files of a trial end with it, also where its processes are killed."""

import re
import sys
import tempfile

import pytest

from harness.errors import StudyError
from harness.launch import member
from harness.run import clearing, scratch, trial_tree
from harness.trial import process_tree

# Says where its temporary file is, and cannot remove it.
KILLED = """
import os, pathlib, signal, sys, tempfile
_, name = tempfile.mkstemp()
pathlib.Path(sys.argv[-1], "name").write_text(name)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def _temporary(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    (tmp_path / "trial").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


@pytest.mark.processes
def test_what_a_killed_process_left_is_removed(tmp_path):
    """The file was in the folder of the trial, which is gone."""
    trial_dir = tmp_path / "trial"
    variables = {
        process_tree.MARKER: str(trial_dir),
        scratch.VARIABLE: str(scratch.folder_of(trial_dir)),
    }
    tree = trial_tree.ProcessTree(trial_dir, variables, (sys.executable, "-c", KILLED))
    trial_tree.run_tree(tree, timeout_sec=30.0)

    name = (trial_dir / "name").read_text()
    assert name.startswith(f"{scratch.folder_of(trial_dir)}/")
    assert [] == [*(tmp_path / "tmp").iterdir()]


def test_the_next_run_removes_what_a_killed_run_left(tmp_path):
    """Which had no time for it; other trials keep theirs."""
    for name in ("trial", "other"):
        scratch.make(tmp_path / name)
        (scratch.folder_of(tmp_path / name) / "file").touch()
    clearing.clear(tmp_path / "trial")

    assert not scratch.folder_of(tmp_path / "trial").exists()
    assert (scratch.folder_of(tmp_path / "other") / "file").exists()


def test_only_this_user_can_read_it(tmp_path):
    """Temporary files may hold what others must not see."""
    scratch.make(tmp_path / "trial")

    assert 0o700 == scratch.folder_of(tmp_path / "trial").stat().st_mode & 0o777


def test_what_is_in_the_way_is_named(tmp_path):
    folder = scratch.folder_of(tmp_path / "trial")
    folder.touch()

    expected = (
        rf"cannot make '{re.escape(str(folder))}' for temporary files of a trial: File"
        r" exists; remove it, or set TMPDIR to another folder"
    )
    with pytest.raises(StudyError, match=expected):
        scratch.make(tmp_path / "trial")


def test_members_of_one_host_have_a_folder_each(tmp_path, monkeypatch):
    """The harness removes it with its own; on another host, the member does."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    with member._temporary_folder("worker_1") as shared:
        assert tmp_path / "tmp" / "worker_1" == shared
    monkeypatch.setenv("TMPDIR", str(tmp_path / "not here"))
    with member._temporary_folder("worker_1") as elsewhere:
        assert elsewhere.is_dir()
        assert elsewhere.parent == tmp_path / "tmp"

    assert shared.is_dir()
    assert not elsewhere.exists()
