"""The seal of a study: a chain of digests over its plan and its finished trials.

``seal.jsonl`` has a line for each plan that was written and each trial that ended, in
this order. A line has the digests of the files and the digest of the line before, so
no line can be changed, removed or put in without all that follow::

    {"previous": "<digest>", "of": "plan.json", "files": {"plan.json": "<digest>"}}
    {"previous": "<digest>", "of": "trials/<id>", "files": {"rank_0.jsonl": ...}}

Whoever can write the study can also make its seal anew, unless it is signed. A trial
that was run again has a later line, which counts. ``results/verify/seals.py`` compares.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import TYPE_CHECKING, Any, Final

from results.store import atomic, fence, untrusted

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Mapping

SEAL_NAME: Final = "seal.jsonl"
EVIDENCE: Final = re.compile(
    r"(?:spec|env|result|status)\.json|(?:rank_\d{1,6}|turns)\.jsonl"
    r"|samples_\d{1,12}\.png"
)
"""Names of the files of a trial that figures and pages are made of."""
_DIGEST_BYTES: Final = 20


class BrokenSealError(ValueError):
    """A seal that is not a chain; says where."""


def digest(content: bytes) -> str:
    """Returns what identifies some bytes."""
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest()


def evidence_in(folder: pathlib.Path) -> dict[str, str]:
    """Returns the digests of a trial's files, by name.

    Raises:
      DamagedFileError: One is no regular file, or too large.
      UnavailableRecordError: The file system does not answer.
    """
    names = sorted(filter(EVIDENCE.fullmatch, untrusted.names_in(folder)))
    return {name: digest(untrusted.read_bytes(folder / name) or b"") for name in names}


def append(root: pathlib.Path, of: str, files: Mapping[str, str]) -> None:
    """Adds a line to the seal of a study, and begins one if there is none.

    Args:
      root: The study directory, in which only one process writes.
      of: What is sealed, as a path in the study.
      files: Digests by name.

    Raises:
      OSError: It cannot be written.
      DamagedFileError: The seal is no regular file.
      UnavailableRecordError: The file system does not answer.
      StudyLostError: Another machine has taken the study over.
    """
    path = root / SEAL_NAME
    content = untrusted.read_bytes(path)
    whole = (content or b"").rpartition(b"\n")[0]
    previous = digest(whole.rpartition(b"\n")[2])  # of nothing, at the beginning
    line = {"previous": previous, "of": of, "files": dict(files)}
    fence.check(path)
    with path.open("ab") as file:
        # What a kill or a loss of power left of a line goes first.
        file.truncate(len(whole) + 1 if whole else 0)
        file.write(json.dumps(line).encode("ascii") + b"\n")
        file.flush()
        os.fsync(file.fileno())
    if content is None:
        atomic.sync(root)


def read(root: pathlib.Path) -> tuple[list[dict[str, Any]], str] | None:
    """Returns the lines of a seal and the digest of the last one; None without a seal.

    Raises:
      BrokenSealError: It is not a chain.
      DamagedFileError: It is no regular file.
      UnavailableRecordError: The file system does not answer.
    """
    content = untrusted.read_bytes(root / SEAL_NAME)
    if content is None:
        return None
    lines: list[dict[str, Any]] = []
    head = ""
    # What a kill or a loss of power left of a last line is none.
    for number, text in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            line = untrusted.parsed(text)
            texts = [line["of"], *line["files"], *line["files"].values()]
            is_line = all(isinstance(text, str) for text in texts)
            previous = line["previous"]
        except (ValueError, LookupError, TypeError, AttributeError):
            is_line, previous = False, None
        if not is_line:
            raise BrokenSealError(f"{SEAL_NAME} line {number} is malformed")
        if previous != (head or digest(b"")):
            raise BrokenSealError(
                f"{SEAL_NAME} line {number} does not follow the one before: lines were"
                " changed, removed or put in"
            )
        lines.append(line)
        head = digest(text)
    return lines, head
