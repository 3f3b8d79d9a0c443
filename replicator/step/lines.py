"""The line of a user's code that made an operation of a traced step."""

from __future__ import annotations

import functools
import linecache
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# Files whose lines are not those of a user: of this package, of Python, and of these.
_HERE = Path(__file__).resolve().parents[1]
_PYTHON = Path(sysconfig.get_paths()["stdlib"])
_FRAMEWORKS = frozenset({"keras", "tensorflow", "tf_keras"})


def line_of(stack: Iterable[Any] | None) -> str:
    """The innermost line of a stack outside the libraries that this one builds on."""
    for frame in reversed(list(stack or ())):
        if not _is_library(frame.filename):
            text = linecache.getline(frame.filename, frame.lineno).strip()
            return f"{frame.filename}:{frame.lineno}: {text}"
    return ""


def shown(lines: Sequence[str]) -> str:
    """Lines as part of a message; empty without any."""
    found = [line for line in lines if line]
    return f" at {', '.join(found)}" if found else ""


@functools.cache  # a step has thousands of frames, of few files
def _is_library(name: str) -> bool:
    path = Path(name)
    if path.name.startswith("<") or path.is_relative_to(_HERE):
        return True
    parts = path.parts
    for folder in ("site-packages", "dist-packages"):
        if folder in parts:
            return parts[parts.index(folder) + 1] in _FRAMEWORKS
    return path.is_relative_to(_PYTHON)
