"""The Python files of the installed TensorFlow, as one text that is always the same.

The lock fixes the wheel by its hash, and the wheel lists the hash of each of its files.
Generated files are left out. So is the one that differs between wheels of a version:
``build_info.py``, which says what a wheel was built for. All others are the same bytes
in the wheels of TensorFlow 2.21.0 for CPython 3.10, 3.11 and 3.13, for x86 and ARM.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from collections.abc import Iterable

PACKAGE = "tensorflow"
NAME = "tensorflow_source"
CHUNK_SIZE = 1024
"""Bytes of an example: files are cut into pieces of this length, from their start."""

NUM_TOKENS = 256
"""Values of a byte, which is a token."""

_ONE_IN = 20  # files are held out


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class File:
    path: str  # Relative to the folder of installed packages, with slashes.
    content: bytes  # Its bytes.
    is_held_out: bool  # In the held-out split: about one file in 20, by its content.

    @property
    def chunks(self) -> list[bytes]:
        """Its pieces of ``CHUNK_SIZE`` bytes; what remains at its end is left out."""
        starts = range(0, len(self.content) - CHUNK_SIZE + 1, CHUNK_SIZE)
        return [self.content[start : start + CHUNK_SIZE] for start in starts]


def read() -> tuple[str, list[File]]:
    """Returns the version of the installed TensorFlow, and the files that are text.

    Each content is there once; they are sorted by path.
    """
    import importlib.metadata  # the planner needs none

    try:
        distribution = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError as error:
        raise ValueError(
            f"the text is that of the package {PACKAGE!r}, which is not installed "
            "under this name: install it, as make setup does"
        ) from error
    version = distribution.version
    parts = version.split(".")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):  # noqa: PLR2004
        raise ValueError(
            f"the text is that of a release of {PACKAGE}, whose wheels are the same "
            f"everywhere, but {version} is installed: install one such as 2.21.0"
        )
    if not distribution.files:
        raise ValueError(
            f"{PACKAGE} {version} is installed without a list of its files (RECORD): "
            "install it from a wheel, as make setup does"
        )
    files: dict[bytes, File] = {}
    # By code points: the order of a file system, or of a language, is another one.
    for path in sorted(distribution.files, key=lambda path: path.as_posix()):
        if not is_text(path.as_posix()):
            continue
        content = path.read_binary()
        digest = hashlib.sha256(content).digest()
        # As the list of files has it.
        encoded = base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")
        if path.hash is None or path.hash.value != encoded:
            raise ValueError(
                f"{path.as_posix()!r} is not the file of the wheel of {PACKAGE} "
                f"{version}, which everybody else reads: install it again"
            )
        is_held_out = int.from_bytes(digest[:8], "big") % _ONE_IN == 0
        file = File(path=path.as_posix(), content=content, is_held_out=is_held_out)
        files.setdefault(digest, file)
    return version, list(files.values())


def is_text(path: str) -> bool:
    """Returns whether a file of the package, by its path, is part of the text."""
    name = path.rpartition("/")[2]
    return (
        path.startswith(f"{PACKAGE}/")
        and not path.startswith(f"{PACKAGE}/_api/")
        and name.endswith(".py")
        and not name.startswith("gen_")
        and not name.endswith("_pb2.py")
        and name != "build_info.py"
    )


def digest_of(files: Iterable[File]) -> str:
    """Returns a digest of all paths and contents, as hexadecimal characters."""
    hasher = hashlib.sha256()
    for file in files:
        hasher.update(f"{file.path}\0{len(file.content)}\0".encode())
        hasher.update(file.content)
    return hasher.hexdigest()


def check(name: str) -> None:
    """Raises, since a name that is not built in is no text."""
    raise ValueError(
        f"data {name!r} is not a text: use {NAME!r}, the Python files of "
        "the installed TensorFlow, or 'synthetic'"
    )
