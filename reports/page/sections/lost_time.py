"""Where the time of a step went: from controls, else from what turns record."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any, Final

from reports.charts import rows, style, svg
from reports.page import page
from reports.words import formats, verdict
from results.figures import scaling

if TYPE_CHECKING:
    from markupsafe import Markup

    from reports.view import View
    from reports.words.formats import Write
    from results.figures.lost_time import Explained, LostTime, Part
    from results.statistics.estimates import Estimate

MOST_FIGURES: Final = 8
FINEST_SHARE: Final = 0.001
"""Of a step: an interval that is narrower is shown as one number."""
_GIGA: Final = 1e9

PARTS: Final = {
    "alone": (
        "one replica alone",
        "the step of one replica, with its own input and update",
    ),
    "ideal": (
        "ideal: one replica, scaled",
        "the step of the baseline, times the examples per replica relative to it",
    ),
    "computing": (
        "more CPU time",
        (
            "the same examples take more CPU time: shared caches and memory bandwidth,"
            " smaller batches, the work of collectives"
        ),
    ),
    "core_wait": (
        "waiting for a core",
        "threads that could run have no core: others have it",
    ),
    "idle": (
        "idle cores",
        "cores without work: waiting for collectives, the slowest replica or input",
    ),
    "contention": (
        "contention",
        (
            "programs that never communicate are slower beside each other: memory"
            " bandwidth, caches, clocks"
        ),
    ),
    "exposed_communication": (
        "exposed communication",
        "what the step waits for collectives",
    ),
    "input": (
        "input",
        "what the step waits for its batches, longer than one replica does",
    ),
    "imbalance": (
        "imbalance",
        "what the slowest process takes longer than the fastest",
    ),
    "update": ("update", "what the optimizer takes longer than at one replica"),
    "unexplained": ("unexplained", "what no other part has"),
    "step": ("step", "all of it"),
}
"""The name of each part, and what it means."""
_INPUT: Final = {
    "input-bound": "faster replicas would wait for their batches",
    "not input-bound": "its batches arrive before they are needed",
    "inconclusive": "whether it is input-bound is inconclusive",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ShownLoss:
    """One case as it is shown."""

    item: Explained  # The case.
    name: str  # Its name.
    figure: Markup | None = None  # The waterfall; None where nothing was comparable.
    # Name, part and meaning of each part, the whole last.
    rows: tuple[tuple[str, Part, str], ...] = ()
    write: Write | None = None  # Writes seconds in ms.
    input_bound: str = ""  # What the input pipelines take alone; empty if not measured.


def _writer(lost: LostTime) -> Write:
    """Returns what writes seconds in ms, all parts with the decimals of the step."""
    whole = 1000 * (lost.step.value_sec or 0.0)
    exponent = math.floor(math.log10(whole)) if whole > 0 else 0
    decimals = max(0, formats.SIGNIFICANT_DIGITS - 1 - exponent)
    return lambda value_sec: formats.ratio(1000 * value_sec, decimals)


def _with_interval(part: Part, write: Write) -> str:
    return formats.with_interval(part.value_sec, part.low_sec, part.high_sec, write)


def _input_text(lost: LostTime) -> str:
    bound = lost.input_bound
    if bound is None:
        return ""
    sec = bound.input_sec
    return (
        f"{bound.verdict}: the input pipelines alone take"
        f" {formats.with_interval(sec.value, sec.low, sec.high, _writer(lost))} ms,"
        f" {verdict.fraction_text(bound)} of the step; {_INPUT[bound.verdict]}"
    )


def _name_of(item: Explained) -> str:
    return f"{item.case.spec.backend} x{item.case.spec.num_replicas}"


def _draw(backend: str, name: str, lost: LostTime, slug: str) -> Markup:
    parts = [part for part in lost.parts if part.value_sec is not None] + [lost.step]
    write = _writer(lost)
    bars = [
        rows.Row(
            backend=backend,
            label=rows.PART_LABELS.get(part.name, PARTS[part.name][0]),
            value=1000 * (part.value_sec or 0.0),
            low=None if part.low_sec is None else 1000 * part.low_sec,
            high=None if part.high_sec is None else 1000 * part.high_sec,
            text=write(part.value_sec or 0.0),
            tip=svg.of_value(
                f"{name}: {PARTS[part.name][0]}",
                part.value_sec or 0.0,
                write,
                interval=(part.low_sec, part.high_sec),
                n=lost.num_generations,
                unit="ms per step",
            ),
        )
        for part in parts
    ]
    described = (f"{PARTS[of.name][0]} {_with_interval(of, write)} ms" for of in parts)
    return svg.draw(
        rows.size_of(bars),
        functools.partial(rows.draw_parts, rows=bars, look=style.PAGE),
        slug=slug,
        title=f"Where the time of a step of {name} went",
        description=f"{'; '.join(described)}.",
    )


def render(view: View) -> Markup:
    """Renders a waterfall and a table per case; nothing where nothing is known."""
    explained = [
        _show(item, _name_of(item), f"lost-time-{number}")
        for number, item in enumerate(view.explained)
    ]
    # The most replicas of each backend and mode: they ascend. A table has all.
    largest = {
        (item.case.spec.backend, item.mode): item
        for item in view.recorded
        if item.lost is not None and not item.case.is_oversubscribed
    }
    recorded = [
        _show(item, f"{_name_of(item)}, {item.mode.value}", f"recorded-{number}")
        for number, item in enumerate([*largest.values()][:MOST_FIGURES])
    ]
    if not explained and not recorded:
        return page.NOTHING
    return page.render(
        "lost_time",
        view=view,
        explained=explained,
        recorded=recorded,
        all_recorded=[item for item in view.recorded if item.lost is not None],
        parts_by_name=PARTS,
        utilisation=_utilisation(view),
        write_share=_write_share,
    )


def _write_share(share: Estimate) -> Write:
    """Returns what writes a share, with digits that tell the ends of its interval."""
    if share.low is None or share.high is None or share.high - share.low < FINEST_SHARE:
        return formats.percent
    return formats.telling(share, formats.percent)


def _show(item: Explained, name: str, slug: str) -> ShownLoss:
    lost = item.lost
    if lost is None:
        return ShownLoss(item=item, name=name)
    return ShownLoss(
        item=item,
        name=name,
        figure=_draw(item.case.spec.backend, name, lost, slug),
        rows=tuple(
            (PARTS[part.name][0], part, PARTS[part.name][1])
            for part in (*lost.parts, lost.step)
        ),
        write=_writer(lost),
        input_bound=_input_text(lost),
    )


def _utilisation(view: View) -> dict[str, Any] | None:
    """Returns what cases reach of the rate of matrix products on the same devices.

    That rate is in GFLOP/s per replica; None where it was not measured.
    """
    shown = []
    peaks: list[float] = []
    for case in view.measured_cases:
        estimate = scaling.of_trials(case, "flop_utilisation").estimate
        if estimate is None:
            continue
        spec = case.spec
        figure = formats.estimate(estimate, formats.percent)
        size, batch = spec.num_replicas, spec.per_replica_batch_size
        shown.append((spec.backend, size, batch, figure, estimate.n))
        peaks += [
            sum(rank.peak_flops_per_sec or 0.0 for rank in entry.result.ranks)
            / (size * _GIGA)
            for entry in case.ok_entries
        ]
    if not shown:
        return None
    ends = [*map(formats.significant, (min(peaks), max(peaks)))]
    return {"peak": formats.span(ends), "rows": shown}


def lines(view: View) -> list[str]:
    """Returns the parts of the case with most of them, in at most seven lines."""
    with_parts = [item for item in view.explained if item.lost is not None]
    if not with_parts:
        return []
    item = max(with_parts, key=lambda item: item.num_measured)
    lost = item.lost
    assert lost is not None
    write = _writer(lost)
    alone, *others = [
        f"{PARTS[part.name][0]} {_with_interval(part, write)}"
        for part in lost.parts
        if part.value_sec is not None
    ]
    whole = f"step of {_name_of(item)}: {_with_interval(lost.step, write)} ms"
    more = [text for text in [*others, _input_text(lost)] if text]
    return [f"{whole}; {alone}", *(f"  {text}" for text in more)]
