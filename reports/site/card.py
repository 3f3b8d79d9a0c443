"""One study as the index shows it: what, where, the verdict, and how it scales."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from markupsafe import Markup, escape

from reports.view import view_store
from reports.words import formats, names, trust
from reports.words.brief import judge
from reports.words.verdict import lead_curve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reports.view import View
    from reports.words.brief import Brief
    from results.figures.scaling import Point
    from results.store.study_store import Store


WIDTH, HEIGHT, MARGIN = 120, 36, 5
HIGHEST: Final = 1.25
"""Efficiency at the upper edge; what exceeds it is drawn there."""
NO_MACHINE: Final = "machine not recorded"
INDEX_COLUMNS: Final = ("study", "workload", "date", "efficiency", "trials")
_UNUSUAL = re.compile(r"[^A-Za-z0-9_-]+")


def draw_sparkline(
    values: Sequence[tuple[int, float]], *, series: int, label: str
) -> Markup:
    """Returns the sparkline as an ``<svg>`` element.

    Places are equally far apart; the vertical axis begins at zero, and the dotted line
    is 100 %.
    """

    def up(value: float) -> float:
        share = min(max(value / HIGHEST, 0.0), 1.0)
        return HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * share

    last = max(len(values) - 1, 1)
    spots = [
        (MARGIN + (WIDTH - 2 * MARGIN) * place / last, up(value))
        for place, (_, value) in enumerate(values)
    ]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in spots)
    x, y = spots[-1]
    # The label is escaped, all else is numbers.
    return Markup(  # noqa: S704
        f'<svg class="spark" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(label)}" fill="none">'
        f'<path d="M{MARGIN} {up(0.0):.1f}H{WIDTH - MARGIN}" stroke="var(--rule)"/>'
        f'<path d="M{MARGIN} {up(1.0):.1f}H{WIDTH - MARGIN}" stroke="var(--muted)"'
        ' stroke-dasharray="2 3"/>'
        f'<path d="M{path}" stroke="var(--series-{series})" stroke-width="2"/>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="var(--series-{series})"/>'
        "</svg>"
    )


class Spark(NamedTuple):
    """Efficiency of one backend in one scaling mode."""

    drawing: Markup  # The sparkline.
    text: str  # The figure that it ends with.
    note: str  # Backend, scaling mode and replicas of that figure.
    value: float  # Of that figure.


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

    @property
    def verdict(self) -> str:
        """The verdict as plain text, at most 45 words."""
        return self.brief.text

    @property
    def date(self) -> str:
        """The day on which it was planned."""
        return day(self.created_at)

    @property
    def efficiency(self) -> float:
        """What sorting goes by; negative where there is none."""
        return max((spark.value for spark in self.sparks), default=-1.0)

    @property
    def efficiency_text(self) -> str:
        """The figure of each scaling mode, with its interval."""
        texts = (f"{of.text} ({of.note})" for of in self.sparks)
        return "; ".join(texts) or formats.ABSENT


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
    curves = [curve for mode in modes if (curve := lead_curve(view, mode))]
    by_processor = formats.grouped((env.cpu_model, env) for env in view.environments)
    machines = (
        # Trials have different numbers of GPUs: the most are the machine's.
        names.machine(max(found, key=lambda env: len(env.gpus)))
        for found in by_processor.values()
    )
    return Card(
        slug=slug,
        name=study.plan.study,
        title=", ".join([*workloads, *(f"preset {of}" for of in presets)]),
        workloads=workloads,
        backends=study.backends,
        machines=tuple(machines) or (NO_MACHINE,),
        created_at=study.plan.created_at,
        trials=f"{num_ok} of {formats.count(len(study.planned), 'trial')} ok",
        brief=judge(view),
        sparks=tuple(_spark(view, curve) for curve in curves),
    )


def _spark(view: View, curve: Sequence[Point]) -> Spark:
    """Returns the sparkline of the fastest backend, and the efficiency at its end."""
    values = [
        (point.num_replicas, 1.0 if of is None else of.value)
        for point in curve
        for of in (point.efficiency,)
    ]
    end = curve[-1]
    replicas = formats.count(end.num_replicas, "replica")
    label = f"Efficiency of {end.backend}, {end.mode.value} scaling: " + ", ".join(
        f"{formats.percent(value)} at {number}" for number, value in values
    )
    text = formats.percent(values[-1][1])
    if end.efficiency is not None:
        text = formats.estimate(end.efficiency, formats.percent)
    return Spark(
        drawing=draw_sparkline(values, series=view.series(end.backend), label=label),
        text=text,
        note=f"{end.mode.value}, {replicas}, {end.backend}",
        value=values[-1][1],
    )


def _cards(stores: Sequence[Store]) -> list[Card]:
    views = sorted(map(view_store, stores), key=lambda view: view.study.plan.created_at)
    names = slugs([view.study.plan.study for view in views])
    return [make_card(*pair) for pair in zip(views, names, strict=True)]


def index_text(stores: Sequence[Store]) -> str:
    """Writes a paragraph per study, oldest first."""
    return "\n\n".join(
        f"{card.name}: {card.title}, {card.date}, {card.trials}\n"
        f"  {card.efficiency_text}\n  {card.verdict}"
        for card in _cards(stores)
    )


def index_markdown(stores: Sequence[Store]) -> str:
    """Writes a table with a row per study, oldest first."""
    rows = [
        (card.name, card.title, card.date, card.efficiency_text, card.trials)
        for card in _cards(stores)
    ]
    return "\n".join(formats.markdown_table(INDEX_COLUMNS, rows))


def index_json(stores: Sequence[Store]) -> str:
    """Writes what the index says as data."""
    fields = "workloads", "backends", "machines", "date", "trials", "verdict"
    data: list[dict[str, Any]] = [
        {"study": card.name, **{name: getattr(card, name) for name in fields}}
        for card in _cards(stores)
    ]
    return json.dumps(data, indent=2)


INDEX_WRITERS: Final[dict[str, Callable[[Sequence[Store]], str]]] = {
    "text": index_text,
    "markdown": index_markdown,
    "json": index_json,
}
