"""Options of workloads that decide how many devices and cores a trial has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PIPELINE_STAGES: Final = "pipeline_stages"
"""Devices that each replica is split over, a stage of a pipeline on each."""


def devices_per_replica(options: Mapping[str, Any]) -> int:
    """Returns over how many devices each replica is split."""
    count = options.get(PIPELINE_STAGES)
    # Records may be anybody's, and True is an int.
    return count if type(count) is int and count > 0 else 1
