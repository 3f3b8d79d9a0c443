"""Checks that apply to every command-line argument, and arguments in error messages.

Names, paths and values are checked here, so that no later code receives a string that
cannot be stored in a file or a record or shown on a terminal.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, Final

from harness.errors import DifferentStudyError, ParseError
from results.records.texts import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console


MAX_LENGTH = 65_536
"""Characters of one argument; 65,536 replica counts as a range take ten."""
MAX_MESSAGE = 1_000
_UNUSABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


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
