"""What tells one program of the user's from another: its code digest, and its parts.

The parts are kept in the plan, so that a study which is not resumed says which of them
differs: commit and uncommitted changes, lock files by content, the interpreter and its
packages or the program file itself, the version of the harness.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import itertools
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness.command import placeholders, repository
from harness.machine import containers
from results.records import identity as record_identity
from results.records.limits import MAX_NAME
from results.records.texts import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
_MOST_OF_FILE: Final = 2**22
_MOST_MODULES: Final = 900
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
    image = containers.image_of()
    if image:
        parts["container image"] = image
    if found is None:
        parts["git commit"] = repository.NO_REPOSITORY
        parts |= _named_files(words, folder) | _modules(words, folder, left_out)
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


def _modules(
    words: tuple[str, ...], folder: Path, left_out: Sequence[Path]
) -> dict[str, str]:
    """Returns a digest of each file of code below a program that is in no repository.

    Where there is too much, those beside the files that the command names.
    """
    starts = [(folder / word).parent for word in words if (folder / word).is_file()]
    skipped = {path.resolve() for path in left_out}
    roots = dict.fromkeys(path.resolve() for path in (folder, *starts))
    found: dict[str, str] = {}
    for root in roots:
        files = list(itertools.islice(_code_below(root, skipped), _MOST_LOOKED_AT))
        if len(files) == _MOST_LOOKED_AT:
            files = [path for path in root.iterdir() if root != folder.resolve()]
            found[f"below {printable(str(root))}"[:MAX_NAME]] = "too much to read"
        for path in filter(_is_code, filter(None, files)):
            with contextlib.suppress(OSError):
                name = printable(f"file {os.path.relpath(path, folder)}")[:MAX_NAME]
                is_small = path.stat().st_size <= _MOST_OF_FILE
                found[name] = (
                    repository.digest_of_file(path)
                    if is_small
                    else f"{path.stat().st_size} bytes, {path.stat().st_mtime_ns}"
                )
    return dict(sorted(found.items())[:_MOST_MODULES])


def _code_below(root: Path, skipped: set[Path]) -> Iterator[Path | None]:
    """Yields files of code, and None for what else was looked at."""
    for place, folders, names in os.walk(root):
        here = Path(place)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith((".", "__pycache__"))
            and name not in {"node_modules", "site-packages"}
            and (here / name).resolve() not in skipped
            and not (here / name / "pyvenv.cfg").exists()
        )
        yield from (None for _ in folders)
        for name in sorted(names):
            yield here / name if _is_code(here / name) else None


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
