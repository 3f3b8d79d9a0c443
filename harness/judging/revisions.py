"""The sources of another revision, in a temporary directory, ready to run trials.

A git worktree is checked out and removed again, however the measurement ends: where the
harness was killed, by the next gate. It runs with the interpreter of the harness,
unless its ``requirements.lock`` differs, or on GPUs ``requirements-gpu.lock``: then it
gets an environment of its own, made as ``make setup`` or ``make setup-gpu`` makes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from harness.command import identity, program
from harness.errors import RevisionError
from harness.machine import environment, machine_state, owned_folders
from harness.run import trial_runner
from harness.sources import code_digest
from harness.sources.code_digest import SourceTree
from harness.trial import process_tree
from harness.trial.measure import COMPATIBLE, PROTOCOL
from results.records.models import SCHEMA_VERSION, TrialSpec
from results.records.texts import tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Git = Callable[..., subprocess.CompletedProcess[str]]  # git in a repository


def remove_worktree(git: Git, root: Path) -> None:
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
SHOWN_DIGITS = 12  # Of a commit, as the revision of specs.

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


_run = functools.partial(
    subprocess.run, input="", capture_output=True, text=True, check=False
)


def find_commit(
    revision: str, root: Path, source: identity.Repository | None = None
) -> str:
    """Returns the full id of a commit: of a tree of ours, or of the user's."""
    git: Git = functools.partial(environment.run_git, root)
    if source is not None:
        git, root = functools.partial(identity.git, source.root), source.root
    try:
        is_repository = git("rev-parse", "--git-dir").returncode == 0
    except FileNotFoundError as error:
        raise RevisionError(
            f"--baseline {revision!r}: git is not installed, and no study has this"
            " name; install git, or name a stored study"
        ) from error
    if not is_repository:
        raise RevisionError(
            f"--baseline {revision!r} is no stored study, and {str(root)!r} is"
            " not a git repository, so it has no revisions; name a stored study"
        )
    wanted = f"{revision}^{{commit}}"
    answer = git("rev-parse", "--verify", "--quiet", "--end-of-options", wanted)
    if answer.returncode != 0:
        raise RevisionError(
            f"--baseline {revision!r} is neither a study nor a revision of"
            f" {str(root)!r}; 'list studies' and 'git log' show which there are"
        )
    return answer.stdout.strip()


@contextlib.contextmanager
def _worktrees(
    git: Git, *wanted: tuple[str, str, str]
) -> Iterator[owned_folders.Owned]:
    """Checks commits out: each is a worktree, the commit, and what messages call it."""
    remove_abandoned_worktrees(git)
    with owned_folders.made(owned_folders.GATE) as folder:
        try:
            for name, commit, what in wanted:
                check_out(git, folder, folder.path / name, commit, what)
            yield folder
        finally:
            # A second Ctrl-C must not leave them.
            with process_tree.on_stop_signals(signal.SIG_IGN):
                for name, *_ in wanted:
                    remove_worktree(git, folder.path / name)


def check_out(
    git: Git, folder: owned_folders.Owned, root: Path, commit: str, what: str
) -> None:
    """Checks a commit out into a worktree, with its submodules."""
    add = ("worktree", "add", "--quiet", "--detach", str(root), commit)
    made = git(*add, holds=folder)
    if made.returncode == 0 and (root / ".gitmodules").is_file():
        update = ("submodule", "update", "--init", "--recursive")
        made = git("-C", str(root), *update, holds=folder)
    if made.returncode != 0:
        raise RevisionError(
            f"{what} cannot be checked out: {last_line(made.stderr)}; fix the"
            " repository, or choose another revision"
        )


@contextlib.contextmanager
def checked_out(
    source: Path, revision: str, commit: str, note: Callable[[str], None], device: str
) -> Iterator[SourceTree]:
    """Checks a commit of a tree of ours out for as long as the block lasts."""
    what, git = f"revision {revision!r}", functools.partial(environment.run_git, source)
    with _worktrees(git, ("tree", commit, what)) as folder:
        root = folder.path / "tree"
        python, versions = sys.executable, None
        locks = [LOCK_NAME, GPU_LOCK_NAME] if device == "gpu" else [LOCK_NAME]
        others = [n for n in locks if _read(root / n) != _read(source / n)]
        if others:
            note(
                f"revision {revision} has another {' and '.join(others)}:"
                f" installing {' and '.join(locks)}"
            )
            python = _install(what, root, folder, locks)
            versions = _versions(what, python)
        yield SourceTree(
            revision=commit[:SHOWN_DIGITS], root=root, python=python, versions=versions
        )


def check_runs(revision: str, tree: SourceTree, spec: TrialSpec) -> None:
    """Checks that the sources of a revision can take part in a measurement."""
    done = _run(
        [tree.python, "-c", _READ_SPEC],
        env={**os.environ, "PYTHONPATH": str(tree.root)},
        input=spec.model_dump_json(),
        # Python looks into the current folder first, which can be this tree.
        cwd=tree.root,
    )
    if done.returncode != 0:
        raise RevisionError(
            f"revision {revision!r} cannot run the trials of this tree:"
            f" {last_line(done.stderr)}; the two must agree on the records and on how"
            " blocks are taken: choose a later revision, or use a stored study as"
            " baseline"
        )


def _install(
    what: str, root: Path, owned: owned_folders.Owned, locks: Sequence[str]
) -> str:
    for name in locks:
        if _read(root / name) is None:
            raise RevisionError(
                f"{what} has no {name}, which says what to install for these devices;"
                " choose a later revision, or use a stored study as baseline"
            )
    folder = owned.path / "env"
    python = str(folder / "bin" / "python")
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--no-deps", "--require-hashes"]
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        *([*pip, "-r", str(root / name)] for name in locks),
    ):
        # It outlives a harness that is killed: what it writes to is not abandoned.
        done = _run(command, pass_fds=(owned.descriptor,))
        if done.returncode != 0:
            # Of pip its last error, without the advice after it.
            lines = map(str.strip, (done.stderr or done.stdout).splitlines())
            why = [line for line in lines if line.startswith("ERROR:")][-1:]
            why = why or [last_line(done.stderr or done.stdout)]
            raise RevisionError(
                f"{what} cannot be installed: {why[0].removeprefix('ERROR: ')}; choose"
                f" a revision whose {' and '.join(locks)} can be installed here"
            )
    return python


def _versions(what: str, python: str) -> dict[str, str]:
    names = [*dict.fromkeys((*code_digest.DISTRIBUTIONS, *environment.PACKAGES))]
    done = _run([python, "-c", _READ_VERSIONS, *names])
    versions: dict[str, str] = json.loads(done.stdout) if done.returncode == 0 else {}
    missing = [name for name in code_digest.DISTRIBUTIONS if name not in versions]
    if missing:
        raise RevisionError(
            f"{what} lacks package {missing[0]!r}"
            f"{': ' + last_line(done.stderr) if done.returncode else ''}; choose a"
            f" revision whose {LOCK_NAME} is complete"
        )
    return versions


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def last_line(text: str) -> str:
    """Returns the last line that is not empty, masked, or says that there is none."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return tokens(lines[-1]) if lines else "no reason was given"


def fingerprint(spec: TrialSpec, topology: machine_state.CpuTopology) -> str:
    """Returns the fingerprint of this machine as the environment record has it."""
    _, chosen, placement = trial_runner.place(spec, topology)
    state = machine_state.read_machine_state([*itertools.chain(*placement.cpusets)])
    env = environment.read_environment(
        placement, os.environ, chosen=chosen, state=state
    )
    return env.fingerprint


# Two revisions of your repository, side by side: the present state, with what is not
# committed, and a baseline are checked out and prepared, and both run from there, so
# neither has caches, data or builds that the other lacks.
#
# What starts the program has to be in both. An interpreter that both share imports what
# is installed in it: both sides would then be one program, and their gate would pass.


def check_start(command: str, start: Path, name: str) -> None:
    """Checks that a revision has the program file that a command names by its path."""
    word = program.split(command)[0]
    if os.sep not in word or "{" in word or (start / word).exists():
        return
    raise RevisionError(
        f"{name} has no {word!r}, which --command starts: git does not keep it, or it"
        " is new; make it in both by --setup, or name one outside of the repository"
    )


def check_imports(
    command: str, start: Path, root: Path, name: str, others: Sequence[Path]
) -> None:
    """Checks that a revision does not import the code of another one.

    What lies beside the script, or with ``-m`` where it starts, is found first.
    """
    words = identity.words_of(command)
    first = {path.resolve().parent for path in identity.scripts_of(words, start)}
    first |= {start.resolve()} if "-m" in words else set()
    own = root.resolve()
    for package, path in _sources(words, start):
        for other in (folder.resolve() for folder in others):
            if path.is_relative_to(own) or not path.is_relative_to(other):
                continue
            if own / path.relative_to(other) in first:
                continue
            what = f"has the package {package!r}" if package else "imports"
            raise RevisionError(
                f"the Python of {name} {what} from {str(path)!r}, so both sides"
                " would run the code that is there; give each an environment of its"
                " own, such as --setup 'python3 -m venv .venv && .venv/bin/pip install"
                " -e .' and --command '.venv/bin/python ...'"
            )


def _sources(words: Sequence[str], start: Path) -> Iterator[tuple[str, Path]]:
    """Yields where the first Python of a command imports from, and a package or ""."""
    if (said := identity.first_python(words, start)) is None:
        return
    for place in said.places:  # an environment may lie in the repository
        if not (said.own and place.startswith(said.own)):
            yield "", Path(place).resolve()
    for package, url in said.urls.items():
        path = Path(unquote(urlsplit(url).path)).resolve()
        yield package, path / "src" if (path / "src").is_dir() else path


HERE: Final = "this tree"
SETUP_SEC: Final = 3600.0
"""Of ``--setup`` in each revision: enough to compile a large project."""
_POINTER: Final = b"version https://git-lfs.github.com/spec/"
_MOST_OF_POINTER: Final = 1024


def source_of(folder: Path, revision: str, runs_dir: Path) -> identity.Repository:
    """Returns the user's repository around a folder."""
    repository = identity.find_repository(folder, [runs_dir])
    if repository is None:
        raise RevisionError(
            f"--baseline {revision!r} is no stored study, and {str(folder)!r} is not in"
            " a git repository, so it has no revisions; go to your repository, or name"
            " a stored study"
        )
    if not repository.commit:
        raise RevisionError(
            f"--baseline {revision!r}: the repository {str(repository.root)!r} has no"
            " commit yet; commit what the change is compared with"
        )
    return repository


@contextlib.contextmanager
def side_by_side(
    program: program.ForeignProgram,
    source: identity.Repository,
    revision: str,
    commit: str,
    note: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    """Checks both revisions out and prepares them, for as long as the block lasts.

    Yields the fields of a request that say so: the program, identified in both, where
    it starts by revision (empty for the present one), and the other revision.
    """
    git = functools.partial(identity.git, source.root)
    record, other = program.record, f"revision {revision!r}"
    # Of one length: that of a path moves the stack, and so the time (Mytkowicz et al.,
    # ASPLOS 2009).
    wanted = (("this", source.commit, HERE), ("base", commit, other))
    with _worktrees(git, *wanted) as folder:
        here, there = folder.path / "this", folder.path / "base"
        sides = ((here, HERE), (there, other))
        _copy_changes(source, here)
        for root, name in sides:
            _check_complete(root, name)
            start = root / record.folder
            if not start.is_dir():
                raise RevisionError(
                    f"{name} has no folder {record.folder!r}, in which --command"
                    " starts; start from the folder of the repository, or choose"
                    " another revision"
                )
            if record.setup:
                note(f"--setup in {name}: {record.setup}")
                works_on = HERE if root == there else ""
                _prepare(record.setup, start, name, folder, works_on=works_on)
        for root, name in sides:
            start = root / record.folder
            check_start(record.command, start, name)
            others = {source.root, here, there} - {root}
            check_imports(record.command, start, root, name, sorted(others))
        name = commit[:SHOWN_DIGITS]
        folders = {"": here / record.folder, name: there / record.folder}
        of_commit = identity.Repository(root=there, commit=commit, changed=())
        code = {
            "": identity.program_identity(record.command, folders[""], source),
            name: identity.program_identity(record.command, folders[name], of_commit),
        }
        yield {
            "program": dataclasses.replace(program, code=code),
            "folders": folders,
            "baseline": SourceTree(revision=name, root=there),
        }


def _copy_changes(source: identity.Repository, root: Path) -> None:
    """Makes a worktree of the present commit the present state."""
    for name in source.changed:
        old, new = source.root / name, root / name
        if old.is_dir() and not old.is_symlink():
            continue  # a submodule, which the worktree has as it was committed
        if new.is_symlink() or new.is_file():
            new.unlink()
        if old.is_symlink() or old.is_file():
            new.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(old, new, follow_symlinks=False)


def _check_complete(root: Path, name: str) -> None:
    """Raises if files are pointers of Git LFS, which is not installed here."""
    attributes = root / ".gitattributes"
    if not attributes.is_file() or "filter=lfs" not in attributes.read_text(
        encoding="utf-8", errors="replace"
    ):
        return
    for path in identity.git(root, "ls-files", "-z").stdout.split("\0"):
        file = root / path
        if (
            file.is_file()
            and file.stat().st_size <= _MOST_OF_POINTER
            and file.read_bytes().startswith(_POINTER)
        ):
            raise RevisionError(
                f"{name} has pointers of Git LFS in place of files, such as {path!r};"
                " install git-lfs, or get them by --setup 'git lfs pull'"
            )


def _prepare(
    setup: str, start: Path, name: str, folder: owned_folders.Owned, *, works_on: str
) -> None:
    more = f" (it works on {works_on})" if works_on else ""
    with subprocess.Popen(
        ["/bin/sh", "-c", setup],
        cwd=start,
        pass_fds=(folder.descriptor,),
        env={k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=SETUP_SEC)
        except BaseException as error:
            # All of it: what the shell has started would keep the pipes open.
            process_tree.kill_group(process.pid)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise RevisionError(
                f"--setup {setup!r} takes more than {SETUP_SEC:g} s in {name}{more},"
                " and was ended; give one that ends"
            ) from error
    if process.returncode != 0:
        raise RevisionError(
            f"--setup {setup!r} fails in {name}{more} with code {process.returncode}:"
            f" {last_line(err or out)}; give one that prepares both, or choose another"
            " revision"
        )
