"""The sources of another revision, in a temporary directory, ready to run trials.

A git worktree is checked out and removed again, however the measurement ends: where the
harness was killed, by the next gate. It runs
with the interpreter of the harness, unless its ``requirements.lock`` differs: then it
gets an environment of its own, made as ``make setup`` makes it. On GPUs the same holds
for ``requirements-gpu.lock``, and the environment is that of ``make setup-gpu``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from harness import SOURCE_ROOT
from harness.errors import RevisionError
from harness.machine import allocation, environment, gpus, machine_state, owned_folders
from harness.machine.allocation import processes_of_trial
from harness.machine.machine_state import read_topology
from harness.sources import code_digest
from harness.sources.code_digest import SourceTree
from harness.trial.measure import COMPATIBLE, PROTOCOL
from harness.trial.process_tree import on_stop_signals
from results.records.models import SCHEMA_VERSION
from results.records.texts import tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Protocol

    from harness.machine.gpus import Gpu
    from results.records.models import TrialSpec

    class Git(Protocol):
        """Runs git in the repository that the worktrees belong to."""

        def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
            """Runs one command."""


def remove_worktree(git: Git, root: Path) -> None:
    """Removes a worktree with the temporary folder that it is in."""
    # Locked until it is complete, and then neither removed nor pruned.
    git("worktree", "unlock", str(root))
    git("worktree", "remove", "--force", str(root))
    shutil.rmtree(root.parent, ignore_errors=True)
    git("worktree", "prune")


def remove_abandoned_worktrees(git: Git) -> None:
    """Removes the worktrees, and other temporary folders, of gates that were killed."""
    listed = git("worktree", "list", "--porcelain").stdout
    for line in listed.splitlines():
        name, _, text = line.partition(" ")
        root = Path(text)
        if name != "worktree" or not root.parent.name.startswith(owned_folders.GATE):
            continue
        if not root.parent.exists() or owned_folders.is_abandoned(root.parent):
            remove_worktree(git, root)
    owned_folders.remove_abandoned()


LOCK_NAME = "requirements.lock"
GPU_LOCK_NAME = "requirements-gpu.lock"
SHOWN_DIGITS = 12
"""Of a commit, as the revision of specs."""

_READ_VERSIONS = """
import importlib.metadata, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_READ_SPEC = f"""
import sys
try:
    from results.records import models
except ImportError:  # before results had folders
    from results import records as models
if models.SCHEMA_VERSION != {SCHEMA_VERSION}:
    sys.exit(
        f"its records have schema version {{models.SCHEMA_VERSION}}, here it is "
        "{SCHEMA_VERSION}"
    )
try:
    from harness.client.scaling_client import PROTOCOL as version
except ImportError:  # before it had a number
    version = 1
if version not in {COMPATIBLE}:
    sys.exit(f"its version of taking turns is {{version}}, here it is {PROTOCOL}")
models.TrialSpec.model_validate_json(sys.stdin.read())
"""


def find_commit(revision: str) -> str:
    """Returns the full id of the commit of this tree that a revision names."""
    try:
        is_repository = _git("rev-parse", "--git-dir").returncode == 0
    except FileNotFoundError as error:
        raise RevisionError(
            f"--baseline {revision!r}: git is not installed, and no study has this"
            " name; install git, or name a stored study"
        ) from error
    if not is_repository:
        raise RevisionError(
            f"--baseline {revision!r} is no stored study, and {str(SOURCE_ROOT)!r} is"
            " not a git repository, so it has no revisions; name a stored study"
        )
    return named_commit(_git, SOURCE_ROOT, revision)


def named_commit(git: Git, root: Path, revision: str) -> str:
    """Returns the full id of the commit of a repository that a revision names."""
    wanted = f"{revision}^{{commit}}"
    found = git("rev-parse", "--verify", "--quiet", "--end-of-options", wanted)
    if found.returncode != 0:
        raise RevisionError(
            f"--baseline {revision!r} is neither a study nor a revision of"
            f" {str(root)!r}; 'list studies' and 'git log' show which there are"
        )
    return found.stdout.strip()


def locks_of(device: str) -> tuple[str, ...]:
    """Returns the locks of an environment for a kind of device, in their order."""
    return (LOCK_NAME, GPU_LOCK_NAME) if device == "gpu" else (LOCK_NAME,)


@contextlib.contextmanager
def checked_out(
    revision: str, commit: str, note: Callable[[str], None], device: str = "cpu"
) -> Iterator[SourceTree]:
    """Checks a commit out for as long as the block lasts."""
    remove_abandoned_worktrees(_git)
    with owned_folders.made(owned_folders.GATE) as folder:
        root = folder.path / "tree"
        try:
            name = f"revision {revision!r}"
            check_out(environment.run_git, SOURCE_ROOT, root, commit, name, folder)
            python, versions = sys.executable, None
            locks = locks_of(device)
            others = [n for n in locks if _read(root / n) != _read(SOURCE_ROOT / n)]
            if others:
                note(
                    f"revision {revision} has another {' and '.join(others)}:"
                    f" installing {' and '.join(locks)}"
                )
                python = _install(revision, root, folder, locks)
                versions = _versions(revision, python)
            yield SourceTree(
                revision=commit[:SHOWN_DIGITS],
                root=root,
                python=python,
                versions=versions,
            )
        finally:
            with uninterrupted():
                remove_worktree(_git, root)


def check_out(
    git: Callable[..., subprocess.CompletedProcess[str]],
    source: Path,
    root: Path,
    commit: str,
    name: str,
    folder: owned_folders.Owned,
) -> None:
    """Checks a commit out into a worktree, with its submodules."""
    add = ("worktree", "add", "--quiet", "--detach", str(root), commit)
    made = git(source, *add, holds=folder)
    if made.returncode == 0 and (root / ".gitmodules").is_file():
        update = ("submodule", "update", "--init", "--recursive")
        made = git(root, *update, holds=folder)
    if made.returncode != 0:
        raise RevisionError(
            f"{name} cannot be checked out: {last_line(made.stderr)}; fix the"
            " repository, or choose another revision"
        )


def check_runs(revision: str, tree: SourceTree, spec: TrialSpec) -> None:
    """Checks that the sources of a revision can take part in a measurement."""
    done = _run(
        [tree.python, "-c", _READ_SPEC],
        variables={"PYTHONPATH": str(tree.root)},
        text=spec.model_dump_json(),
        # Python looks into the current folder first, which can be this tree.
        folder=tree.root,
    )
    if done.returncode != 0:
        raise RevisionError(
            f"revision {revision!r} cannot run the trials of this tree:"
            f" {last_line(done.stderr)}; the two must agree on the records and on how"
            " blocks are taken: choose a later revision, or use a stored study as"
            " baseline"
        )


def _install(
    revision: str, root: Path, owned: owned_folders.Owned, locks: Sequence[str]
) -> str:
    """Makes an environment with the locked packages of a tree; returns its Python."""
    for name in locks:
        if _read(root / name) is None:
            raise RevisionError(
                f"revision {revision!r} has no {name}, which says what to install for"
                " these devices; choose a later revision, or use a stored study as"
                " baseline"
            )
    folder = owned.path / "env"
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--no-deps", "--require-hashes"]
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        *([*pip, "-r", str(root / name)] for name in locks),
    ):
        done = _run(command, holds=owned)
        if done.returncode != 0:
            raise RevisionError(
                f"revision {revision!r} cannot be installed:"
                f" {_why(done.stderr or done.stdout)}; choose a revision whose"
                f" {' and '.join(locks)} can be installed here"
            )
    return python


def _versions(revision: str, python: str) -> dict[str, str]:
    """Returns the versions of the recorded packages that an environment has."""
    names = [*dict.fromkeys((*code_digest.DISTRIBUTIONS, *environment.PACKAGES))]
    done = _run([python, "-c", _READ_VERSIONS, *names])
    versions: dict[str, str] = json.loads(done.stdout) if done.returncode == 0 else {}
    missing = [name for name in code_digest.DISTRIBUTIONS if name not in versions]
    if missing:
        raise RevisionError(
            f"revision {revision!r} lacks package {missing[0]!r}"
            f"{': ' + last_line(done.stderr) if done.returncode else ''}; choose a"
            f" revision whose {LOCK_NAME} is complete"
        )
    return versions


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return environment.run_git(SOURCE_ROOT, *arguments)


def _run(
    command: Sequence[str],
    *,
    variables: Mapping[str, str] | None = None,
    text: str = "",
    folder: Path | None = None,
    holds: owned_folders.Owned | None = None,
) -> subprocess.CompletedProcess[str]:
    # A command outlives a harness that is killed: what it writes to is not abandoned.
    return subprocess.run(
        command,
        env={**os.environ, **(variables or {})},
        input=text,
        cwd=folder,
        pass_fds=() if holds is None else (holds.descriptor,),
        capture_output=True,
        text=True,
        check=False,
    )


def _why(text: str) -> str:
    """Returns what pip says is wrong: its last error, without the advice after it."""
    lines = [line.strip() for line in text.splitlines()]
    found = [line.removeprefix("ERROR: ") for line in lines if line[:6] == "ERROR:"]
    return found[-1] if found else last_line(text)


def last_line(text: str) -> str:
    """Returns the last line that is not empty, masked, or says that there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return tokens(lines[-1]) if lines else "no reason was given"


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignores signals to stop until the block ends: a second Ctrl-C must not leave it.

    The commands that the block runs inherit this.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with on_stop_signals(signal.SIG_IGN):
        yield


def fingerprint(spec: TrialSpec) -> str:
    """Returns the fingerprint of this machine as the environment record has it."""
    chosen: tuple[Gpu, ...] = ()
    if spec.device == "gpu":
        chosen = gpus.choose(gpus.visible_gpus(), spec.num_replicas)
    placement = allocation.place(
        read_topology(),
        num_replicas=spec.num_replicas,
        cores_per_replica=spec.cores_per_replica,
        devices_per_replica=spec.devices_per_replica,
        device=spec.device,
        processes=processes_of_trial(spec),
        gpu_nodes=[gpu.node for gpu in chosen],
    )
    cores = [*itertools.chain(*placement.cpusets)]
    record = environment.read_environment(
        placement,
        os.environ,
        gpus=tuple(gpu.name for gpu in chosen),
        inherited=os.environ,
        state=machine_state.read_machine_state(cores),
    )
    return record.fingerprint
