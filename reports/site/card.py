"""One study as the index shows it: what, where, how well, how sure."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from reports.charts import bars
from reports.view import view_store
from reports.words import brief as brief_lib
from reports.words import evidence, formats, names

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view import View
    from reports.words.brief import Brief
    from results.figures.scaling import Comparison, Point
    from results.records.models import Plan
    from results.store.study_store import Store


NO_MACHINE: Final = "machine not recorded"
STOCK: Final = ("tf_mirrored", "tf_multi_worker", "tf_parameter_server", "tpu")
"""The strategies of TensorFlow; a study without one is compared with another peer."""
INDEX_COLUMNS: Final = (
    *("study", "workload", "machine", "backend", "weak, of ideal", "strong, of ideal"),
    *("against", "date", "grade"),
)
_UNUSUAL = re.compile(r"[^A-Za-z0-9_-]+")


class Share(NamedTuple):
    """Efficiency of the fastest backend at its most replicas, in one scaling mode."""

    text: str = ""  # With its interval and replicas; empty without one.
    bar: Markup | str = ""
    value: float = -1.0  # What sorting goes by.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    slug: str  # Its folder in the site, unique.
    name: str  # Of the study.
    title: str  # Workload and preset, in words.
    workloads: tuple[str, ...]  # Names of its workload; a tuple, as backends.
    backends: tuple[str, ...]  # Its backends.
    machines: tuple[str, ...]  # Its machines, in words.
    date: str  # The day on which it was planned.
    trials: str  # How many trials are ok, in words.
    brief: Brief  # The verdict of the study's first screen.
    backend: str  # The fastest; of a study without a ratio, all.
    shares: dict[str, Share]  # By scaling mode.
    against: str  # The fastest over a stock strategy, with its interval.
    grade: str  # Of the evidence, and whether anything calls for caution.

    @property
    def verdict(self) -> str:
        return self.brief.text

    @property
    def cells(self) -> tuple[str, ...]:
        weak, strong = (self.shares[mode].text for mode in ("weak", "strong"))
        machines = "; ".join(self.machines)
        front = self.name, self.title, machines, self.backend, weak, strong
        return (*front, self.against, self.date, self.grade)


def slugs(names: Sequence[str]) -> list[str]:
    """Returns a folder name for each study, unique also without letter case."""
    unique: list[str] = []
    taken: set[str] = set()
    for name in names:
        base = _UNUSUAL.sub("-", name).strip("-")[:80] or "study"
        slug, number = base, 1
        while slug.casefold() in taken:
            number += 1
            slug = f"{base}-{number}"
        taken.add(slug.casefold())
        unique.append(slug)
    return unique


def placed(stores: Sequence[Store]) -> dict[str, Store]:
    """Returns studies by the names of their folders, in the order of the site."""

    def order(pair: tuple[Store, Plan]) -> tuple[str, str, str]:
        # By what the records say: a name of a folder can be anything.
        plan = pair[1]
        ids = (trial.trial_id for trial in plan.trials)
        return plan.created_at, plan.study, min(ids, default="")

    plans = sorted(((store, store.read_plan()) for store in stores), key=order)
    names = slugs([plan.study for _, plan in plans])
    return dict(zip(names, (store for store, _ in plans), strict=True))


def make_card(view: View, slug: str) -> Card:
    study = view.study
    specs = [entry.spec for entry in study.planned]
    workloads = tuple(dict.fromkeys(names.workload(spec.workload) for spec in specs))
    presets = dict.fromkeys(spec.preset for spec in specs)
    num_ok = sum(entry.is_ok for entry in study.planned)
    by_processor = formats.grouped((env.cpu_model, env) for env in study.environments)
    machines = map(names.machine, by_processor.values())
    brief, grade = brief_lib.verdict(view), evidence.grade(study)
    level = brief.verdict.lower() or brief.level.value.replace("bad", "not reliable")
    points, compared = brief_lib.leader_points(view)
    shares = {point.mode.value: _share(view, point) for point in points}
    return Card(
        slug=slug,
        name=study.plan.study,
        title=", ".join([*workloads, *presets]),
        workloads=workloads,
        backends=study.backends,
        machines=tuple(machines) or (NO_MACHINE,),
        date=study.plan.created_at[: len("2026-01-01")],
        trials=f"{num_ok} of {formats.count(len(study.planned), 'trial')} ok",
        brief=brief,
        backend=points[0].backend if points else ", ".join(study.backends),
        shares={mode: shares.get(mode, Share()) for mode in ("weak", "strong")},
        against=_against(points, compared),
        grade=", ".join(filter(None, (grade and grade.letter, level))),
    )


def _share(view: View, point: Point) -> Share:
    assert point.efficiency is not None
    ends = point.efficiency.low, point.efficiency.high
    value, series = point.efficiency.value, view.series(point.backend)
    figure = formats.estimate(point.efficiency, formats.percent)
    return Share(
        text=f"{figure} on {point.num_replicas}",
        bar=bars.from_zero(value, ends, top=1.25, series=series, lines=[1.0]),
        value=value,
    )


def _against(points: Sequence[Point], compared: Sequence[Comparison]) -> str:
    """Writes the ratio to a stock strategy, else to another backend; "" without one."""
    if not points:
        return ""
    pairs = [
        comparison.over(points[0].backend)
        for comparison in compared
        if points[0].mode in comparison.modes
    ]
    ratios = {name: ratio for name, ratio in pairs if ratio is not None}
    for name in (*STOCK, *ratios):
        if name in ratios:
            return (
                f"{formats.estimate(ratios[name], formats.times)} {names.short(name)}"
            )
    return ""


def _cards(stores: Sequence[Store]) -> list[Card]:
    return [
        make_card(view_store(store), slug) for slug, store in placed(stores).items()
    ]


def index_text(stores: Sequence[Store]) -> str:
    return "\n\n".join(
        f"{card.name}: {card.title}, {card.date}, {card.trials}\n  {card.verdict}"
        for card in _cards(stores)
    )


def index_markdown(stores: Sequence[Store]) -> str:
    rows = [card.cells for card in _cards(stores)]
    return "\n".join(formats.markdown_table(INDEX_COLUMNS, rows))


def index_json(stores: Sequence[Store]) -> str:
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
