"""Upgrades records of older schema versions to the current one, step by step."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from results import errors
from results.records import kept_metrics
from results.records.models import SCHEMA_VERSION

if TYPE_CHECKING:
    import pathlib

Upgrader = Callable[[str, dict[str, Any]], dict[str, Any]]
"""Takes a kind (``plan``, ``spec``, ``env``, ``status``, ``result``) and the fields of
version v, returns the fields of version v + 1."""


MAX_VERSION = 9_999
"""Upper limit of versions: a larger number was not written by this program."""


def _with_specs_of(version: int) -> Upgrader:
    """Upgrades where all new fields have defaults: updates only the specs in plans."""

    def upgrade(kind: str, data: dict[str, Any]) -> dict[str, Any]:
        if kind != "plan":
            return data
        trials = data.get("trials")
        if not isinstance(trials, list):
            return data
        return {**data, "trials": [_with_version(trial, version) for trial in trials]}

    return upgrade


def _with_version(trial: Any, version: int) -> Any:
    """Returns a trial of a plan with the next version; anything else unchanged.

    An upgrader changes only what it recognizes. The whole record is checked afterwards.
    """
    spec = trial.get("spec") if isinstance(trial, dict) else None
    if not isinstance(spec, dict):
        return trial
    return {**trial, "spec": {**spec, "schema_version": version}}


def _with_all_specs_of(version: int, data: dict[str, Any]) -> dict[str, Any]:
    """Updates the specs of a plan, those of trials that match too."""
    data = _with_specs_of(version)("plan", data)
    matching = data.get("matching")
    if isinstance(matching, dict):
        data = {**data, "matching": _with_specs_of(version)("plan", matching)}
    return data


def _workloads(plan: dict[str, Any]) -> set[Any]:
    trials = plan.get("trials")
    if not isinstance(trials, list):
        return set()
    specs = [trial.get("spec") for trial in trials if isinstance(trial, dict)]
    return {spec.get("workload") for spec in specs if isinstance(spec, dict)}


def _with_drawing_workloads(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """Adds to a plan whether steps draw random numbers: of ``sngan`` they did."""
    if kind != "plan":
        return data
    is_drawing = _workloads(data) == {"sngan"}
    return {**_with_all_specs_of(5, data), "draws_random_numbers": is_drawing}


def _with_metrics(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """Adds to a plan what the metrics of its workload meant."""
    if kind != "plan":
        return data
    found = [
        facts
        for workload in sorted(map(str, _workloads(data)))
        for facts in kept_metrics.of_workload(workload)
    ]
    return {**_with_all_specs_of(6, data), "metrics": found}


UPGRADERS: dict[int, Upgrader] = {
    1: _with_specs_of(2),  # quality runs
    2: _with_specs_of(3),  # window metrics, environment steps of a point
    3: _with_specs_of(4),  # relays
    4: _with_drawing_workloads,
    5: _with_metrics,
}
"""Version v -> the function that upgrades to v + 1."""


def upgrade(
    kind: str,
    data: dict[str, Any],
    path: pathlib.Path,
    *,
    upgraders: Mapping[int, Upgrader] = UPGRADERS,
    current: int = SCHEMA_VERSION,
) -> dict[str, Any]:
    """Returns ``data`` in the format of the current version.

    Raises:
      NewerSchemaError: ``data`` is of a newer version than this program knows.
      CorruptRecordError: ``data`` has no version, or one that cannot be upgraded.
    """
    version = data.get("schema_version")
    if (
        not isinstance(version, int)
        or isinstance(version, bool)
        or not 1 <= version <= MAX_VERSION
    ):
        raise errors.CorruptRecordError(
            path,
            f"schema_version is {reprlib.repr(version)}, must be an integer, 1 or more",
        )
    if version > current:
        raise errors.NewerSchemaError(path, version, current)
    while version < current:
        if version not in upgraders:
            raise errors.CorruptRecordError(
                path,
                f"there is no upgrade of schema_version {version} to {version + 1}",
            )
        try:
            data = {**upgraders[version](kind, data), "schema_version": version + 1}
        except (LookupError, TypeError, AttributeError, ValueError) as error:
            raise errors.CorruptRecordError(
                path,
                f"not a {kind} of schema_version {version}: upgrading it raised "
                f"{type(error).__name__} {reprlib.repr(str(error))}",
            ) from error
        version += 1
    return data
