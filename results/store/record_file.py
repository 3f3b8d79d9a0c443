"""Reads and writes one record as one JSON file."""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, TypeVar

import pydantic

from results import errors
from results.records import program, schema, texts
from results.records.models import Plan, Record, TrialSpec
from results.store import atomic, public, untrusted

if TYPE_CHECKING:
    import pathlib

RecordT = TypeVar("RecordT", bound=Record)

_MOST_OF_PLACE = 200
_WITHOUT_USER_FOLDERS = ("env", "status", "result")
"""A plan and a spec name the data to read, and are what an id is made of. The command
of a plan is only shown."""


def read(
    path: pathlib.Path, kind: str, model: type[RecordT], *, is_public: bool = False
) -> RecordT | None:
    """Reads one record, or its public facts; None if there is no such file.

    Older versions are upgraded.
    """
    try:
        text = untrusted.read_text(path)
    except untrusted.DamagedFileError as error:
        raise errors.CorruptRecordError(path, f"unreadable: {error}") from error
    if text is None:
        return None
    if kind in _WITHOUT_USER_FOLDERS:
        text = texts.shortened(text)
    try:
        data = untrusted.parsed_object(text)
        data = schema.upgrade(kind, data, path)
        # What older versions recorded and may not be published: they chose variables
        # by prefix.
        command = data.get("command") if kind == "plan" else None
        if isinstance(command, list) and all(isinstance(of, str) for of in command):
            data = {**data, "command": [texts.shortened(of) for of in command]}
        variables = data.get("environment_variables")
        if isinstance(variables, dict):
            variables = program.recorded_variables(variables)
            data = {**data, "environment_variables": variables}
        return model.model_validate(public.facts(data) if is_public else data)
    except untrusted.DamagedFileError as error:
        raise errors.CorruptRecordError(path, str(error)) from error
    except pydantic.ValidationError as error:
        raise errors.CorruptRecordError(path, first_complaint(error)) from error


def content_of(record: Record) -> bytes:
    """Returns the bytes of a record's file."""
    if isinstance(record, Plan):
        command = tuple(texts.shortened(text) for text in record.command)
        record = record.model_copy(update={"command": command})
    text = record.model_dump_json(indent=1) + "\n"
    if not isinstance(record, (Plan, TrialSpec)):
        text = texts.shortened(text)
    return text.encode("utf-8")


def write(path: pathlib.Path, record: Record) -> None:
    """Writes a record, and creates its folder if there is none."""
    write_content(path, content_of(record))


def write_content(path: pathlib.Path, content: bytes) -> None:
    """Writes the bytes of a record, and creates its folder if there is none."""
    with atomic.writing(path):
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
            atomic.sync(path.parent.parent)
        atomic.write_bytes(path, content)


def first_complaint(error: pydantic.ValidationError) -> str:
    """Returns one line: the first wrong field, why it is wrong, and its value."""
    first = error.errors(include_url=False)[0]
    # Keys come from the file and can be anything.
    keys = (repr(str(part))[1:-1] for part in first["loc"])
    place = ".".join(keys)[:_MOST_OF_PLACE] or "the record"
    # Deeply nested or very long values are abbreviated.
    return f"{place}: {first['msg']}, got {reprlib.repr(first['input'])}"
