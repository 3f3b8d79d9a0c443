"""One study as the index shows it: what, where, the verdict, and how it scales."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Final

from reports.site import sparkline
from reports.words import formats, names, trust
from reports.words.brief import judge
from reports.words.finding import lead_curve

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from markupsafe import Markup

    from reports.view.view import View
    from reports.words.brief import Brief
    from results.records.models import Environment, ScalingMode

NO_MACHINE: Final = "machine not recorded"
_UNUSUAL = re.compile(r"[^A-Za-z0-9_-]+")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Spark:
    """Efficiency of one backend in one scaling mode."""

    drawing: Markup  # The sparkline.
    text: str  # The figure that it ends with.
    note: str  # Backend, scaling mode and replicas of that figure.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """What the index says about a study."""

    slug: str  # Its folder in the site, unique.
    name: str  # Of the study.
    title: str  # Workload and preset, in words.
    # Names of its workload; a tuple, as backends and machines.
    workloads: tuple[str, ...]
    backends: tuple[str, ...]  # Its backends.
    machines: tuple[str, ...]  # Its machines, in words.
    created_at: str  # When it was planned.
    trials: str  # How many trials are ok, in words.
    brief: Brief  # The verdict of the study's first screen.
    sparks: tuple[Spark, ...]  # Of the fastest backend, one per scaling mode.
    efficiency: float  # What sorting goes by; negative where there is none.

    @property
    def verdict(self) -> str:
        """The verdict as plain text, at most 45 words."""
        return self.brief.text

    @property
    def date(self) -> str:
        """The day on which it was planned."""
        return day(self.created_at)


def day(time: str) -> str:
    """Returns the day of a recorded time."""
    return time[: len("2026-01-01")]


def slugs(names: Sequence[str]) -> list[str]:
    """Returns a folder name for each study, unique also where letter case is ignored.

    Of equal names the first keeps it and the others are numbered.
    """
    found: list[str] = []
    taken: set[str] = set()
    for name in names:
        base = _UNUSUAL.sub("-", name).strip("-")[:80] or "study"
        slug, number = base, 1
        while slug.casefold() in taken:
            number += 1
            slug = f"{base}-{number}"
        taken.add(slug.casefold())
        found.append(slug)
    return found


def make_card(view: View, slug: str) -> Card:
    """Returns the card of a study."""
    study = view.study
    specs = [entry.spec for entry in study.planned]
    workloads = tuple(dict.fromkeys(names.workload(spec.workload) for spec in specs))
    presets = dict.fromkeys(spec.preset for spec in specs)
    num_ok = sum(entry.is_ok for entry in study.planned)
    # Where the machine disturbed too much for a verdict, no figure stands out.
    modes = () if trust.why_unfit(view) else study.modes
    sparks = [_spark(view, mode) for mode in modes]
    found = [spark for spark in sparks if spark is not None]
    judged = judge(view)
    return Card(
        slug=slug,
        name=study.plan.study,
        title=", ".join([*workloads, *(f"preset {of}" for of in presets)]),
        workloads=workloads,
        backends=study.backends,
        machines=machines(view),
        created_at=study.plan.created_at,
        trials=f"{num_ok} of {formats.count(len(study.planned), 'trial')} ok",
        brief=judged,
        sparks=tuple(spark for spark, _ in found),
        efficiency=max((value for _, value in found), default=-1.0),
    )


def machines(view: View) -> tuple[str, ...]:
    """Returns the machines of a study in words, one per processor."""
    by_processor: dict[str, Environment] = {}
    for env in _environments(view):
        known = by_processor.get(env.cpu_model)
        # Trials have different numbers of GPUs: the most are the machine's.
        if known is None or len(env.gpus) > len(known.gpus):
            by_processor[env.cpu_model] = env
    return tuple(map(names.machine, by_processor.values())) or (NO_MACHINE,)


def _environments(view: View) -> Iterable[Environment]:
    for entry in view.study.planned:
        if entry.trial is not None and entry.trial.env is not None:
            yield entry.trial.env


def _spark(view: View, mode: ScalingMode) -> tuple[Spark, float] | None:
    """Returns the sparkline of the fastest backend, and the efficiency at its end."""
    curve = lead_curve(view, mode)
    if not curve:
        return None
    values = [
        (point.num_replicas, 1.0 if of is None else of.value)
        for point in curve
        for of in (point.efficiency,)
    ]
    backend = curve[-1].backend
    last, efficiency = values[-1][1], curve[-1].efficiency
    replicas = formats.count(curve[-1].num_replicas, "replica")
    label = f"Efficiency of {backend}, {mode.value} scaling: " + ", ".join(
        f"{formats.percent(value)} at {number}" for number, value in values
    )
    spark = Spark(
        drawing=sparkline.draw(values, series=view.series(backend), label=label),
        text=formats.percent(last)
        if efficiency is None
        else formats.estimate(efficiency, formats.percent),
        note=f"{mode.value}, {replicas}, {backend}",
    )
    return spark, last
