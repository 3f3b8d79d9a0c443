"""``SHA256SUMS`` of a study: a digest of each file that a page or an export is made of.

Lines of a file are written before the file itself. What was there until then is in a
line ``# before DIGEST  PATH`` (``-``: nothing), which sha256sum ignores, so that a
study that was killed in between is told from one that was changed.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from results.store import untrusted, writing

if TYPE_CHECKING:
    import pathlib

MANIFEST_NAME: Final = "SHA256SUMS"
EVIDENCE: Final = re.compile(
    r"(?:spec|env|result|status)\.json|(?:rank_\d{1,6}|blocks|turns)\.jsonl"
    r"|samples_\d{1,12}\.png"
)
"""Names of the files of a trial that figures and pages are made of."""
NOTHING: Final = "-"
_LINE: Final = re.compile(
    r"(?P<before># before )?(?P<sum>[0-9a-f]{64}|-)  (?P<path>.+)"
)
_LOCK: Final = threading.Lock()


class Listed(NamedTuple):
    """The digests of a study by path, and those of files that may be as before."""

    sums: dict[str, str]
    before: dict[str, str]


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def digest_of(path: pathlib.Path) -> str:
    content = untrusted.read_bytes(path)
    return NOTHING if content is None else digest(content)


def names_in(folder: pathlib.Path) -> list[str]:
    return sorted(filter(EVIDENCE.fullmatch, untrusted.names_in(folder)))


def evidence_in(folder: pathlib.Path) -> dict[str, str]:
    """Returns the digests of a trial's files, by name; raises as ``digest_of``."""
    return {name: digest_of(folder / name) for name in names_in(folder)}


def renew(root: pathlib.Path, owner: str, files: Mapping[str, str]) -> None:
    """Lists a file, or the files of a folder, in place of what was listed of it."""
    with _LOCK:
        listed = read(root) or Listed({}, {})
        for path, before in listed.before.items():
            if digest_of(root / path) == before:  # a kill left it as it was
                listed.sums[path] = before
        sums = {
            path: one
            for path, one in listed.sums.items()
            if one != NOTHING and path != owner and not path.startswith(f"{owner}/")
        } | dict(files)
        lines = [f"{one}  {path}" for path, one in sorted(sums.items())]
        for path, one in sorted(files.items()):
            if (present := digest_of(root / path)) != one:
                lines.append(f"# before {present}  {path}")
        writing.write_text(root / MANIFEST_NAME, "".join(f"{line}\n" for line in lines))


def read(root: pathlib.Path) -> Listed | None:
    text = untrusted.read_text(root / MANIFEST_NAME)
    if text is None:
        return None
    listed = Listed({}, {})
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        match = _LINE.fullmatch(line)
        into = listed.before if match and match["before"] else listed.sums
        if match is None or match["path"] in into:
            raise untrusted.DamagedFileError(
                f"{MANIFEST_NAME} line {number} is malformed, must be a SHA-256 and a"
                " path that no other line has"
            )
        if into is listed.sums and match["sum"] == NOTHING:
            raise untrusted.DamagedFileError(
                f"{MANIFEST_NAME} line {number} has no sum"
            )
        into[match["path"]] = match["sum"]
    if text and not text.endswith("\n"):
        raise untrusted.DamagedFileError(f"the last line of {MANIFEST_NAME} is cut")
    return listed
