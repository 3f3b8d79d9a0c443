"""The machine and the software, from the environment records."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from reports import page

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view import View
    from results.records import Environment

TITLE = "Machine"
SLUG = "machine"


def _canary_drift(environments: list[Environment]) -> float | None:
    """Largest relative change of the canary's time, within or between trials."""
    times = [
        seconds
        for env in environments
        for seconds in (env.canary_before_sec, env.canary_after_sec)
        if seconds
    ]
    return max(times) / min(times) - 1 if times else None


def _gpus(environments: list[Environment]) -> str:
    """Says what the GPUs did while trials were measured; "" without GPUs."""
    uses = [use for env in environments for use in env.gpu_uses]
    clocks = [use.clock_mhz for use in uses if use.clock_mhz is not None]
    powers = [use.power_watts for use in uses if use.power_watts is not None]
    heats = [u.temperature_celsius for u in uses if u.temperature_celsius is not None]
    reasons = sorted({reason for use in uses for reason in use.slowed_by})
    parts = []
    if clocks:
        parts.append(f"{min(clocks):,.0f} to {max(clocks):,.0f} MHz")
    if powers:
        parts.append(f"{min(powers):,.0f} to {max(powers):,.0f} W")
    if heats:
        parts.append(f"at most {max(heats):.0f} degrees Celsius")
    if reasons:
        parts.append(f"clock lowered by {' and '.join(reasons)}")
    return ", ".join(parts)


def render(view: View) -> Markup:
    """Renders the facts of each environment; warns if there are several."""
    trials: dict[str, list[str]] = collections.defaultdict(list)
    records: dict[str, list[Environment]] = collections.defaultdict(list)
    for entry in view.study.planned:
        if entry.trial is not None and entry.trial.env is not None:
            trials[entry.trial.env.fingerprint].append(entry.trial_id)
            records[entry.trial.env.fingerprint].append(entry.trial.env)
    machines = [
        {
            "fingerprint": fingerprint,
            "env": environments[0],
            "trial_ids": trials[fingerprint],
            "drift": _canary_drift(environments),
            # Trials have different numbers of them.
            "gpus": max((env.gpus for env in environments), key=len),
            "gpu_uses": _gpus(environments),
            "loads": [
                env.load_average_before
                for env in environments
                if env.load_average_before is not None
            ],
            "foreign": [
                env.foreign_cpu_fraction
                for env in environments
                if env.foreign_cpu_fraction is not None
            ],
            "stolen": [
                env.stolen_cpu_fraction
                for env in environments
                if env.stolen_cpu_fraction is not None
            ],
        }
        for fingerprint, environments in records.items()
    ]
    return page.render("machine", view=view, machines=machines)
