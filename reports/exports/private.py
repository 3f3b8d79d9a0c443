"""What a published report would show that may be private: paths, names, secrets.

Records have no host name, a list of allowed variables, and ``~`` for home folders. But
messages of errors, names of studies and options are free text. This looks at the text
that a reader would see, whatever it came from.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import html
import re
import socket
from typing import TYPE_CHECKING, Final

from reports.exports import secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_NOT_SHOWN = re.compile(r"<(style|script)\b.*?</\1>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
# Folders that every machine has: what lies below them says nothing about its owner.
# Home folders are found as such.
_COMMON = "home|Users|bin|boot|dev|etc|lib|lib64|proc|run|sbin|sys|tmp|usr"
PATTERNS: Final[Mapping[str, re.Pattern[str]]] = {
    "home folder": re.compile(
        r"(?:/home|/Users)/[^\s/:;,\"']+|[A-Z]:\\Users\\[^\s\\]+"
    ),
    "absolute path": re.compile(
        rf"(?<![\w.~/:<-])/(?!(?:{_COMMON})/)[\w.-]+(?:/[\w.-]+)+"
    ),
    "address on a network": re.compile(
        r"(?<![\d.])(?!127\.|0\.0\.0\.0)\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?![\d.])"
    ),
    "web address": re.compile(r"\b(?:https?|ssh|git|s3|gs)://[^\s\"'<>]+"),
    "e-mail address": re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b"),
}
_USUAL_NAMES: Final = {"admin", "localhost", "root", "runner", "ubuntu", "user"}
_SHORTEST_NAME: Final = 4
_MOST_CHARACTERS: Final = 120


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """Something that a reader would see and that may be private."""

    where: str  # The page or file.
    kind: str  # What it looks like.
    text: str  # What would be shown.


def visible_text(page: str) -> str:
    """Returns the text of an HTML page that a reader sees, and that of descriptions."""
    return html.unescape(_TAG.sub(" ", _NOT_SHOWN.sub(" ", page)))


def find(where: str, text: str, names: Iterable[str] | None = None) -> Iterator[Shown]:
    """Yields what may be private in a string, each thing once."""
    patterns = dict(PATTERNS)
    listed = sorted(names_of_this_machine() if names is None else names)
    if listed:
        words = "|".join(map(re.escape, listed))
        patterns["name of this machine or user"] = re.compile(
            rf"(?<![\w-])(?:{words})(?![\w-])"
        )
    for kind, pattern in patterns.items():
        seen = dict.fromkeys(match[0] for match in pattern.finditer(text))
        for found in seen:
            yield Shown(where=where, kind=kind, text=found[:_MOST_CHARACTERS])
    for kind, beginning in secrets.find(text):
        yield Shown(where=where, kind="secret", text=f"{kind}: {beginning}")


def names_of_this_machine() -> set[str]:
    """Returns host and user name, unless they are names that say nothing."""
    names = {socket.gethostname(), socket.gethostname().partition(".")[0]}
    # A user without an entry has no name.
    with contextlib.suppress(OSError, KeyError, ImportError):
        names.add(getpass.getuser())
    return {
        name
        for name in names
        if len(name) >= _SHORTEST_NAME and name not in _USUAL_NAMES
    }
