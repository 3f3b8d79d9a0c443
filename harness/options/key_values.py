"""The options of a workload: ``KEY=VALUE``, or a table of a study file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from harness.errors import ParseError
from harness.options.kinds import Kind
from results.records import limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.records.models import OptionValue

_MOST_CHARACTERS = 20


def parse_key_values(texts: Sequence[str], *, what: str) -> dict[str, OptionValue]:
    """Returns the values by key: true, false, a number, or else a string."""
    options: dict[str, OptionValue] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ParseError(f"{what}: {text!r} is not KEY=VALUE")
        if key in options:
            raise ParseError(f"{what}: {key!r} is given twice; give it once")
        options[key] = _parse_value(key, value, what)
    return options


def _parse_value(key: str, text: str, what: str) -> OptionValue:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        # Twenty characters suffice for any 64-bit integer; longer ones are floats.
        is_whole = re.fullmatch(r"[+-]?\d+", text) is not None
        value = int(text) if is_whole and len(text) <= _MOST_CHARACTERS else float(text)
    except ValueError:
        return text
    if not abs(value) <= (limits.MAX_SEED if is_whole else limits.MAX_REAL):
        raise ParseError(
            f"{what}: {key}={text!r} is out of bounds; allowed are integers up"
            f" to {limits.MAX_SEED} and floats up to {limits.MAX_REAL:g}, and their"
            " negatives"
        )
    return value


def as_texts(table: dict[str, Any]) -> tuple[str, ...]:
    """Returns a table of a study file as the command line has it."""
    return tuple(
        f"{key}={str(value).lower() if isinstance(value, bool) else value}"
        for key, value in table.items()
    )


KEY_VALUES: Final = Kind(
    read=lambda texts, what: parse_key_values(texts, what=what),
    annotation=dict[str, bool | int | float | str],
    must_be=(
        "a table of texts, numbers, true and false: [option] and lines such as"
        ' jit = "compute" below it'
    ),
    metavar="KEY=VALUE",
    is_multiple=True,
)
