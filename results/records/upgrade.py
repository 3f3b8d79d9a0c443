"""Reads records of the schema versions before the current one.

The published studies are of versions 4 and 5, whose records are never rewritten. Older
ones were never published, and are refused.
"""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any

from results import errors
from results.records import quality_records
from results.records.models import SCHEMA_VERSION

if TYPE_CHECKING:
    import pathlib

OLDEST_VERSION = 4
_MAX_VERSION = 9_999  # a larger number was not written by this program


def upgrade(kind: str, data: dict[str, Any], path: pathlib.Path) -> dict[str, Any]:
    """Returns the fields of a record in the format of the current version."""
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
    return _of_plan(data) if kind == "plan" else _current(data)


def _current(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "schema_version": SCHEMA_VERSION}


def _of_plan(data: dict[str, Any]) -> dict[str, Any]:
    """Adds to a plan what its metrics mean, and whether steps draw random numbers.

    Version 5 says the latter; before, those of ``sngan`` did. It changes only what it
    recognizes. The whole record is checked afterwards.
    """
    found = _current(data)
    matching, trials = data.get("matching"), data.get("trials")
    if isinstance(matching, dict):
        found["matching"] = {**matching, "trials": _of_trials(matching.get("trials"))}
    if isinstance(trials, list):
        specs = [trial.get("spec") for trial in trials if isinstance(trial, dict)]
        names = {spec.get("workload") for spec in specs if isinstance(spec, dict)}
        found |= {
            "trials": _of_trials(trials),
            "metrics": [
                facts
                for workload in sorted(map(str, names))
                for facts in quality_records.of_workload(workload)
            ],
        }
        found.setdefault("draws_random_numbers", names == {"sngan"})
    return found


def _of_trials(trials: Any) -> Any:
    if not isinstance(trials, list):
        return trials
    return [
        {**trial, "spec": _current(trial["spec"])}
        if isinstance(trial, dict) and isinstance(trial.get("spec"), dict)
        else trial
        for trial in trials
    ]
