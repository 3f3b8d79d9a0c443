"""What a program and the harness say to each other: the protocol of the client.

``docs/client_protocol.md`` explains it, ``docs/schema/client.schema.json`` is made from
the models of ``messages.py`` and ``lines.py``. A program in any language
that keeps to it takes part in a study as the harness's own processes do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from results.records.client.lines import RankLine
from results.records.client.messages import Command, Message, TrialFile

if TYPE_CHECKING:
    from results.records.record_base import Record

VERSION: Final = 3
_MESSAGES: Final[TypeAdapter[Message]] = TypeAdapter(Message)
_LINES: Final[TypeAdapter[RankLine]] = TypeAdapter(RankLine)


class ProtocolError(ValueError):
    """What a program said is not of the protocol; one line says what is wrong."""


def read_message(line: bytes) -> dict[str, Any]:
    """Returns the fields of a message from a program, defaults included."""
    return _read(_MESSAGES, line).model_dump()


def read_line(line: bytes) -> Record:
    """Returns a line of a rank's file."""
    return _read(_LINES, line)


def _read(adapter: TypeAdapter[Any], content: bytes) -> Any:
    try:
        return adapter.validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the line"
        shown = content.decode("utf-8", errors="replace").strip()[:200]
        raise ProtocolError(f"{where}: {first['msg']}; it was {shown!r}") from None


def schema() -> dict[str, Any]:
    """Returns the JSON Schema of the protocol: a definition for each direction."""
    definitions: dict[str, Any] = {}
    for name, adapter in (
        ("trial_file", TypeAdapter(TrialFile)),
        ("message", _MESSAGES),
        ("command", TypeAdapter(Command)),
        ("rank_line", _LINES),
    ):
        own = adapter.json_schema(ref_template="#/$defs/{model}")
        definitions |= own.pop("$defs", {})
        definitions[name] = own
    return {
        "title": f"Protocol of the client, version {VERSION}",
        "description": "each line of a direction is one of its definition",
        "$defs": definitions,
    }
