"""Where the time of a step went: its parts, from the controls of a relay."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from markupsafe import Markup

from reports import formats, input_bound, page
from reports.figures import waterfall

if TYPE_CHECKING:
    from collections.abc import Callable

    from reports.view import View
    from results.explain import Explained
    from results.lost_time import LostTime, Part

TITLE = "Where the time went"
SLUG = "lost-time"

NAMES = {
    "alone": "one replica alone",
    "contention": "contention",
    "exposed_communication": "exposed communication",
    "input": "input",
    "imbalance": "imbalance",
    "update": "update",
    "unexplained": "unexplained",
    "step": "step",
}
MEANINGS = {
    "alone": "the work itself, measured with one replica",
    "contention": "programs that never communicate are slower beside each other: "
    "memory bandwidth, caches, clocks",
    "exposed_communication": "what the step waits for collectives",
    "input": "what the step waits for its batches",
    "imbalance": "what the slowest process takes longer than the fastest",
    "update": "the optimizer",
    "unexplained": "what no control takes away",
    "step": "all of it",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """One case as it is shown.

    Attributes:
      item: The case.
      name: Its name.
      figure: The waterfall, or None where nothing could be compared.
      rows: Name, part and meaning of each part, the whole last.
      write: Writes seconds in ms.
      input_bound: What the input pipelines take alone; empty if not measured.
    """

    item: Explained
    name: str
    figure: Markup | None
    rows: tuple[tuple[str, Part, str], ...] = ()
    write: Callable[[float], str] | None = None
    input_bound: str = ""


def writer(lost: LostTime) -> Callable[[float], str]:
    """Returns what writes seconds in ms, all parts with the decimals of the step."""
    whole = 1000 * (lost.step.value_sec or 0.0)
    exponent = math.floor(math.log10(whole)) if whole > 0 else 0
    decimals = max(0, formats.SIGNIFICANT_DIGITS - 1 - exponent)

    def write(value_sec: float) -> str:
        text = f"{1000 * value_sec:.{decimals}f}"
        return text.removeprefix("-") if float(text) == 0 else text

    return write


def with_interval(part: Part, write: Callable[[float], str]) -> str:
    """Writes a part in ms, with its interval if it has one."""
    if part.value_sec is None:
        return formats.ABSENT
    text = write(part.value_sec)
    if part.low_sec is None or part.high_sec is None:
        return text
    return f"{text} {formats.interval(part.low_sec, part.high_sec, write)}"


def _input_text(lost: LostTime) -> str:
    """Says what the input pipelines take alone, or nothing."""
    if lost.input_bound is None:
        return ""
    return input_bound.statement(lost.input_bound, writer(lost))


def name_of(item: Explained) -> str:
    """Names a case by backend and replicas."""
    return f"{item.case.spec.backend} x{item.case.spec.num_replicas}"


def _draw(item: Explained, lost: LostTime, number: int) -> Markup:
    parts = [part for part in lost.parts if part.value_sec is not None] + [lost.step]
    write = writer(lost)
    bars = [
        waterfall.Bar(
            label=waterfall.LABELS.get(part.name, NAMES[part.name]),
            value=1000 * (part.value_sec or 0.0),
            low=None if part.low_sec is None else 1000 * part.low_sec,
            high=None if part.high_sec is None else 1000 * part.high_sec,
            text=write(part.value_sec or 0.0),
            is_total=part.name == "step",
        )
        for part in parts
    ]
    return waterfall.draw(
        bars,
        backend=item.case.spec.backend,
        slug=f"lost-time-{number}",
        title=f"Where the time of a step of {name_of(item)} went",
        description="; ".join(
            f"{NAMES[part.name]} {with_interval(part, write)} ms" for part in parts
        )
        + ".",
        axis_label="ms per step",
    )


def render(view: View) -> Markup:
    """Renders a waterfall and a table per case; nothing without controls."""
    if not view.explained:
        return Markup()
    shown = []
    for number, item in enumerate(view.explained):
        lost = item.lost
        if lost is None:
            shown.append(Shown(item=item, name=name_of(item), figure=None))
            continue
        shown.append(
            Shown(
                item=item,
                name=name_of(item),
                figure=_draw(item, lost, number),
                rows=tuple(
                    (NAMES[part.name], part, MEANINGS[part.name])
                    for part in (*lost.parts, lost.step)
                ),
                write=writer(lost),
                input_bound=_input_text(lost),
            )
        )
    return page.render("lost_time", view=view, shown=shown)


def lines(view: View) -> list[str]:
    """Returns the parts of the case with most of them, in at most seven lines."""
    with_parts = [item for item in view.explained if item.lost is not None]
    if not with_parts:
        return []
    item = max(with_parts, key=lambda item: item.num_measured)
    lost = item.lost
    assert lost is not None
    alone, *others = [part for part in lost.parts if part.value_sec is not None]
    write = writer(lost)
    whole = f"step of {name_of(item)}: {with_interval(lost.step, write)} ms"
    return [
        f"{whole}; {NAMES[alone.name]} {with_interval(alone, write)}",
        *(f"  {NAMES[part.name]} {with_interval(part, write)}" for part in others),
        *(f"  {text}" for text in [_input_text(lost)] if text),
    ]
