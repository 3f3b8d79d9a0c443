"""Versions of records, and their JSON Schemas."""

from __future__ import annotations

import json
import reprlib
from typing import TYPE_CHECKING, Any, Final

from results import errors
from results.records import models
from results.records.models import SCHEMA_VERSION

if TYPE_CHECKING:
    import pathlib

_MAX_VERSION = 9_999  # a larger number was not written by this program

# Names until 2026-11-29; a spec keeps its own, of which the trial's id is made.
_RENAMED = {
    "turns": "blocks",
    "void_reason": "discard_reason",
    "generation_sec": "repetition_sec",
    "matching": "equivalence",
}
_STATES = {"void": "discarded", "insane": "failed_checks"}


def renamed(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a record under the names of today."""
    if kind in ("env", "spec"):
        return data
    current = {_RENAMED.get(name, name): value for name, value in data.items()}
    blocks, measuring, status = map(current.get, ("blocks", "measuring", "status"))
    if isinstance(blocks, list):
        current["blocks"] = [
            renamed("block", block) if isinstance(block, dict) else block
            for block in blocks
        ]
    if isinstance(measuring, dict):
        current["measuring"] = renamed("measuring", measuring)
    if isinstance(status, str):
        current["status"] = _STATES.get(status, status)
    return current


def current(kind: str, data: dict[str, Any], path: pathlib.Path) -> dict[str, Any]:
    """Returns the fields of a record, if this version of the format is read."""
    version = data.get("schema_version")
    if type(version) is not int or not 1 <= version <= _MAX_VERSION:
        raise errors.CorruptRecordError(
            path,
            f"schema_version is {reprlib.repr(version)}, must be an integer, 1 or more",
        )
    if version > SCHEMA_VERSION:
        raise errors.NewerSchemaError(path, version, SCHEMA_VERSION)
    if version < SCHEMA_VERSION:
        raise errors.OlderSchemaError(path, version, SCHEMA_VERSION)
    return renamed(kind, data)


MODELS: dict[str, type[models.Record]] = {
    "plan": models.Plan,
    "spec": models.TrialSpec,
    "env": models.Environment,
    "status": models.StatusRecord,
    "result": models.TrialResult,
}
"""File stem of a record in the store -> its model."""
PROTOCOL: Final = "client"
KINDS: Final = (*MODELS, PROTOCOL)

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def render(kind: str) -> str:
    """Returns the JSON Schema of one kind of record, as in the published file."""
    from results.records import protocol

    is_protocol = kind == PROTOCOL
    own = protocol.schema() if is_protocol else MODELS[kind].model_json_schema()
    return json.dumps({"$schema": DIALECT, **own}, indent=2, sort_keys=True) + "\n"
