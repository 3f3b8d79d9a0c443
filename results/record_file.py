"""One record in one JSON file: what it may hold, and how it is written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeVar

import pydantic

from results import atomic, errors, upgrade
from results.records import Record

if TYPE_CHECKING:
    import pathlib

RecordT = TypeVar("RecordT", bound=Record)


def read(path: pathlib.Path, kind: str, model: type[RecordT]) -> RecordT | None:
    """Reads one record, upgrading older versions; None if there is no such file.

    Raises:
      CorruptRecordError: The file is not a record of this kind.
      NewerSchemaError: A newer version wrote it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise errors.CorruptRecordError(path, f"unreadable: {error}") from error
    try:
        data = json.loads(text)
    except ValueError as error:
        raise errors.CorruptRecordError(path, f"not JSON: {error}") from error
    if not isinstance(data, dict):
        raise errors.CorruptRecordError(
            path, f"holds a {type(data).__name__}, must hold an object"
        )
    data = upgrade.upgrade(kind, data, path)
    try:
        return model.model_validate(data)
    except pydantic.ValidationError as error:
        raise errors.CorruptRecordError(path, _first_complaint(error)) from error


def write(path: pathlib.Path, record: Record) -> None:
    """Writes a record, and the folder it lies in where there is none.

    Raises:
      WriteStoreError: The file cannot be written.
    """
    text = record.model_dump_json(indent=1) + "\n"
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True)
            atomic.sync_directory(path.parent.parent)
        atomic.write_text(path, text)
    except OSError as error:
        raise errors.WriteStoreError(
            f"cannot write {str(path)!r}: {error.strerror or error}; free space "
            "or choose a place this user can write"
        ) from error


def _first_complaint(error: pydantic.ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"]) or "the record"
    return f"{place}: {first['msg']}, got {first['input']!r:.80}"
