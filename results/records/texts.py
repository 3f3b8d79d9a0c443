"""Text: which characters a record, a message and a terminal take; tokens are masked."""

from __future__ import annotations

import collections
import contextlib
import functools
import getpass
import math
import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Moves a cursor, ends a line, or is not a character."""
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
"""Terminates strings in other programs, or cannot be encoded in UTF-8."""


def label_of(value: Any) -> str:
    """What users say and read for a value; records may store another name of it."""
    return str(getattr(value, "label", getattr(value, "value", value)))


def printable(text: str) -> str:
    """Returns a string with escapes in place of terminal control characters."""
    return UNPRINTABLE.sub(lambda match: repr(match[0])[1:-1], text)


def storable(text: str, limit: int) -> str:
    """Returns a string with marks in place of characters that a record cannot store."""
    return UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)[-limit:]


def without_options(words: Iterable[str], *options: str) -> list[str]:
    """Returns the words of a command without some of its options, and their values."""
    kept: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word in options:
            next(remaining, None)
        elif word.partition("=")[0] not in options:
            kept.append(word)
    return kept


# Not within a longer path or name; in JSON an escape such as \n can stand before it.
# The first character comes first: where none is, a search takes a fiftieth of the time.
_START = r"{0}(?:(?<![\w.~/-]{0})|(?<=\\[nrt]{0}))"
_USUAL = re.compile(
    _START.format("/") + r"(?:(?:home|Users)/[^/\s:;,\"'\\<>|]+|root(?=/))"
)


def shortened(text: str) -> str:
    """Returns a string with ``~`` in place of home folders, whoever's they are."""
    own = ""
    with contextlib.suppress(RuntimeError):  # this user has none
        own = str(Path.home())
    if own not in ("", "/", "."):
        start = _START.format(re.escape(own[0]))
        # Not where the folder's name continues.
        text = re.sub(rf"{start}{re.escape(own[1:])}(?![\w.-])", "~", text)
    return _USUAL.sub("~", text)


MASK: Final = "***"
_NAMES = (
    r"(?:token|secret|passw(?:or)?d|passphrase|pwd|credentials?"
    r"|(?:api|access|account|auth|encryption|private|shared|signing)[_-]?key)"
)
# Neither a mask, a number, a word of a configuration, nor what only names a value.
_VALUE = (
    r"(?!(?:none|null|true|false|unset|missing|\d{1,12}(?:\.\d*)?)(?![\w.+/=-]))"
    r"[^\s\0\"'\\,;&)\]}<>*$%({\[-][^\s\0\"'\\,;&)\]}<>]{2,}"
)
_QUOTE = r"\\?[\"']?"
_IS = rf"{_QUOTE}\s*(?:=>|:=|[=:])\s*{_QUOTE}"
_THEN = rf"(?:[\"'],)?[\s\0]+{_QUOTE}"  # the value of an option, a word of its own
_SCHEME = r"(?:basic|bearer|digest|token)\s"
_HEADER = rf"(?:authorization|cookie|x-[\w-]{{0,40}}(?:key|token)){_IS}(?:{_SCHEME}+)?"
# What is in the group "kept" stays.
_TOKENS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*-----|\Z)",
        r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",  # AWS
        r"\b(?:gh[oprsu]_|github_pat_|glpat-)[\w-]{20,}",  # GitHub, GitLab
        r"\bhf_[A-Za-z0-9]{30,}",  # Hugging Face
        r"\b(?:xox[a-z]|xapp)-[\w-]{10,}|\bhooks\.slack\.com/\w+/[\w/+-]{20,}",
        r"\bsk-(?=[\w-]{0,100}\d)[\w-]{20,}|\b[prs]k_(?:live|test)_\w{16,}",  # OpenAI
        r"\bAIza[\w-]{35}|\bnvapi-[\w-]{40,}|\bpypi-[\w-]{40,}|\bnpm_[A-Za-z0-9]{36}",
        r"\beyJ[\w-]{10,400}\.[\w-]+(?:\.[\w-]*)?",  # JSON web token
        r"\bwandb_v1_\w{20,}",  # Weights & Biases; its older keys look like commits
        r"(?i)(?P<kept>\bwandb\b.{0,40}?)\b[0-9a-f]{40}\b",
        rf"(?i)(?P<kept>{_HEADER})(?!{_SCHEME})[^\s\0\"'\\*][^\s\0\"'\\]{{3,}}",
        r"(?i)(?P<kept>\bbearer\s+)[\w.~+/=-]{12,}",
        r"(?i)(?P<kept>[?&](?:sig|signature|key)=)[\w%.~+/=-]{10,}",
        r"(?P<kept>\b[A-Za-z][\w+.-]{0,20}://)[^\s\0/@\"'<>*]+(?=@)",  # before a host
        rf"(?i)(?P<kept>(?:{_NAMES}|token[_-]\w{{1,40}}){_IS}){_VALUE}",
        rf"(?i)(?P<kept>(?<![\w-])--?(?:[^\W_]{{1,40}}[_-]){{0,8}}{_NAMES}{_THEN}){_VALUE}",
    )
)
_WORD: Final = re.compile(r"(?<![\w+-])[\w+-]{32,}={0,2}(?![\w+])")
_FEWEST_BITS: Final = 4.3  # of entropy per character: 99 of 100 random words have more


def tokens(text: str) -> str:
    """Returns a text without what looks like a token, a password or a key."""
    for pattern in _TOKENS:
        text = pattern.sub(_masked, text)
    return _WORD.sub(lambda match: MASK if _is_random(match[0]) else match[0], text)


def _masked(match: re.Match[str]) -> str:
    return f"{match.groupdict().get('kept') or ''}{MASK}"


def _is_random(word: str) -> bool:
    """Whether a long word is of letters of both cases and digits, drawn by chance."""
    shares = [count / len(word) for count in collections.Counter(word).values()]
    bits = -sum(share * math.log2(share) for share in shares)
    kinds = (str.islower, str.isupper, str.isdigit)
    return bits >= _FEWEST_BITS and all(any(map(kind, word)) for kind in kinds)


_PLACES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?P<kept>\b[A-Za-z][\w+.-]{0,20}://)[^\s\0\"'<>*]+",
        r"(?P<kept>\b[A-Z]:\\Users\\)[^\s\0\\*]+",
        r"\b[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+\b",
        r"(?<![\d.])(?!127\.|0\.0\.0\.0)\d{1,3}(?:\.\d{1,3}){3}(?![\d.])",
        r"(?i)(?<!\w)(?:[0-9a-f]{1,4}:){4,7}[0-9a-f]{1,4}(?![\w:])|\bfe80::[\w:%]+",
        r"(?<![\w.-])[\w-]+(?:\.[\w-]+){2,}(?=:\d{2,5}\b)",  # a host with its port
        r"(?P<kept>\bhost ')[^'*]+",  # as messages of the harness name one
    )
)
# What lies below folders that every machine has says nothing about its owner.
_PATH: Final = re.compile(
    r"(?<![\w.~/:<-])/(?!(?:bin|boot|dev|etc|lib|lib64|proc|run|sbin|sys|tmp|usr)/)"
    r"[\w.+@-]+(?:/[\w.+@-]+)*/(?P<name>[\w.+@-]+)"
)


@functools.lru_cache(maxsize=10_000)
def shared(text: str) -> str:
    """Returns a text without tokens, addresses, hosts, and folders of the machine."""
    text = tokens(text)
    for pattern in _PLACES:
        text = pattern.sub(_masked, text)
    return _PATH.sub(r".../\g<name>", shortened(text))


_USUAL_NAMES: Final = {"admin", "localhost", "root", "runner", "ubuntu", "user"}
_SHORTEST_NAME: Final = 4


def printed(text: str) -> str:
    """Returns what a program printed without tokens and names of host and user."""
    words = "|".join(map(re.escape, sorted(_own_names(), key=len, reverse=True)))
    text = tokens(text)
    return re.sub(rf"(?<![\w-])(?:{words})(?![\w-])", MASK, text) if words else text


def _own_names() -> frozenset[str]:
    """Returns the names of host and user, unless they say nothing."""
    names = {socket.gethostname(), socket.gethostname().partition(".")[0]}
    with contextlib.suppress(OSError, KeyError, ImportError):  # a user without a name
        names.add(getpass.getuser())
    return frozenset(
        name
        for name in names
        if len(name) >= _SHORTEST_NAME and name not in _USUAL_NAMES
    )
