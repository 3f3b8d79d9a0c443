"""Settings of a trial's steps: requested ones, or what is chosen without a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.errors import PlanError
from results.records.measuring import Chosen, StepSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.fields import FieldInfo

    from harness.catalog import WorkloadInfo


def plain() -> dict[str, Any]:
    """Returns the default of each setting, which trials that are not timed have."""
    return StepSettings().model_dump()


def described_default(field: FieldInfo) -> str:
    """Returns in words what a setting is where none was requested."""
    chosen = _chosen(field)
    return (
        f"{field.default} on CPUs, {chosen.on_gpus} on GPUs, {field.default}"
        f" {chosen.where}"
    )


def _chosen(field: FieldInfo) -> Chosen:
    (chosen,) = (mark for mark in field.metadata if isinstance(mark, Chosen))
    return chosen


def choose(
    requested: Mapping[str, Any], info: WorkloadInfo, device: str
) -> dict[str, Any]:
    """Returns what the specs of a sweep have."""
    found = plain()
    for name, field in StepSettings.model_fields.items():
        chosen, value = _chosen(field), requested.get(name)
        reason = getattr(info, chosen.unless)
        if not reason:
            default = chosen.on_gpus if device == "gpu" else field.default
            found[name] = default if value is None else value
        elif value not in (None, field.default):
            raise PlanError(
                f"--{name.replace('_', '-')} {value} with workload {info.name}:"
                f" {reason}, {chosen.then}; use {field.default}"
            )
    return found
