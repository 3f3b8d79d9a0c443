"""Which NCCL this process has loaded: not always that of the installed wheel."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.client.scaling_client import RankFile

_LIBRARY = re.compile(r"\s(/\S*/libnccl\.so\S*)$", re.MULTILINE)
_NEW_CODES = 10_000  # from 2.9 on, a number has two digits more for the major version


def loaded_version(maps: Path = Path("/proc/self/maps")) -> str | None:
    """Returns the version of the library in memory; None where there is none."""
    try:
        found = _LIBRARY.search(maps.read_text(encoding="utf-8", errors="replace"))
        if found is None:
            return None
        code = ctypes.c_int()
        if ctypes.CDLL(found[1]).ncclGetVersion(ctypes.byref(code)):
            return None
    except (OSError, AttributeError):
        return None
    return version_text(code.value)


def version_text(code: int) -> str:
    """Returns a version as people write it: 2.25.1 for 22501, 2.8.4 for 2804."""
    scale = _NEW_CODES if code >= _NEW_CODES else 1_000
    return f"{code // scale}.{code % scale // 100}.{code % 100}"


def write(writer: RankFile) -> None:
    """Records the version, if this process has loaded one."""
    version = loaded_version()
    if version is not None:
        writer.write("nccl", version=version)
