"""Publishes JSON Schemas of records: ``python -m results.records.schema FOLDER``."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import TYPE_CHECKING, Any, Final

from results.records import models
from results.records.client import protocol as client_protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    if kind == PROTOCOL:
        own: dict[str, Any] = client_protocol.schema()
    else:
        own = MODELS[kind].model_json_schema(mode="validation")
    schema = {"$schema": DIALECT, **own}
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=True) + "\n"


def write_all(folder: pathlib.Path) -> list[pathlib.Path]:
    """Writes ``<kind>.schema.json`` for every kind and returns the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for kind in KINDS:
        path = folder / f"{kind}.schema.json"
        path.write_text(render(kind), encoding="ascii", newline="\n")
        paths.append(path)
    return paths


def main(arguments: Sequence[str]) -> int:
    """Runs the command line; returns 2 if it is not called with one folder."""
    if len(arguments) != 1:
        sys.stderr.write("error: usage: python -m results.records.schema FOLDER\n")
        return 2
    for path in write_all(pathlib.Path(arguments[0])):
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
