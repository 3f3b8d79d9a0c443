"""The cases of a plan by backend, scaling mode and number of replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from results import errors
from results.records.models import ScalingMode

if TYPE_CHECKING:
    from results.study.cases import Case, Study


def check_mode(case: Case, baseline: Case, mode: ScalingMode) -> None:
    """Checks that a case keeps what its scaling mode keeps fixed."""
    name = {
        ScalingMode.WEAK: "per_replica_batch_size",
        ScalingMode.STRONG: "global_batch_size",
    }[mode]
    here, there = getattr(case.spec, name), getattr(baseline.spec, name)
    if here != there:
        raise errors.ResultsError(
            f"case {case.label!r} is planned as {mode.value} scaling with {name} "
            f"{here}, its baseline {baseline.label!r} has {there}; {mode.value} "
            f"scaling keeps {name} fixed: plan the sweep again"
        )


def by_mode_and_size(study: Study) -> dict[tuple[str, ScalingMode, int], Case]:
    """Returns every case by backend, scaling mode and number of replicas."""
    index: dict[tuple[str, ScalingMode, int], Case] = {}
    for case in study.cases:
        for mode in case.modes:
            key = (case.spec.backend, mode, case.spec.num_replicas)
            if key in index:
                raise errors.ResultsError(
                    f"the plan of study {study.plan.study!r} has two cases for backend "
                    f"{key[0]!r}, {mode.value} scaling, {key[2]} replicas; a study "
                    "varies backends, modes and replicas only: use one per setting"
                )
            index[key] = case
    return index
