"""A gate that is killed leaves a worktree and folders: the next one removes them."""

import os
import subprocess
import sys
import time
from pathlib import Path

import covering
import pytest
from command_lines import DRIVER, GATE, git, worktrees

from harness.judging import revisions
from harness.machine import owned_folders

ROOT = Path(__file__).resolve().parents[3]
NUM_KILLS = int(os.environ.get("GATE_KILLS", "2"))
GATE_SEC = 4.0
"""About the time of a gate here, at whose moments it is killed."""
KILLED = (*GATE, "--set=rounds=3", "--baseline=same")


@pytest.mark.processes
def test_kills_of_a_gate_leave_nothing_behind_the_next_one(
    repository, tmp_path, temporary
):
    """SIGKILL at random moments; ``make faults`` kills a hundred."""
    chance = covering.chance("kills of gates")
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    num_left = 0
    for kill in range(NUM_KILLS):
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(repository), *KILLED],
            cwd=tmp_path,
            env=variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        if kill == 0:  # at least one where a worktree is left
            deadline = time.monotonic() + 60
            while not list(temporary.glob(f"{owned_folders.TRIAL}*")):
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
        else:
            time.sleep(chance.uniform(0, GATE_SEC))
        process.kill()
        process.wait()
        num_left += bool(worktrees(repository))
        # What is left of it ends by itself, and lets go of its folders.
        deadline = time.monotonic() + 60
        while worktrees(repository) or list(temporary.iterdir()):
            assert time.monotonic() < deadline, list(temporary.iterdir())
            remove_as_the_next_gate_does(repository)
            time.sleep(0.05)

    assert num_left >= 1
    assert "" == git(repository, "worktree", "prune", "--dry-run", "--verbose")


def remove_as_the_next_gate_does(repository):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(revisions, "SOURCE_ROOT", repository)
        patch.setattr(revisions, "check_out", _stop)
        commit = revisions.find_commit("same")
        with (
            pytest.raises(InterruptedError),
            revisions.checked_out("same", commit, lambda _: None),
        ):
            pass


def _stop(*_):
    raise InterruptedError


def test_a_worktree_that_git_did_not_finish_is_removed(
    repository, tmp_path, monkeypatch
):
    monkeypatch.setattr(revisions, "SOURCE_ROOT", repository)
    root = tmp_path / f"{owned_folders.GATE}x" / "tree"
    git(repository, "worktree", "add", "--quiet", "--lock", "--detach", str(root))
    (root.parent / owned_folders._OWNER).touch()
    others = tmp_path / "others"
    git(repository, "worktree", "add", "--quiet", "--detach", str(others))
    try:
        revisions.remove_abandoned_worktrees(revisions._git)

        assert [str(others)] == worktrees(repository)
        assert not root.parent.exists()
    finally:
        git(repository, "worktree", "remove", str(others))


def test_folders_that_somebody_holds_stay(temporary):
    foreign = temporary / "replicator-notes"
    foreign.mkdir()
    with owned_folders.made(owned_folders.GATE) as own:
        owned_folders.remove_abandoned()
        assert own.path.is_dir()
        command = subprocess.Popen(["sleep", "60"], pass_fds=(own.descriptor,))
        os.close(own.descriptor)
        owned_folders.remove_abandoned()
        assert own.path.is_dir()
        command.kill()
        command.wait()
        owned_folders.remove_abandoned()
        assert [foreign] == list(temporary.iterdir())
        own.path.mkdir()
        own.descriptor = os.open(own.path, os.O_RDONLY)
    assert foreign.is_dir()


def test_a_folder_whose_maker_was_killed_before_it_was_held_is_removed(temporary):
    new, old, full = (temporary / f"{owned_folders.TRIAL}{n}" for n in "abc")
    for folder in (new, old, full):
        folder.mkdir()
    (full / "file").touch()
    for folder in (old, full):
        os.utime(folder, (1, 1))
    owned_folders.remove_abandoned()

    assert {new, full} == set(temporary.iterdir())
