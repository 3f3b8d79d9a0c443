"""What any argument of the command line must be, and how one is told of in a message.

What is checked here holds for names, paths and values alike, so that nothing behind it
meets a text that no file, record or terminal can take.
"""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING

from harness.errors import ParseError
from results.texts import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_LENGTH = 65_536
"""Characters of one argument; 65,536 replica counts as a range take ten."""
MAX_MESSAGE = 1_000
_UNUSABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")

# What a file system says of a path that a user chose, and of nothing that we do wrong.
_REFUSALS = frozenset(
    {
        errno.EACCES,
        errno.EDQUOT,
        errno.EIO,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOSPC,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    }
)


def check_arguments(arguments: Sequence[str]) -> None:
    """Checks the arguments of the process.

    Raises:
      ParseError: One is too long, holds a control character, or is not UTF-8.
    """
    for argument in arguments:
        if len(argument) > MAX_LENGTH:
            raise ParseError(
                f"argument {argument[:40]!r}... has {len(argument)} characters; allowed"
                f" are at most {MAX_LENGTH}"
            )
        found = _UNUSABLE.search(argument)
        if found is not None:
            what = "is not UTF-8" if found[0] >= "\ud800" else "is a control character"
            raise ParseError(
                f"argument {argument[:200]!r}: {found[0]!r} {what}; use printable text"
                " only, and rename a file that is called so"
            )


def refusal(error: OSError) -> str | None:
    """Returns the line for a path that the file system refuses, or None for a fault."""
    if error.filename is None or error.errno not in _REFUSALS:
        return None
    return (
        f"cannot use {str(error.filename)!r}: {error.strerror}; choose another path, or"
        " mend this one"
    )


def one_line(message: str) -> str:
    """Returns a message as one printable line; a very long one loses its middle."""
    text = printable(" ".join(message.split()))
    if len(text) <= MAX_MESSAGE:
        return text
    half = MAX_MESSAGE // 2
    return f"{text[:half]} ... {text[-half:]}"
