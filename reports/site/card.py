"""One study as the index shows it: what, where, the verdict, and how it scales."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup, escape

from reports.view.view import view_store
from reports.words import formats, names, trust
from reports.words.brief import judge
from reports.words.verdict import lead_curve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from reports.view.view import View
    from reports.words.brief import Brief
    from results.records.models import Environment, ScalingMode
    from results.store.study_store import Store


WIDTH, HEIGHT, MARGIN = 120, 36, 5
HIGHEST: Final = 1.25
"""Efficiency at the upper edge; what exceeds it is drawn there."""


def draw_sparkline(
    values: Sequence[tuple[int, float]], *, series: int, label: str
) -> Markup:
    """Returns the sparkline as an ``<svg>`` element.

    Places are equally far apart; the vertical axis begins at zero, and the dotted line
    is 100 %.
    """
    last = max(len(values) - 1, 1)
    spots = [
        (MARGIN + (WIDTH - 2 * MARGIN) * place / last, _up(value))
        for place, (_, value) in enumerate(values)
    ]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
    x, y = spots[-1]
    ideal = f"M{MARGIN} {_up(1.0):.1f}H{WIDTH - MARGIN}"
    axis = f"M{MARGIN} {_up(0.0):.1f}H{WIDTH - MARGIN}"
    # The label is escaped, all else is numbers.
    return Markup(  # noqa: S704
        f'<svg class="spark" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(label)}" fill="none">'
        f'<path d="{axis}" stroke="var(--rule)"/>'
        f'<path d="{ideal}" stroke="var(--muted)" stroke-dasharray="2 3"/>'
        f'<path d="M{path}" stroke="var(--series-{series})" stroke-width="2"/>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="var(--series-{series})"/>'
        "</svg>"
    )


def _up(value: float) -> float:
    share = min(max(value / HIGHEST, 0.0), 1.0)
    return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * share


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
        drawing=draw_sparkline(values, series=view.series(backend), label=label),
        text=formats.percent(last)
        if efficiency is None
        else formats.estimate(efficiency, formats.percent),
        note=f"{mode.value}, {replicas}, {backend}",
    )
    return spark, last


INDEX_COLUMNS: Final = ("study", "workload", "date", "efficiency", "trials")


def _cards(stores: Sequence[Store]) -> list[Card]:
    views = sorted(map(view_store, stores), key=lambda view: view.study.plan.created_at)
    names = slugs([view.study.plan.study for view in views])
    return [make_card(*pair) for pair in zip(views, names, strict=True)]


def _efficiency(card: Card) -> str:
    return "; ".join(f"{of.text} ({of.note})" for of in card.sparks) or formats.ABSENT


def index_text(stores: Sequence[Store]) -> str:
    """Writes a paragraph per study, oldest first."""
    return "\n\n".join(
        f"{card.name}: {card.title}, {card.date}, {card.trials}\n"
        f"  {_efficiency(card)}\n  {card.verdict}"
        for card in _cards(stores)
    )


def index_markdown(stores: Sequence[Store]) -> str:
    """Writes a table with a row per study, oldest first."""
    rows = [
        (card.name, card.title, card.date, _efficiency(card), card.trials)
        for card in _cards(stores)
    ]
    return "\n".join(formats.markdown_table(INDEX_COLUMNS, rows))


def index_json(stores: Sequence[Store]) -> str:
    """Writes what the index says as data."""
    data: list[dict[str, Any]] = [
        {
            "study": card.name,
            "workloads": card.workloads,
            "backends": card.backends,
            "machines": card.machines,
            "date": card.date,
            "trials": card.trials,
            "verdict": card.verdict,
        }
        for card in _cards(stores)
    ]
    return json.dumps(data, indent=2)


INDEX_WRITERS: Final[dict[str, Callable[[Sequence[Store]], str]]] = {
    "text": index_text,
    "markdown": index_markdown,
    "json": index_json,
}
