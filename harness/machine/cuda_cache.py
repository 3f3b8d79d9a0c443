"""Where the driver keeps what it compiles for a GPU that TensorFlow has no code for.

TensorFlow's wheel has machine code for some GPUs, and for newer ones PTX, which the
driver compiles when a kernel is first used: minutes in all. It keeps the result in a
folder, so that is needed once per driver, TensorFlow and model of GPU. What has been
compiled completely is noted there (``note``), which ``doctor`` reads.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from results.errors import UnavailableRecordError
from results.store import untrusted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PATH: Final = "CUDA_CACHE_PATH"
SIZE: Final = "CUDA_CACHE_MAXSIZE"
DISABLE: Final = "CUDA_CACHE_DISABLE"
FOLDER: Final = ".nv/ComputeCache"
"""In the user's home: that which CUDA takes by itself."""
LARGEST: Final = 2**32
"""The most that CUDA takes; beyond its default of 1 GiB it drops what is oldest."""
_NOTE: Final = "compiled_once.json"
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)(a?)")

Code = Literal["native", "compiled", "none"]


def variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the variables that let a process of CUDA find, and keep, compiled code.

    What the user has set stays. The folder is that which CUDA takes by itself, so that
    programs which know nothing of this find it, too.
    """
    default = Path(environ.get("HOME") or Path.home()) / FOLDER
    return {
        PATH: environ.get(PATH) or str(default),
        SIZE: environ.get(SIZE) or str(LARGEST),
    }


def is_disabled(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether every process compiles again."""
    return environ.get(DISABLE, "0") not in ("", "0")


def code_for(capability: tuple[int, int], architectures: Sequence[str]) -> Code:
    """What of a build runs on a GPU: code for it, PTX to compile, or nothing."""
    found: Code = "none"
    for text in architectures:
        match = _ARCHITECTURE.fullmatch(text)
        if match is None:
            continue
        kind, of = match[1], (int(match[2]), int(match[3]))
        if kind == "sm":
            # Code of a minor version runs on later ones of the same major one.
            is_later = of[0] == capability[0] and of[1] <= capability[1]
            if capability == of or (is_later and not match[4]):
                return "native"
        elif of <= capability and not match[4]:
            found = "compiled"
    return found


def key(capability: tuple[int, int], driver: str | None, tensorflow: str) -> str:
    """Names what compiled code depends on."""
    return f"{capability[0]}.{capability[1]}, driver {driver}, TensorFlow {tensorflow}"


def noted(folder: Path) -> tuple[str, ...]:
    """Returns the keys of what was compiled completely; none where nothing is noted."""
    try:
        found = untrusted.parsed(untrusted.read_text(folder / _NOTE) or "[]")
    except (UnavailableRecordError, ValueError):
        return ()
    return tuple(map(str, found)) if isinstance(found, list) else ()


def note(folder: Path, compiled: str) -> None:
    """Notes that what a key names has been compiled."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(sorted({*noted(folder), compiled}), indent=1)
    (folder / _NOTE).write_text(text + "\n", encoding="utf-8")


def num_bytes(folder: Path) -> int:
    """Returns the size of what is kept."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # moved by a process that compiles
            total += path.stat().st_size
    return total
