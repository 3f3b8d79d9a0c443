"""Two revisions of the user's repository, side by side, each prepared once.

The present state, with what is not committed, and a baseline are checked out into git
worktrees in a temporary folder, and both run from there: neither has caches, data or
builds that the other lacks. The user's own working tree is only read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from harness.command import identity, program
from harness.errors import RevisionError
from harness.judging import revisions
from harness.judging.revisions import SHOWN_DIGITS, last_line, uninterrupted
from harness.machine import owned_folders
from harness.sources.code_digest import SourceTree
from results.store import untrusted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from harness.command.identity import Repository
    from harness.command.program import ForeignProgram


# What starts the program has to be in both. And an interpreter that both share imports
# what is installed in it: the user's working tree, or what ``--setup`` installed last.
# Both sides would then be one program, and their gate would pass.

_LIST_SOURCES: Final = """
import importlib.metadata, json, os, sys
own = os.path.join(sys.prefix, "")  # an environment may lie in the repository
is_own = sys.prefix != sys.base_prefix
places = filter(os.path.exists, sys.path)  # others are marks of import hooks
found = [[of, ""] for of in places if not (is_own and of.startswith(own))]
for of in importlib.metadata.distributions():
    text = of.read_text("direct_url.json")
    if text:
        found.append([json.loads(text).get("url", ""), of.metadata["Name"]])
print(json.dumps(found))
"""


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
    words = program.split(command)
    first = {
        (start / word).resolve().parent for word in words if (start / word).is_file()
    }
    first |= {start.resolve()} if "-m" in words else set()
    own = root.resolve()
    for package, place in _sources(words, start):
        for other in (of.resolve() for of in others):
            if place.is_relative_to(own) or not place.is_relative_to(other):
                continue
            if own / place.relative_to(other) in first:
                continue
            what = f"has the package {package!r}" if package else "imports"
            raise RevisionError(
                f"the Python of {name} {what} from {str(place)!r}, so both sides"
                " would run the code that is there; give each an environment of its"
                " own, such as --setup 'python3 -m venv .venv && .venv/bin/pip install"
                " -e .' and --command '.venv/bin/python ...'"
            )


def _sources(words: Sequence[str], start: Path) -> Iterator[tuple[str, Path]]:
    """Yields where the first Python of a command imports from, beside its own folder.

    With the name of the package that is installed from there, or an empty one.
    """
    for word in words:
        found = shutil.which(str(start / word) if os.sep in word else word)
        python = identity.python_of(Path(found)) if found else ""
        if python:
            break
    else:
        return
    try:
        done = subprocess.run(
            [python, "-c", _LIST_SOURCES],
            capture_output=True,
            text=True,
            check=True,
            cwd=start,
            timeout=identity.INTERPRETER_SEC,
        )
        listed = untrusted.parsed(done.stdout)
    except (OSError, subprocess.SubprocessError, untrusted.DamagedFileError):
        return
    for place, package in listed:
        path = Path(unquote(urlsplit(place).path) if package else place).resolve()
        if package and (path / "src").is_dir():
            path /= "src"
        yield package, path


HERE: Final = "this tree"
SETUP_SEC: Final = 3600.0
"""Of ``--setup`` in each revision: enough to compile a large project."""
_POINTER: Final = b"version https://git-lfs.github.com/spec/"
_MOST_OF_POINTER: Final = 1024


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sides:
    """Both revisions, ready to run."""

    program: ForeignProgram  # The program, identified in both.
    folders: dict[str, Path]  # Where it starts, by revision; empty for the present one.
    baseline: SourceTree  # The other revision.


def source_of(folder: Path, revision: str, runs_dir: Path) -> Repository:
    """Returns the user's repository around a folder."""
    found = identity.find_repository(folder, [runs_dir])
    if found is None:
        raise RevisionError(
            f"--baseline {revision!r} is no stored study, and {str(folder)!r} is not in"
            " a git repository, so it has no revisions; go to your repository, or name"
            " a stored study"
        )
    if not found.commit:
        raise RevisionError(
            f"--baseline {revision!r}: the repository {str(found.root)!r} has no commit"
            " yet; commit what the change is compared with"
        )
    return found


def find_commit(source: Repository, revision: str) -> str:
    """Returns the full id of the commit that a revision names."""
    git = functools.partial(identity.git, source.root)
    return revisions.named_commit(git, source.root, revision)


@contextlib.contextmanager
def side_by_side(
    program: ForeignProgram,
    source: Repository,
    revision: str,
    commit: str,
    note: Callable[[str], None],
) -> Iterator[Sides]:
    """Checks both revisions out and prepares them, for as long as the block lasts."""
    git = functools.partial(identity.git, source.root)
    revisions.remove_abandoned_worktrees(git)
    with owned_folders.made(owned_folders.GATE) as folder:
        # Of one length: that of a path moves the stack, and so the time (Mytkowicz et
        # al., ASPLOS 2009).
        here, there = folder.path / "this", folder.path / "base"
        record = program.record
        try:
            sides = ((here, HERE), (there, f"revision {revision!r}"))
            for (root, name), of in zip(sides, (source.commit, commit), strict=True):
                revisions.check_out(identity.git, source.root, root, of, name, folder)
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
                    other = HERE if root == there else ""
                    _prepare(record.setup, start, name, folder, works_on=other)
            for root, name in sides:
                start = root / record.folder
                check_start(record.command, start, name)
                others = {source.root, here, there} - {root}
                check_imports(record.command, start, root, name, sorted(others))
            name = commit[:SHOWN_DIGITS]
            folders = {"": here / record.folder, name: there / record.folder}
            of_commit = identity.Repository(root=there, commit=commit, changed=())
            code = {
                "": identity.of_program(record.command, folders[""], source),
                name: identity.of_program(record.command, folders[name], of_commit),
            }
            yield Sides(
                program=dataclasses.replace(program, code=code),
                folders=folders,
                baseline=SourceTree(revision=name, root=there),
            )
        finally:
            with uninterrupted():
                for root in (here, there):
                    revisions.remove_worktree(git, root)


def _copy_changes(source: Repository, root: Path) -> None:
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
            with contextlib.suppress(ProcessLookupError):  # it has left the group
                os.killpg(process.pid, signal.SIGKILL)
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
