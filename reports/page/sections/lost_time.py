"""Where the time of a step went: from controls, else from what turns record."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING

from reports.charts import rows, style, svg
from reports.page import page
from reports.words import formats, utilisation

if TYPE_CHECKING:
    from collections.abc import Callable

    from markupsafe import Markup

    from reports.view.view import View
    from results.figures.lost_time import Explained, LostTime, Part
    from results.statistics.estimates import Estimate

MOST_FIGURES = 8
FINEST_SHARE = 0.001
"""Of a step: an interval that is narrower is shown as one number."""

NAMES = {
    "alone": "one replica alone",
    "ideal": "ideal: one replica, scaled",
    "computing": "more CPU time",
    "core_wait": "waiting for a core",
    "idle": "idle cores",
    "contention": "contention",
    "exposed_communication": "exposed communication",
    "input": "input",
    "imbalance": "imbalance",
    "update": "update",
    "unexplained": "unexplained",
    "step": "step",
}
MEANINGS = {
    "alone": "the step of one replica, with its own input and update",
    "ideal": "the step of the baseline, times the examples per replica relative to it",
    "computing": "the same examples take more CPU time: shared caches and memory "
    "bandwidth, smaller batches, the work of collectives",
    "core_wait": "threads that could run have no core: others have it",
    "idle": "cores without work: waiting for collectives, the slowest replica or input",
    "contention": "programs that never communicate are slower beside each other: "
    "memory bandwidth, caches, clocks",
    "exposed_communication": "what the step waits for collectives",
    "input": "what the step waits for its batches, longer than one replica does",
    "imbalance": "what the slowest process takes longer than the fastest",
    "update": "what the optimizer takes longer than at one replica",
    "unexplained": "what no other part has",
    "step": "all of it",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ShownLoss:
    """One case as it is shown."""

    item: Explained  # The case.
    name: str  # Its name.
    figure: Markup | None  # The waterfall, or None where nothing could be compared.
    # Name, part and meaning of each part, the whole last.
    rows: tuple[tuple[str, Part, str], ...] = ()
    write: Callable[[float], str] | None = None  # Writes seconds in ms.
    input_bound: str = ""  # What the input pipelines take alone; empty if not measured.


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
    return formats.with_interval(part.value_sec, part.low_sec, part.high_sec, write)


def _input_text(lost: LostTime) -> str:
    """Says what the input pipelines take alone, or nothing."""
    if lost.input_bound is None:
        return ""
    return utilisation.statement(lost.input_bound, writer(lost))


def name_of(item: Explained) -> str:
    """Names a case by backend and replicas."""
    return f"{item.case.spec.backend} x{item.case.spec.num_replicas}"


def _draw(backend: str, name: str, lost: LostTime, slug: str) -> Markup:
    parts = [part for part in lost.parts if part.value_sec is not None] + [lost.step]
    write = writer(lost)
    bars = [
        rows.Row(
            backend=backend,
            label=rows.PART_LABELS.get(part.name, NAMES[part.name]),
            value=1000 * (part.value_sec or 0.0),
            low=None if part.low_sec is None else 1000 * part.low_sec,
            high=None if part.high_sec is None else 1000 * part.high_sec,
            text=write(part.value_sec or 0.0),
            tip=svg.of_value(
                f"{name}: {NAMES[part.name]}",
                part.value_sec or 0.0,
                write,
                interval=(part.low_sec, part.high_sec),
                n=lost.num_generations,
                unit="ms per step",
            ),
        )
        for part in parts
    ]
    return svg.draw(
        rows.size_of(bars),
        functools.partial(rows.draw_parts, rows=bars, look=style.PAGE),
        slug=slug,
        title=f"Where the time of a step of {name} went",
        description="; ".join(
            f"{NAMES[part.name]} {with_interval(part, write)} ms" for part in parts
        )
        + ".",
    )


def render(view: View) -> Markup:
    """Renders a waterfall and a table per case; nothing where nothing is known."""
    explained = [
        _show(item, name_of(item), f"lost-time-{number}")
        for number, item in enumerate(view.explained)
    ]
    recorded = [
        _show(item, f"{name_of(item)}, {item.mode.value}", f"recorded-{number}")
        for number, item in enumerate(_largest(view.recorded))
    ]
    if not explained and not recorded:
        return page.NOTHING
    return page.render(
        "lost_time",
        view=view,
        explained=explained,
        recorded=recorded,
        all_recorded=[item for item in view.recorded if item.lost is not None],
        names=NAMES,
        utilisation=utilisation.of_view(view),
        write_share=_write_share,
    )


def _write_share(share: Estimate) -> Callable[[float], str]:
    """Returns what writes a share, with digits that tell the ends of its interval."""
    if share.low is None or share.high is None or share.high - share.low < FINEST_SHARE:
        return formats.percent
    return formats.telling(share, formats.percent)


def _largest(items: tuple[Explained, ...]) -> list[Explained]:
    """Returns those at the most replicas of each backend and mode; a table has all."""
    found: dict[tuple[str, str], Explained] = {}
    for item in items:
        if item.lost is not None and not item.case.is_oversubscribed:
            # Replicas ascend, so the last one wins.
            found[item.case.spec.backend, item.mode.value] = item
    return list(found.values())[:MOST_FIGURES]


def _show(item: Explained, name: str, slug: str) -> ShownLoss:
    lost = item.lost
    if lost is None:
        return ShownLoss(item=item, name=name, figure=None)
    return ShownLoss(
        item=item,
        name=name,
        figure=_draw(item.case.spec.backend, name, lost, slug),
        rows=tuple(
            (NAMES[part.name], part, MEANINGS[part.name])
            for part in (*lost.parts, lost.step)
        ),
        write=writer(lost),
        input_bound=_input_text(lost),
    )


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
