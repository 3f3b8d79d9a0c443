"""Which counts of a step a gate can be asked to judge, checked before it measures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import catalog
from harness.errors import PlanError
from results.records import measuring

if TYPE_CHECKING:
    from collections.abc import Sequence

OPTION = "--count"


def check(
    names: Sequence[str], backends: Sequence[str], num_warmup_steps: int | None
) -> None:
    """Checks the counts of a gate on a workload."""
    for index, name in enumerate(names):
        word, equals, _ = name.partition("=")
        if equals and word in measuring.UNITS:
            raise PlanError(
                f"{OPTION} {name!r} has a pattern, and a workload prints nothing that"
                f" is read; write {OPTION} {word}, or give --command"
            )
        if name not in measuring.UNITS:
            raise PlanError(
                f"{OPTION} {name!r} is not counted in a step; use one of"
                f" {', '.join(measuring.UNITS)}"
            )
        if name in names[:index]:
            raise PlanError(f"{OPTION} {name!r} is given twice; give it once")
        for backend in backends:
            if name not in (known := _known(backend)):
                allowed = f"one of {', '.join(known)}" if known else "other backends"
                raise PlanError(
                    f"{OPTION} {name!r} is not known of backend {backend!r}; use"
                    f" {allowed}"
                )
    if names and num_warmup_steps == 1:
        raise PlanError(
            f"{OPTION} {names[0]!r} with --num-warmup-steps 1: the first step traces,"
            " so another one is counted; use --num-warmup-steps"
            f" {measuring.FEWEST_WARMUP_STEPS} or more"
        )


def _known(backend: str) -> list[str]:
    """Returns what is counted of steps on a backend."""
    info = catalog.backend(backend)
    if catalog.peer(backend) is not None:
        return []
    if info.processes == catalog.PARAMETER_SERVERS:
        return [measuring.RETRACES]
    is_planned = "explained_plan" not in info.lacks
    return [
        name for name in measuring.UNITS if is_planned or name not in measuring.OF_PLANS
    ]
