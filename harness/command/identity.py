"""What tells one program of the user's from another: its code digest, and its parts.

The parts are kept in the plan, so that a study which is not resumed says which of them
differs: commit and uncommitted changes, lock files by content, the interpreter and its
packages or the program file itself, the version of the harness.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from harness.errors import PlanError
from harness.machine import environment
from results.records import identity as record_identity
from results.records.record_base import MAX_NAME
from results.records.texts import printable
from results.store import untrusted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from harness.machine.owned_folders import Owned


MOST_CHANGED: Final = 500  # Files that are not committed and are read for an identity.
_TIMEOUT_SEC: Final = 60.0
NO_REPOSITORY: Final = "no git repository"


def git(
    folder: Path, *arguments: str, holds: Owned | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs git in a folder of the user's repository; see ``machine.git``."""
    try:
        return environment.run_git(
            folder, *arguments, timeout_sec=_TIMEOUT_SEC, holds=holds
        )
    except FileNotFoundError as error:
        raise PlanError(
            "git is not installed, and identifies the program of --command; install it"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise PlanError(
            f"git {arguments[0]} takes more than {_TIMEOUT_SEC:g} s in"
            f" {str(folder)!r}; look at the repository"
        ) from error


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Repository:
    root: Path  # Its folder.
    commit: str  # Its commit; empty before the first.
    # Paths that differ from the commit, sorted; of untracked files, those that git does
    # not ignore, without byte code and studies.
    changed: tuple[str, ...]
    untracked: frozenset[str] = frozenset()  # Those of them that git does not know.

    def changes(self) -> dict[str, str]:
        """Returns a digest of each file that differs from the commit, by path."""
        return {
            name: _content(self.root / name, is_known=name not in self.untracked)
            for name in self.changed
        }


def find_repository(folder: Path, left_out: Sequence[Path] = ()) -> Repository | None:
    answer = git(folder, "rev-parse", "--show-toplevel")
    if answer.returncode != 0:
        why = answer.stderr.strip().partition("\n")[0]
        if "not a git repository" not in why:
            raise PlanError(
                f"git does not read the repository of {str(folder)!r}: {why[:200]};"
                " repair it, or let git trust another owner: git config --global --add"
                " safe.directory PATH"
            )
        return None
    root = Path(answer.stdout.strip()).resolve()
    commit = git(root, "rev-parse", "--verify", "--quiet", "HEAD").stdout.strip()
    status = git(root, "status", "--porcelain=v1", "-z", "--untracked-files=all")
    if status.returncode != 0:
        raise PlanError(
            f"git status fails in {str(root)!r}: {status.stderr.strip()[:200]}; repair"
            " the repository, which identifies the program of --command"
        )
    changed, untracked = [], set()
    entries = iter(status.stdout.split("\0"))
    for entry in entries:
        if entry:
            changed.append(entry[3:])
            if entry.startswith("??"):
                untracked.add(entry[3:])
            if entry[0] in "RC":  # the next one is the old name
                changed.append(next(entries, ""))
    resolved = [path.resolve() for path in left_out]
    skipped = [path for path in resolved if not folder.resolve().is_relative_to(path)]
    changed = [
        name
        for name in changed
        if not name.endswith(".pyc")
        and not any((root / name).is_relative_to(path) for path in skipped)
    ]
    if len(changed) > MOST_CHANGED:
        raise PlanError(
            f"{len(changed)} files of {str(root)!r} are not committed, such as"
            f" {changed[0]!r}, and they identify the program of --command; at most"
            f" {MOST_CHANGED} can: add what is no source to .gitignore"
        )
    return Repository(
        root=root,
        commit=commit,
        changed=tuple(sorted(changed)),
        untracked=frozenset(untracked.intersection(changed)),
    )


def _content(path: Path, *, is_known: bool) -> str:
    if path.is_symlink():
        return f"link {printable(str(path.readlink()))}"
    if path.is_dir():
        inner = find_repository(path) if is_known else None
        if inner is None or inner.root != path.resolve():
            return "folder"  # of another repository, which this one does not know
        state = " ".join((inner.commit, *map(str, inner.changes().items())))
        return f"submodule {_blake2b(state.encode()).hexdigest()}"
    try:
        return digest_of_file(path) + " x" * os.access(path, os.X_OK)
    except (FileNotFoundError, NotADirectoryError):
        return "removed"
    except PermissionError:
        return "not readable"  # nor by the program, which is of the same user


_blake2b = functools.partial(hashlib.blake2b, digest_size=8)


def digest_of_file(path: Path) -> str:
    hasher = _blake2b()
    try:
        with path.open("rb") as file:
            while chunk := file.read(2**20):
                hasher.update(chunk)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        raise
    except OSError as error:
        raise PlanError(
            f"cannot read {str(path)!r}, which identifies the program of --command:"
            f" {error.strerror}; repeat the command when it can be read"
        ) from error
    return hasher.hexdigest()


LOCKS: Final = (
    *("uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock", "pixi.lock"),
    *("conda-lock.yml", "environment.yml", "requirements.txt", "requirements.lock"),
    *("Cargo.lock", "CMakePresets.json"),
)
"""Files that say which versions are installed, in the folder of the program or its
repository."""
_CODE: Final = re.compile(
    r".*\.(?:py[xdi]?|pxd|so|c|cc|cpp|cxx|cuh?|h|hh|hpp|f|f90|jl|rs|go|java|js|ts|lua|r"
    r"|sh)",
    re.IGNORECASE,
)
"""How the names of files end that say what a program does; others are data."""
_SETTINGS: Final = frozenset((".toml", ".yaml", ".yml", ".cfg", ".ini"))
"""Others that git may tell from the output of a program."""
_DATA: Final = " (data)"
_MOST_LOOKED_AT: Final = 5_000
"""Files below a folder outside of git; of more, its first levels are read."""
_MOST_OF_FILE: Final = 2**22
"""Bytes of a file outside of git; a larger one counts by its size and time."""
_MOST_MODULES: Final = 900  # Files that a plan names; others have one digest.
_QUESTION: Final = """
import importlib.metadata, json, os, sys
own = os.path.join(sys.prefix, "") if sys.prefix != sys.base_prefix else ""
places = [of for of in sys.path if os.path.exists(of)]  # others mark import hooks
found, urls = list(importlib.metadata.distributions()), {}
for of in found:
    try:
        urls[of.metadata["Name"]] = json.loads(of.read_text("direct_url.json"))["url"]
    except Exception:
        pass
names = sorted({f"{of.metadata['Name']}=={of.version}".lower() for of in found})
print(json.dumps([sys.version.split()[0], own, places, names, urls]))
"""
_PYTHON: Final = re.compile(r"python[\d.]*[a-z]?")
INTERPRETER_SEC: Final = 60.0
_DIGITS: Final = 16


def program_identity(
    command: str,
    folder: Path,
    source: Repository | None = None,
    left_out: Sequence[Path] = (),
) -> dict[str, str]:
    repository = source or find_repository(folder, left_out)
    words = words_of(command)
    named = [path for word in words if (path := folder / word).is_file()]
    parts = {"harness": _harness_version()}
    if image := environment.image_of():
        parts["container image"] = image
    if repository is None:
        parts["git commit"] = NO_REPOSITORY
        parts |= {f"file {path.name}": digest_of_file(path) for path in named}
        scripts = scripts_of(words, folder)
        root, places = folder, [folder, *(path.parent for path in scripts)]
    else:
        parts["git commit"] = repository.commit or "before the first commit"
        in_command = {(folder / word).resolve() for word in words}
        for name, digested in repository.changes().items():
            is_code = _is_code(Path(name)) or Path(name).suffix in _SETTINGS
            is_data = name in repository.untracked and not is_code
            is_data = is_data and (repository.root / name).resolve() not in in_command
            parts[key_of_change(name) + _DATA * is_data] = digested
        top = git(folder, "rev-parse", "--show-toplevel")
        root = repository.root if top.returncode else Path(top.stdout.strip())
        places = [
            path.parent
            for path in filter(_is_code, named)
            if git(folder, "check-ignore", "-q", "--", str(path)).returncode != 1
        ]
    parts |= _files_below(places, folder, {path.resolve() for path in left_out})
    for where in dict.fromkeys((root, folder)):
        beside = "" if where == root else " beside the program"
        for path in filter(Path.is_file, (where / name for name in LOCKS)):
            parts[path.name + beside] = digest_of_file(path)
    return parts | _interpreter(words, folder)


def words_of(command: str) -> tuple[str, ...]:
    """Returns the words of a command, which was checked, and those within sh -c."""
    words = shlex.split(command)
    return (*words, *(inner for word in words if " " in word for inner in word.split()))


def scripts_of(words: Sequence[str], folder: Path) -> list[Path]:
    """Returns the files that are words of a command, and no Python themselves."""
    files = (folder / word for word in words)
    return [x for x in files if x.is_file() and not _PYTHON.fullmatch(x.name)]


def key_of_change(name: str) -> str:
    """Returns the name of the part that a file is which differs from the commit."""
    return printable(f"uncommitted {name}")[: MAX_NAME - len(_DATA)]


def digest(parts: Mapping[str, str]) -> str:
    code = {name: text for name, text in parts.items() if not name.endswith(_DATA)}
    return record_identity.digest(code)[:_DIGITS]


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Returns the parts that differ, in words; data that has come or gone is none."""
    return [
        f"{name} {_short(old.get(name, 'none'))!r} / {_short(new.get(name, 'none'))!r}"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
        and not (name.endswith(_DATA) and (name not in old or name not in new))
    ]


def _short(text: str) -> str:
    return text[:12] if len(text) == 40 and text.isalnum() else text  # noqa: PLR2004


@functools.cache
def _harness_version() -> str:
    try:
        return importlib.metadata.version("replicator-harness")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _is_code(path: Path) -> bool:
    return bool(_CODE.fullmatch(path.name)) or path.name in LOCKS


def _files_below(
    places: Sequence[Path], folder: Path, left_out: Collection[Path]
) -> dict[str, str]:
    """Returns a digest of each file of code below folders, which git does not know."""
    files: dict[str, str] = {}
    for root in dict.fromkeys(path.resolve() for path in places):
        paths, is_all = _code_below(root, left_out)
        if not is_all:
            files[f"below {printable(str(root))}"[:MAX_NAME]] = "too much to read"
        for path in sorted(paths):
            with contextlib.suppress(OSError):
                facts = path.stat()
                digested = f"{facts.st_size} bytes, {facts.st_mtime_ns}"
                if facts.st_size <= _MOST_OF_FILE:
                    digested = digest_of_file(path)
                name = printable(f"file {os.path.relpath(path, folder)}")[:MAX_NAME]
                files[name] = digested
    shown = dict(sorted(files.items())[:_MOST_MODULES])
    others = {name: text for name, text in files.items() if name not in shown}
    return shown | ({f"{len(others)} other files": digest(others)} if others else {})


def _code_below(root: Path, left_out: Collection[Path]) -> tuple[list[Path], bool]:
    """Returns the code below a folder, level by level, and whether this is all."""
    files: list[Path] = []
    level, num_entries = [root], 0
    while level:
        entries: list[os.DirEntry[str]] = []
        for folder in level:
            with contextlib.suppress(OSError), os.scandir(folder) as listed:
                entries += listed
        num_entries += len(entries)
        if num_entries > _MOST_LOOKED_AT and level != [root]:
            return files, False
        level = []
        for entry, path in zip(entries, map(Path, entries), strict=True):
            if not entry.is_dir(follow_symlinks=False):
                files += [path] * _is_code(path)
            elif path not in left_out and not _is_environment(path):
                level.append(path)
    return files, True


def _is_environment(folder: Path) -> bool:
    """Whether a folder has installed packages, or is a cache."""
    is_named = folder.name.startswith((".", "__pycache__"))
    is_named = is_named or folder.name in {"node_modules", "site-packages"}
    return is_named or (folder / "pyvenv.cfg").exists()


def _interpreter(words: Sequence[str], folder: Path) -> dict[str, str]:
    """Returns the interpreter and its packages, and what starts it by content."""
    path = _which(words[0], folder)
    if path is None:
        return {"program": "not found"}
    started = {f"program {path.name}": digest_of_file(path)}
    if (said := first_python(words, folder)) is None:
        return started
    digested = _blake2b(" ".join(said.packages).encode()).hexdigest()
    packages = f"{len(said.packages)} ({digested})"
    parts = {"python": said.version, "packages": packages}
    return parts if python_of(path) else started | parts


def _which(word: str, folder: Path) -> Path | None:
    path = shutil.which(str(folder / word) if os.sep in word else word)
    return None if path is None else Path(path)


def first_python(words: Sequence[str], folder: Path) -> Interpreter | None:
    """Asks the first Python of a command, which may stand behind mpirun or env."""
    pythons = (python_of(path) for word in words if (path := _which(word, folder)))
    return ask(next(filter(None, pythons), ""), folder)


class Interpreter(NamedTuple):
    """What a Python says of itself."""

    version: str
    own: str  # The folder of its environment, with a slash; empty without one.
    places: Sequence[str]  # From which it imports.
    packages: Sequence[str]  # With their versions.
    urls: Mapping[str, str]  # Of packages that were installed from one, by name.


_asked: dict[tuple[str, Path, str], tuple[object, Interpreter]] = {}


def ask(python: str, folder: Path) -> Interpreter | None:
    """Asks a Python that starts in a folder; None if it does not answer.

    That takes 0.15 s, so it is asked again where it or what is installed has changed.
    """
    key = python, folder, os.environ.get("PYTHONPATH", "")
    if key in _asked:
        state, said = _asked[key]
        if state == environment.state_of((python, *said.places)):
            return said
    try:
        done = subprocess.run(
            [python, "-c", _QUESTION],
            capture_output=True,
            text=True,
            check=True,
            cwd=folder,
            timeout=INTERPRETER_SEC,
        )
        said = Interpreter(*untrusted.parsed(done.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        return None
    _asked[key] = environment.state_of((python, *said.places)), said
    return said


def python_of(path: Path) -> str:
    """Returns the Python that a file is, or that runs it; empty if it is neither."""
    if _PYTHON.fullmatch(path.name):
        return str(path)
    try:
        with path.open("rb") as file:
            first = file.readline(500).decode("utf-8", errors="replace")
    except OSError:
        return ""
    words = first.removeprefix("#!").split()
    if not first.startswith("#!") or not words:
        return ""
    program = words[-1] if Path(words[0]).name == "env" else words[0]
    return (shutil.which(program) or "") if "python" in Path(program).name else ""
