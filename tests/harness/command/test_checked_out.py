"""Two revisions of a repository that has more than files: what is said and done."""

import errno
import os
from pathlib import Path

import pytest
from repositories import commit, git

from harness.command import identity, program, repository
from harness.errors import PlanError, RevisionError
from harness.judging import program_revisions

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n"


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    for name in ("src/train.py", "kept.txt", "removed.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("committed")
    commit(folder, "first")
    return folder


def sides(root, folder=None):
    source = program_revisions.source_of(root, "HEAD", root / "runs")
    own = program.make(
        command="python3 src/train.py {replicas}",
        metric_text="throughput=(x)",
        unit="runs",
        setup="",
        replicas=(1,),
        folder=folder or root,
    )
    commit = program_revisions.find_commit(source, "HEAD")
    return program_revisions.side_by_side(own, source, "HEAD", commit, print)


def test_paths_of_both_sides_have_one_length(root):
    """Or the stack of one side would lie elsewhere than that of the other."""
    with sides(root) as found:
        lengths = {len(str(folder)) for folder in found.folders.values()}

    assert 2 == len(found.folders)
    assert 1 == len(lengths)


def test_the_present_state_is_that_of_the_working_tree(root):
    (root / "src" / "train.py").write_text("changed")
    (root / "new.txt").write_text("new")
    (root / "removed.txt").unlink()
    (root / ".gitignore").write_text("ignored\n")
    for name in ("ignored", "a.pyc", "runs"):
        (root / name).mkdir() if name == "runs" else (root / name).write_text(name)
    (root / "runs" / "plan.json").write_text("{}")

    with sides(root) as found:
        here, there = found.folders[""], found.folders[found.baseline.revision]
        assert {".gitignore", "kept.txt", "new.txt", "src"} == names_in(here)
        assert {"kept.txt", "removed.txt", "src"} == names_in(there)
        assert "changed" == (here / "src" / "train.py").read_text()
        assert "committed" == (there / "src" / "train.py").read_text()
        code = found.program.code
        assert code[""].keys() - code[found.baseline.revision].keys() == {
            f"uncommitted {name}"
            for name in (
                *(".gitignore (data)", "new.txt (data)", "removed.txt"),
                "src/train.py",
            )
        }

    assert not here.exists()
    assert not there.exists()
    assert "changed" == (root / "src" / "train.py").read_text()


def names_in(folder):
    return {path.name for path in folder.iterdir()} - {".git"}


def test_a_command_starts_in_its_folder(root):
    """Of each revision."""
    with sides(root, root / "src") as found:
        assert {"src"} == {path.name for path in found.folders.values()}
        assert "src" == found.program.record.folder


def test_pointers_of_lfs_are_no_files(root):
    """Where git-lfs is not installed, they are all that a checkout has."""
    (root / ".gitattributes").write_text("*.bin filter=lfs\n")
    (root / "data.bin").write_text(POINTER)
    git(root, "add", "--all")
    git(root, "-c", "filter.lfs.clean=cat", "commit", "--quiet", "-m", "second")

    message = (
        r"this tree has pointers of Git LFS .* such as 'data.bin'; install git-lfs"
    )
    with pytest.raises(RevisionError, match=message), sides(root):
        pass


def test_a_submodule_that_cannot_be_fetched_is_said(root, tmp_path, monkeypatch):
    git(root, "clone", "--quiet", str(root), str(tmp_path / "library"))
    git(root, "submodule", "add", "--quiet", str(tmp_path / "library"), "library")
    commit(root, "second")
    settings = tmp_path / "home"
    settings.mkdir()
    monkeypatch.setenv("HOME", str(settings))

    message = r"this tree cannot be checked out: .*; fix"
    with pytest.raises(RevisionError, match=message), sides(root):
        pass
    (settings / ".gitconfig").write_text('[protocol "file"]\n allow = always\n')
    with sides(root) as found:
        assert (found.folders[""] / "library" / "kept.txt").is_file()


def test_too_much_that_is_not_committed_is_refused(root, monkeypatch):
    """It would be read for every study; most of it is no source."""
    monkeypatch.setattr(repository, "MOST_CHANGED", 2)
    for number in range(3):
        (root / f"{number}.txt").touch()

    with pytest.raises(PlanError, match=r"3 files of .* such as '0.txt', .*gitignore"):
        repository.find(root)


def test_a_file_that_cannot_be_read_now_is_no_removed_one(root, monkeypatch):
    """Or one failed read would make another program of the same files."""
    (root / "kept.txt").write_text("changed")
    found = repository.find(root)
    number = errno.ESTALE

    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(PlanError, match=r"kept.txt', which identifies .*: Stale file"):
        found.changes()
    number = errno.EACCES
    assert {"kept.txt": "not readable"} == found.changes()


def test_a_file_that_a_command_names_and_that_fails_is_one_line(tmp_path):
    """It is opened, and then not read, by an error that has no path."""
    with pytest.raises(
        PlanError, match=r"cannot read '/proc/self/mem', .*output error"
    ):
        identity.of_program("no-such-program /proc/self/mem", tmp_path)


def test_a_repository_that_git_does_not_read_is_none_of_nobody(root):
    """As one of another owner in a container; its program would have no commit."""
    (root / ".git" / "config").write_text("[core\n")

    message = r"git does not read the repository of .*bad config line 1.*safe.directory"
    with pytest.raises(PlanError, match=message):
        repository.find(root)
    assert repository.find(root.parent) is None
