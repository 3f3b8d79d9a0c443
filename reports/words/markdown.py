"""Text and tables for Markdown: nothing that a record has written is markup."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Brackets stay readable as those of intervals; a link also needs what follows them.
_MARKUP = re.compile(r"([\\|*`]|(?<=\])[(:\[])")

_ISSUE = re.compile(r"#(?=\d)")
_ADDRESS = re.compile(r"\b(www)\.", re.IGNORECASE)


def escaped(text: str) -> str:
    """Returns text of one line in which nothing is markup."""
    text = _MARKUP.sub(r"\\\1", " ".join(text.split()))
    # Hosts turn a number after # into an issue, a name after @ into a mention, < into a
    # tag, and an address into a link.
    text = _ISSUE.sub("&#35;", text).replace("<", "&lt;").replace("@", "&#64;")
    return _ADDRESS.sub(r"\1&#46;", text.replace("://", ":&#47;&#47;"))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table."""
    lines = (list(map(escaped, row)) for row in (columns, *rows))
    head, *body = [f"| {' | '.join(row)} |" for row in lines]
    return [head, f"| {' | '.join(['---'] * len(columns))} |", *body]
