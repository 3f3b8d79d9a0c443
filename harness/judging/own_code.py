"""Whether each revision of the user's repository would run its own code.

What starts the program has to be in both. And an interpreter that both share imports
what is installed in it: the user's working tree, or what ``--setup`` installed last.
Both sides would then be one program, and their gate would pass.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from harness.command import identity, placeholders
from harness.errors import RevisionError
from results.store import untrusted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
    word = placeholders.split(command)[0]
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
    words = placeholders.split(command)
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
