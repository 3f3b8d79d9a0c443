"""Brings records of older schema versions up to the current one, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from results import errors
from results.records import SCHEMA_VERSION

if TYPE_CHECKING:
    import pathlib

Upgrader = Callable[[str, dict[str, Any]], dict[str, Any]]
"""Takes a kind (``plan``, ``spec``, ``env``, ``status``, ``result``) and the fields of
version v, returns the fields of version v + 1."""


def _with_specs_of(version: int) -> Upgrader:
    """Where all new fields have defaults: only that a plan holds specs."""

    def upgrade(kind: str, data: dict[str, Any]) -> dict[str, Any]:
        if kind != "plan":
            return data
        trials = [
            {**trial, "spec": {**trial["spec"], "schema_version": version}}
            for trial in data["trials"]
        ]
        return {**data, "trials": trials}

    return upgrade


UPGRADERS: dict[int, Upgrader] = {
    1: _with_specs_of(2),  # quality runs
    2: _with_specs_of(3),  # window metrics, environment steps of a point
}
"""Version v -> the function that leads to v + 1."""


def upgrade(
    kind: str,
    data: dict[str, Any],
    path: pathlib.Path,
    *,
    upgraders: Mapping[int, Upgrader] = UPGRADERS,
    current: int = SCHEMA_VERSION,
) -> dict[str, Any]:
    """Returns ``data`` as the current version has it.

    Raises:
      NewerSchemaError: ``data`` is of a version this program does not know yet.
      CorruptRecordError: ``data`` names no version, or one nothing leads from.
    """
    version = data.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise errors.CorruptRecordError(
            path, f"schema_version is {version!r}, must be a whole number from 1"
        )
    if version > current:
        raise errors.NewerSchemaError(path, version, current)
    while version < current:
        if version not in upgraders:
            raise errors.CorruptRecordError(
                path, f"nothing upgrades schema_version {version} to {version + 1}"
            )
        data = {**upgraders[version](kind, data), "schema_version": version + 1}
        version += 1
    return data
