"""Reads records of the schema version before the current one.

Two of the three published studies are of version 4, whose records are never rewritten.
Older ones were never published, and are refused.
"""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any

from results import errors
from results.records.models import SCHEMA_VERSION

if TYPE_CHECKING:
    import pathlib

OLDEST_VERSION = 4
_MAX_VERSION = 9_999  # a larger number was not written by this program


def upgrade(kind: str, data: dict[str, Any], path: pathlib.Path) -> dict[str, Any]:
    """Returns the fields of a record in the format of the current version.

    Args:
      kind: ``plan``, ``spec``, ``env``, ``status`` or ``result``.
      data: Its fields.
      path: Its file, for messages.

    Raises:
      NewerSchemaError: ``data`` is of a newer version than this program knows.
      OlderSchemaError: It is of a version that is no longer read.
      CorruptRecordError: It has no version.
    """
    version = data.get("schema_version")
    if (
        not isinstance(version, int)
        or isinstance(version, bool)
        or not 1 <= version <= _MAX_VERSION
    ):
        raise errors.CorruptRecordError(
            path,
            f"schema_version is {reprlib.repr(version)}, must be an integer, 1 or more",
        )
    if version > SCHEMA_VERSION:
        raise errors.NewerSchemaError(path, version, SCHEMA_VERSION)
    if version < OLDEST_VERSION:
        raise errors.OlderSchemaError(path, version, OLDEST_VERSION)
    if version == SCHEMA_VERSION:
        return data
    return _of_plan(data) if kind == "plan" else {**data, "schema_version": 5}


def _of_plan(data: dict[str, Any]) -> dict[str, Any]:
    """Adds to a plan whether steps draw random numbers: those of ``sngan`` did.

    It changes only what it recognizes. The whole record is checked afterwards.
    """
    found = {**data, "schema_version": 5}
    matching, trials = data.get("matching"), data.get("trials")
    if isinstance(matching, dict):
        found["matching"] = {**matching, "trials": _of_trials(matching.get("trials"))}
    if isinstance(trials, list):
        specs = [trial.get("spec") for trial in trials if isinstance(trial, dict)]
        names = {spec.get("workload") for spec in specs if isinstance(spec, dict)}
        found |= {
            "trials": _of_trials(trials),
            "draws_random_numbers": names == {"sngan"},
        }
    return found


def _of_trials(trials: Any) -> Any:
    if not isinstance(trials, list):
        return trials
    return [
        {**trial, "spec": {**trial["spec"], "schema_version": 5}}
        if isinstance(trial, dict) and isinstance(trial.get("spec"), dict)
        else trial
        for trial in trials
    ]
