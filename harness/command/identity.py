"""What tells one program of the user's from another: its code digest, and its parts.

The parts are kept in the plan, so that a study which is not resumed says which of them
differs: commit and uncommitted changes, lock files by content, the interpreter and its
packages or the program file itself, the version of the harness.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.command import placeholders, repository
from harness.machine import environment
from results.records import identity as record_identity
from results.records.limits import MAX_NAME
from results.records.texts import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOCKS: Final = (
    "uv.lock",
    "poetry.lock",
    "pdm.lock",
    "Pipfile.lock",
    "pixi.lock",
    "conda-lock.yml",
    "environment.yml",
    "requirements.txt",
    "requirements.lock",
    "Cargo.lock",
    "CMakePresets.json",
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
_MOST_MODULES: Final = 900
"""Files that a plan names; others have one digest."""
_HARNESS: Final = "replicator-harness"
_LIST_PACKAGES: Final = """
import hashlib, importlib.metadata, sys
found = importlib.metadata.distributions()
names = sorted({f"{of.metadata['Name']}=={of.version}".lower() for of in found})
digest = hashlib.blake2b(" ".join(names).encode(), digest_size=8).hexdigest()
print(sys.version.split()[0], digest, len(names))
"""
INTERPRETER_SEC: Final = 60.0
_DIGITS: Final = 16


def of_program(
    command: str,
    folder: Path,
    source: repository.Repository | None = None,
    left_out: Sequence[Path] = (),
) -> dict[str, str]:
    """Returns the parts of the identity of a program, by name."""
    found = source or repository.find(folder, left_out)
    words = placeholders.split(command)
    parts = {"harness": _harness_version()}
    image = environment.image_of()
    if image:
        parts["container image"] = image
    if found is None:
        parts["git commit"] = repository.NO_REPOSITORY
        parts |= _named_files(words, folder)
        root = folder
    else:
        parts["git commit"] = found.commit or "before the first commit"
        named = {(folder / word).resolve() for word in words}
        for name, digested in found.changes().items():
            is_code = _is_code(Path(name)) or Path(name).suffix in _SETTINGS
            is_data = name in found.untracked and not is_code
            is_data = is_data and (found.root / name).resolve() not in named
            parts[key_of_change(name) + _DATA * is_data] = digested
        root = _root_of(folder) or found.root
    parts |= _files_below(_places(words, folder, found), folder, left_out)
    parts |= _locks(folder, root)
    return parts | _interpreter(words[0], folder)


def key_of_change(name: str) -> str:
    """Returns the name of the part that a file is which differs from the commit."""
    return printable(f"uncommitted {name}")[: MAX_NAME - len(_DATA)]


def digest(parts: Mapping[str, str]) -> str:
    """Returns the code digest of a program."""
    code = {name: text for name, text in parts.items() if not name.endswith(_DATA)}
    return record_identity.digest(code)[:_DIGITS]


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Returns the parts that differ, in words; data that has come or gone is none."""
    names = dict.fromkeys([*old, *new])
    names = {
        name: None
        for name in names
        if not name.endswith(_DATA) or (name in old and name in new)
    }
    return [
        f"{name} {_short(old.get(name, 'none'))!r} / {_short(new.get(name, 'none'))!r}"
        for name in names
        if old.get(name) != new.get(name)
    ]


def _short(text: str) -> str:
    return text[:12] if len(text) == 40 and text.isalnum() else text  # noqa: PLR2004


def _root_of(folder: Path) -> Path | None:
    found = repository.git(folder, "rev-parse", "--show-toplevel")
    return Path(found.stdout.strip()) if found.returncode == 0 else None


@functools.cache
def _harness_version() -> str:
    try:
        return importlib.metadata.version(_HARNESS)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _locks(folder: Path, root: Path) -> dict[str, str]:
    found = {}
    for where in dict.fromkeys((root, folder)):
        for name in LOCKS:
            path = where / name
            if path.is_file():
                key = name if where == root else f"{name} beside the program"
                found[key] = repository.digest_of_file(path)
    return found


def _named_files(words: tuple[str, ...], folder: Path) -> dict[str, str]:
    """Returns digests of the files that a command names, where there is no commit."""
    found = {}
    for word in words:
        path = folder / word
        if path.is_file():
            found[f"file {path.name}"] = repository.digest_of_file(path)
    return found


def _is_code(path: Path) -> bool:
    return bool(_CODE.fullmatch(path.name)) or path.name in LOCKS


def _places(
    words: tuple[str, ...], folder: Path, found: repository.Repository | None
) -> list[Path]:
    """Returns the folders of a program whose files git does not know."""
    named = [path for word in words if (path := folder / word).is_file()]
    if found is None:
        return [folder, *(path.parent for path in named if not _is_python(path))]
    return [
        path.parent
        for path in filter(_is_code, named)
        if repository.git(folder, "check-ignore", "-q", "--", str(path)).returncode != 1
    ]


def _files_below(
    places: Sequence[Path], folder: Path, left_out: Sequence[Path]
) -> dict[str, str]:
    """Returns a digest of each file of code below folders, which git does not know."""
    skipped = {path.resolve() for path in left_out}
    found: dict[str, str] = {}
    for root in dict.fromkeys(path.resolve() for path in places):
        paths, is_all = _code_below(root, skipped)
        if not is_all:
            found[f"below {printable(str(root))}"[:MAX_NAME]] = "too much to read"
        for path in paths:
            with contextlib.suppress(OSError):
                name = printable(f"file {os.path.relpath(path, folder)}")[:MAX_NAME]
                facts = path.stat()
                found[name] = (
                    repository.digest_of_file(path)
                    if facts.st_size <= _MOST_OF_FILE
                    else f"{facts.st_size} bytes, {facts.st_mtime_ns}"
                )
    shown = dict(sorted(found.items())[:_MOST_MODULES])
    others = {name: text for name, text in found.items() if name not in shown}
    return shown | ({f"{len(others)} other files": digest(others)} if others else {})


def _code_below(root: Path, skipped: set[Path]) -> tuple[list[Path], bool]:
    """Returns the files of code below a folder, and whether these are all.

    Levels are read as a whole: the folder itself, and others while they are few files.
    """
    found: list[Path] = []
    level, num_files = [root], 0
    while level:
        entries: list[os.DirEntry[str]] = []
        for folder in level:
            with contextlib.suppress(OSError), os.scandir(folder) as listed:
                entries += listed
        num_files += len(entries)
        if num_files > _MOST_LOOKED_AT and level != [root]:
            return found, False
        paths = sorted(Path(entry) for entry in entries)
        folders = {Path(of) for of in entries if of.is_dir(follow_symlinks=False)}
        found += [path for path in paths if path not in folders and _is_code(path)]
        level = [path for path in paths if path in folders and _may_be_code(path)]
        level = [path for path in level if path not in skipped]
    return found, True


def _may_be_code(folder: Path) -> bool:
    """Whether a folder may have code of a program: no environment, and no cache."""
    return not (
        folder.name.startswith((".", "__pycache__"))
        or folder.name in {"node_modules", "site-packages"}
        or (folder / "pyvenv.cfg").exists()
    )


def _interpreter(word: str, folder: Path) -> dict[str, str]:
    """Returns the interpreter and its packages, or the program file by content."""
    name = str(folder / word) if os.sep in word else word
    path = shutil.which(name)
    if path is None:
        return {"program": "not found"}
    python = python_of(Path(path))
    if python:
        try:
            done = subprocess.run(
                [python, "-c", _LIST_PACKAGES],
                capture_output=True,
                text=True,
                check=True,
                cwd=folder,
                timeout=INTERPRETER_SEC,
            )
            version, packages, number = done.stdout.split()
        except (OSError, subprocess.SubprocessError, ValueError):
            pass
        else:
            return {"python": version, "packages": f"{number} ({packages})"}
    return {f"program {Path(path).name}": repository.digest_of_file(Path(path))}


def _is_python(path: Path) -> bool:
    return python_of(path) == str(path)


def python_of(path: Path) -> str:
    """Returns the Python that a file is, or that runs it; empty if it is neither."""
    if path.name.startswith("python"):
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
