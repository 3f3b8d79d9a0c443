"""Checks that apply to every command-line argument, and arguments in error messages.

Names, paths and values are checked here, so that no later code receives a string that
cannot be stored in a file or a record or shown on a terminal.
"""

from __future__ import annotations

import errno
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from harness.errors import DifferentStudyError, ParseError, causes
from results.records.texts import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console


MAX_LENGTH = 65_536
"""Characters of one argument; 65,536 replica counts as a range take ten."""
MAX_MESSAGE = 1_000
OUT_OF_MEMORY = (
    "there is not enough memory for this; end other programs, or allow this one more"
    " ('ulimit -v', the limit of its control group); what was finished is kept, so run"
    " the same command again"
)
_UNUSABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")

# Errors that a path chosen by the user can cause; none of them is a bug of ours.
_REFUSALS = frozenset(
    {
        *(errno.EACCES, errno.EDQUOT, errno.EIO, errno.EISDIR, errno.ELOOP),
        *(errno.EMFILE, errno.ENAMETOOLONG, errno.ENFILE, errno.ENOMEM, errno.ENOSPC),
        *(errno.ENOTDIR, errno.EPERM, errno.EROFS, errno.ESTALE, errno.ETIMEDOUT),
    }
)


def check_arguments(arguments: Sequence[str]) -> None:
    for argument in arguments:
        if len(argument) > MAX_LENGTH:
            raise ParseError(
                f"argument {argument[:40]!r}... has {len(argument)} characters; allowed"
                f" are at most {MAX_LENGTH}"
            )
        unusable = _UNUSABLE.search(argument)
        if unusable is not None:
            what = (
                "is not UTF-8" if unusable[0] >= "\ud800" else "is a control character"
            )
            raise ParseError(
                f"argument {argument[:200]!r}: {unusable[0]!r} {what}; use printable"
                " characters only, and rename a file with such a name"
            )


def is_output_full(error: BaseException) -> bool:
    """Whether stdout has no space, or a disk that fails: no path is known."""
    full = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}
    return isinstance(error, OSError) and not error.filename and error.errno in full


def refusal(error: OSError) -> str | None:
    """Returns the message for an unusable path, or None for an internal error."""
    if is_output_full(error):
        return f"cannot write the output: {error.strerror}; free space, or redirect it"
    if error.filename is None or error.errno not in _REFUSALS:
        return None
    return (
        f"cannot use {str(error.filename)!r}: {error.strerror}; choose another path, or"
        " fix this one"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, whatever a library makes of it."""
    for cause in causes(error):
        is_said = isinstance(cause, RuntimeError) and "out of memory" in str(cause)
        if isinstance(cause, MemoryError) or is_said:
            return True
        if isinstance(cause, OSError) and cause.errno == errno.ENOMEM:
            return cause.filename is None
    return False


def one_line(message: str) -> str:
    """Returns a message as one printable line; a very long one is cut in the middle."""
    text = printable(" ".join(message.split()))
    if len(text) <= MAX_MESSAGE:
        return text
    half = MAX_MESSAGE // 2
    return f"{text[:half]} ... {text[-half:]}"


def check_comparable(
    first: str, second: str, differences: Sequence[str], is_different_allowed: bool
) -> None:
    """Refuses studies that are not comparable, unless they are to be shown anyway."""
    if differences and not is_different_allowed:
        raise DifferentStudyError(
            f"{first!r} and {second!r} are not comparable: {'; '.join(differences)};"
            " measure both on one machine with the same options, or use"
            " --allow-different to see them anyway"
        )


PIPE_WIDTH: Final = 140  # Of a pipe, which has none: no cell is wrapped.


def console(**settings: Any) -> Console:
    from rich.console import Console

    settings.setdefault("width", None if sys.stdout.isatty() else PIPE_WIDTH)
    return Console(highlight=False, **settings)
