"""Checks of the GPUs: who else uses them, and whether their clock is lowered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.doctor.finding import Finding, bad, caution, ok

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.doctor.gpu_state import GpuState

_NOTABLE_UTILIZATION = 0.05


def check_gpus(states: Sequence[GpuState]) -> list[Finding]:
    """Returns one finding for each GPU, or one that says that there is none."""
    if not states:
        return [ok("GPU", "none visible")]
    return [_check(f"GPU {index}", state) for index, state in enumerate(states)]


def _check(check: str, state: GpuState) -> Finding:
    found = _facts(state)
    if state.num_users or (state.utilization or 0.0) > _NOTABLE_UTILIZATION:
        advice = "end its other users (nvidia-smi), or hide it: CUDA_VISIBLE_DEVICES"
        return bad(check, found, advice)
    if state.slowed_by:
        advice = "let it cool, or raise its power limit: its clock is lowered"
        return bad(check, found, advice)
    if state.num_users is None:
        advice = "look for other users with nvidia-smi: the driver does not list them"
        return caution(check, found, advice)
    return ok(check, found)


def _facts(state: GpuState) -> str:
    parts = [state.name]
    if state.num_users is not None:
        parts.append(
            f"{state.num_users or 'no'} other process{_plural(state.num_users)}"
        )
    if state.utilization is not None:
        parts.append(f"{state.utilization:.0%} busy".replace("%", " %"))
    if state.clock_mhz is not None and state.max_clock_mhz is not None:
        parts.append(f"{state.clock_mhz} of {state.max_clock_mhz} MHz")
    if state.temperature_celsius is not None:
        parts.append(f"{state.temperature_celsius} degrees Celsius")
    if state.slowed_by:
        parts.append(f"slowed by {' and '.join(state.slowed_by)}")
    return ", ".join(parts)


def _plural(count: int) -> str:
    return "" if count == 1 else "es"
