"""What a revision runs: its own code, with the packages of its own lock."""

import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import fork_server
import pytest
from command_lines import GATE, WORKER, commit, git
from fake_machine import make_gpus

from harness import ExitCode
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
    _commit(repository, "requirements.lock", _lock(wheels, contents), "other_lock")
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


@pytest.mark.processes
@pytest.mark.parametrize(
    ("baseline", "device", "code"),
    [
        ("gpu", "gpu", ExitCode.OK),
        ("same", "cpu", ExitCode.OK),
        ("same", "gpu", ExitCode.USAGE),
    ],
)
def test_the_lock_of_gpus_counts_on_gpus_only(
    gate, repository, install_gpus, baseline, device, code
):
    """This tree has one, and so has a revision."""
    install_gpus(make_gpus(1))
    _commit(repository, "requirements-gpu.lock", "# one\n", "gpu")
    (repository / "requirements-gpu.lock").write_text("# one\n")
    words = [word for word in GATE if word != "--measure-equal"]
    found, out, err = gate(f"--baseline={baseline}", f"--device={device}", of=words)
    (repository / "requirements-gpu.lock").unlink()
    git(repository, "tag", "--delete", "gpu")

    assert code == found, err
    assert (code == ExitCode.OK) == ("installing" not in err)
    assert (code == ExitCode.OK) == ("nothing was measured" in out)
    refused = (
        "error: revision 'same' has no requirements-gpu.lock, which says what to"
        " install for these devices; choose a later revision, or use a stored study as"
        " baseline"
    )
    assert (code == ExitCode.USAGE) == (refused in err.splitlines())


# Makes a package of this folder an installed one, in the folder that is named.
INSTALL = """
mkdir -p $1/own-1.0.dist-info && cd $1/own-1.0.dist-info
printf 'Metadata-Version: 2.1\\nName: own\\nVersion: 1.0\\n' > METADATA
echo '{"url": "file://'$OLDPWD'", "dir_info": {"editable": true}}' > direct_url.json
"""
TRAIN = "python3 train.py {replicas}"
OWN = "the Python of this tree has the package 'own' from '.*/repository/src', so"
MARK_OF_A_HOOK = "__editable__.own-1.0.finder.__path_hook__"
COMPARED = [
    ("../site", TRAIN, ("--setup=true",), OWN),
    ("../site", f"env A=1 {TRAIN}", (), OWN),
    # Each revision has its own, as in a virtual environment.
    ("site", TRAIN, ("--setup=sh install.sh site",), ""),
    ("src", TRAIN, (), "the Python of this tree imports from '.*/repository/src', so"),
    # The revision has its own there, and finds that first.
    ("src", "python3 -m own {replicas}", (), ""),
    # As an editable installation leaves it in sys.path.
    (MARK_OF_A_HOOK, TRAIN, (), ""),
    ("src", "/bin/sh install.sh {replicas}", (), ""),
    (
        *("../site", ".venv/bin/python train.py {replicas}", ()),
        r"this tree has no '\.venv/bin/python', which --command starts: git does not",
    ),
]


@pytest.mark.processes
@pytest.mark.parametrize(("path", "command", "options", "message"), COMPARED)
def test_both_revisions_run_their_own_code(
    harness, tmp_path, monkeypatch, path, command, options, message
):
    root = tmp_path / "repository"
    (root / "src" / "own").mkdir(parents=True)
    (root / ".gitignore").write_text(".venv\nruns\nsite\n")
    (root / "install.sh").write_text(INSTALL)
    (root / "train.py").touch()
    (root / "src" / "own" / "__main__.py").touch()
    git(root, "init", "--quiet")
    commit(root, "base")
    venv = root / ".venv" / "bin"
    venv.mkdir(parents=True)
    (venv / "python").symlink_to(sys.executable)
    subprocess.run(["/bin/sh", "install.sh", tmp_path / "site"], cwd=root, check=True)
    monkeypatch.setenv("PYTHONPATH", path if path == "site" else str(root / path))
    monkeypatch.chdir(root / "src" if "-m" in command else root)
    words = ("--metric=wall", "--per-replica-batch-size=1", "--replicas=1")
    words = (f"--command={command}", *words, "--mode=weak", "--baseline=base")
    code, out, err = harness("gate", *words, *options)

    assert (ExitCode.USAGE if message else ExitCode.OK) == code, err
    assert bool(message) != ("nothing was measured" in out)
    assert not message or re.match(f"error: {message}", err.splitlines()[-1])
