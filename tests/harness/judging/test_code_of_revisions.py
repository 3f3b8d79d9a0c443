"""What a revision runs: its own code, with the packages of its own lock."""

import contextlib
import hashlib
import json
import sys
import zipfile
from pathlib import Path

import fork_server
import pytest
from command_lines import WORKER, commit, git

from harness import ExitCode, HarnessError
from harness.judging import revisions
from harness.sources import code_digest
from results import Store

OTHER_VERSION = "0.0.1"
# With ``site``, which finds what was installed.


def _wheel(folder, name, files):
    """Writes a wheel that holds files and metadata only; returns its hash."""
    stem = f"{name.replace('-', '_')}-{OTHER_VERSION}"
    info = f"{stem}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {OTHER_VERSION}\n"
    wheel = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    facts = {"METADATA": metadata, "WHEEL": wheel, "RECORD": f"{info}/RECORD,,\n"}
    files = files | {f"{info}/{name_in}": text for name_in, text in facts.items()}
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name_in, text in files.items():
            archive.writestr(name_in, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _lock(wheels, contents):
    """Returns a lock of wheels that are made here: no index is asked."""
    lines = ["--no-index", f"--find-links {wheels}"]
    for name, files in contents.items():
        digest = _wheel(wheels, name, files)
        lines.append(f"{name}=={OTHER_VERSION} --hash=sha256:{digest}")
    return "\n".join([*lines, ""])


def _commit(repository, name, text, tag):
    git(repository, "checkout", "--quiet", "same")
    (repository / name).write_text(text)
    commit(repository, tag)
    git(repository, "checkout", "--quiet", "same")


@pytest.fixture(scope="session")
def other_lock(repository, tmp_path_factory):
    """Returns a revision with another lock, all of whose versions are others."""
    wheels = tmp_path_factory.mktemp("wheels")
    folders = [path for path in sys.path if Path(path).name.endswith("-packages")]
    modules = "".join(f"{folder}\n" for folder in folders)
    contents = {name: dict[str, str]() for name in code_digest.DISTRIBUTIONS}
    contents["modules-of-tests"] = {"modules_of_tests.pth": modules}
    _commit(repository, revisions.LOCK_NAME, _lock(wheels, contents), "other_lock")
    return "other_lock"


@pytest.mark.processes
def test_a_gate_installs_the_other_lock_and_measures_with_it(
    gate, tmp_path, temporary, other_lock
):
    words = (f"--baseline={other_lock}", "--repeats=2", "--study=s")
    with fork_server.installed(WORKER, fork_server.GATES):  # not of its Python
        code, out, err = gate(*words, worker_command=WORKER)
    assert code in (ExitCode.OK, ExitCode.INCONCLUSIVE), (out, err)
    trials = list(Store.open(tmp_path / "runs" / "s").trials())
    versions = {of.spec.revision: of.env.packages["tensorflow"] for of in trials}

    assert "revision other_lock has another requirements.lock: installing" in err
    assert OTHER_VERSION != versions.pop("")
    assert [OTHER_VERSION] == list(versions.values())
    assert 2 == len({trial.spec.code_digest for trial in trials})
    assert [] == list(temporary.iterdir())


@pytest.fixture
def check_out(repository, temporary, monkeypatch):
    """Returns a function that checks a revision out; this tree has a lock for GPUs."""
    _commit(repository, revisions.GPU_LOCK_NAME, "# one\n", "gpu")
    monkeypatch.setattr(revisions, "SOURCE_ROOT", repository)
    (repository / revisions.GPU_LOCK_NAME).write_text("# one\n")

    def run(revision, device):
        notes = []
        found = revisions.find_commit(revision)
        with revisions.checked_out(revision, found, notes.append, device) as tree:
            return tree.python, notes

    yield run
    (repository / revisions.GPU_LOCK_NAME).unlink()
    git(repository, "tag", "--delete", "gpu")


@pytest.mark.processes
def test_the_lock_of_gpus_counts_on_gpus_only(check_out):
    assert (sys.executable, []) == check_out("gpu", "gpu")
    assert (sys.executable, []) == check_out("same", "cpu")
    message = (
        r"^revision 'same' has no requirements-gpu.lock, which says what to install for"
        r" these devices; choose a later revision, or use a stored study as baseline$"
    )
    with pytest.raises(HarnessError, match=message):
        check_out("same", "gpu")


@pytest.fixture
def trees(tmp_path):
    for name in ("tree", "base"):
        (tmp_path / name / "src" / "own").mkdir(parents=True)
        (tmp_path / name / "train.py").touch()
    return tmp_path / "tree", tmp_path / "base"


def install(monkeypatch, folder, source):
    facts = folder / "own-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    url = {"url": source.as_uri(), "dir_info": {"editable": True}}
    (facts / "direct_url.json").write_text(json.dumps(url))
    monkeypatch.setenv("PYTHONPATH", str(folder))


@pytest.mark.processes
@pytest.mark.parametrize("command", ["python3 train.py {replicas}", "env A=1 python3"])
def test_a_package_of_the_working_tree_is_refused(
    trees, tmp_path, monkeypatch, command
):
    tree, base = trees
    install(monkeypatch, tmp_path / "site", tree)

    message = r"Python of base has the package 'own' from '.*/tree/src', so both sides"
    with pytest.raises(HarnessError, match=message):
        revisions.check_imports(command, base, base, "base", [tree])
    revisions.check_imports(command, tree, tree, "tree", [base])


MARK_OF_A_HOOK = "__editable__.own-1.0.finder.__path_hook__"
PATHS = [
    ("src", "python3 train.py", "", r"Python of base imports from '.*/tree/src'"),
    # The revision has its own there, and finds that first.
    ("src", "python3 -m own", "src", ""),
    # As an editable installation leaves it in sys.path.
    (MARK_OF_A_HOOK, "python3 train.py", "", ""),
    ("src", "no-such-program", "", ""),
]


@pytest.mark.processes
@pytest.mark.parametrize(("path", "command", "folder", "message"), PATHS)
def test_a_path_to_the_working_tree_is_refused(
    trees, monkeypatch, path, command, folder, message
):
    tree, base = trees
    monkeypatch.setenv("PYTHONPATH", str(tree / path))
    refused = pytest.raises(HarnessError, match=message or None)
    with refused if message else contextlib.nullcontext():
        revisions.check_imports(command, base / folder, base, "base", [tree])


def test_what_starts_the_program_has_to_be_there(tmp_path):
    message = r"base has no '\.venv/bin/python', which --command starts: git does not"
    with pytest.raises(HarnessError, match=message):
        revisions.check_start(".venv/bin/python a.py", tmp_path, "base")
    for command in ("python a.py", "/bin/sh a", "./a{seed}"):
        revisions.check_start(command, tmp_path, "base")
