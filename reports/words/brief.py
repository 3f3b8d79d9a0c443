"""The verdict of the first screen: what a study found, in at most 45 words.

How well it scales, at which N, weak and strong; the largest cause of loss with its
share; how sure that is; which backend is faster; what would settle the rest. Numbers in
parentheses are the ends of 95 % intervals. ``reports/words/verdict.py`` has every
finding in full.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import TYPE_CHECKING

from reports.words import evidence, formats, main_loss, marks, next_step, trust, verdict
from reports.words.marks import Level
from results.records.models import Order, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reports.view.view import View
    from reports.words.marks import Mark
    from results.figures.scaling import Comparison, Point
    from results.statistics.estimates import Estimate

MOST_WORDS = 45
_LONGEST_REASON = 20  # words
_LARGEST = 1000.0
"""An efficiency above this is that of damaged records: its digits say nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Brief:
    """The verdict of the first screen.

    Attributes:
      trust: ``Reliable``, or what limits it; empty if nothing was measured.
      level: The worst of the marks.
      sentences: What was found.
      next_step: What would settle the rest; can be empty.
      next_parts: The same in parts, and whether each is typed as a command.
      note: What numbers in parentheses are, and of how many repetitions; empty where
        nothing was measured.
    """

    trust: str
    level: Level
    sentences: tuple[str, ...]
    next_parts: tuple[tuple[str, bool], ...] = ()
    note: str = ""

    @property
    def next_step(self) -> str:
        """What would settle the rest, as plain text."""
        return "".join(text for text, _ in self.next_parts)

    @property
    def text(self) -> str:
        """All of it, in at most ``MOST_WORDS`` words."""
        parts = [f"{self.trust}:" if self.trust else "", *self.sentences]
        parts.append(f"Next: {self.next_step}." if self.next_step else "")
        return " ".join(part for part in parts if part)


def num_words(text: str) -> int:
    """Counts what is between spaces, hard ones included."""
    return len(text.split())


def judge(view: View) -> Brief:
    """Returns the verdict on a study in at most ``MOST_WORDS`` words."""
    found = marks.of_view(view)
    level = marks.worst(found)
    unfit = trust.why_unfit(view)
    if unfit:
        return _only(unfit, Level.BAD)
    if not view.is_anything_measured:
        return _only(
            nothing_measured(view), Level.BAD, next_step=next_step.after_failures(view)
        )
    points, compared = verdict.findings_of_leader(view)
    if not points:
        text = "Throughput was measured; there is nothing to compare it with."
        return _only(text, level, next_step="`--replicas` with a baseline and more")
    return _shortest(
        level,
        [
            _scaling_variants(points),
            [trust_words(found), trust_words(found, has_names=False)],
            _cause_variants(view, points),
            _comparison_variants(view, points, compared),
        ],
        next_step.choose(view, level, points, compared),
        _note(view, points),
    )


def _only(text: str, level: Level, next_step: str = "") -> Brief:
    parts = _parts_of(next_step)
    return Brief(trust="", level=level, sentences=(text,), next_parts=parts)


def _parts_of(text: str) -> tuple[tuple[str, bool], ...]:
    """Splits text in which backticks enclose what is typed."""
    return tuple(
        (part, bool(number % 2)) for number, part in enumerate(text.split("`")) if part
    )


def _note(view: View, points: Sequence[Point]) -> str:
    """Says what is in parentheses, over how many generations or repetitions.

    And of what a loss is a share, which the verdict may have no room for.
    """
    known = [p.efficiency for p in points if p.efficiency is not None]
    numbers = sorted({estimate.n for estimate in known})
    number = " to ".join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))
    noun = view.repetition if numbers == [1] else view.repetitions
    if not any(estimate.has_interval for estimate in known):
        return f"n = {number} {noun}: no intervals."
    if not any(estimate.is_conclusive for estimate in known):
        return (
            f"In parentheses: intervals of these processes only, n = {number} {noun}."
        )
    text = f"In parentheses: 95{formats.HARD_SPACE}% intervals, n = {number} {noun}"
    if view.study.plan.measuring.order is Order.RELAY:
        text += " of fresh processes"  # what a generation is
    lost = main_loss.loss_of(view, main_loss.worst(points))
    if lost is not None and main_loss.largest(lost) is not None:
        text += "; lost time is a share of a step"
    return f"{text}."


def trust_words(found: Sequence[Mark], *, has_names: bool = True) -> str:
    """Says how far to trust the figures, naming the marks that limit it."""
    level = marks.worst(tuple(found))
    if level is Level.OK:
        return "Reliable"
    words = "Not reliable" if level is Level.BAD else "With caution"
    names = ", ".join(mark.name.lower() for mark in found if mark.level is level)
    return f"{words} ({names})" if has_names else words


def nothing_measured(view: View) -> str:
    """Says why nothing was measured: the commonest reason of the failures."""
    planned = view.study.planned
    failed = [
        entry.reason.rstrip(".")
        for entry in planned
        if entry.state in {status.value for status in TrialStatus}
    ]
    if not failed:
        number = formats.count(len(planned), "planned trial")
        return f"Nothing was measured: none of {number} is ok."
    # The first of equally frequent ones, so that the page is the same in every run.
    ((reason, times_seen),) = collections.Counter(failed).most_common(1)
    words = reason.split()
    if len(words) > _LONGEST_REASON:
        reason = " ".join(words[:_LONGEST_REASON]) + "…"
    of = formats.count(len(planned), "planned trial")
    return f"Nothing was measured: {reason} ({times_seen} of {of})."


def _shortest(
    level: Level, variants: list[list[str]], following: str, note: str
) -> Brief:
    """Takes the long variants, and shortens from the last until the words fit.

    What fits after all is made long again, from the last as well.

    The second one is how far to trust the others: the marks below it have the reasons
    too, so intervals of efficiencies are left out only after them.
    """
    chosen = [0] * len(variants)

    def make() -> Brief:
        first, words, *others = (
            of[index] if of else "" for of, index in zip(variants, chosen, strict=True)
        )
        return Brief(
            trust=words,
            level=level,
            sentences=tuple(text for text in (first, *others) if text),
            next_parts=_parts_of(following),
            note=note,
        )

    while num_words(make().text) > MOST_WORDS:
        longer = [k for k, of in enumerate(variants) if chosen[k] + 1 < len(of)]
        if not longer:
            break
        chosen[longer[-1]] += 1
    # The last step may have made more room than it took.
    for k in reversed(range(len(variants))):
        while chosen[k]:
            chosen[k] -= 1
            if num_words(make().text) > MOST_WORDS:
                chosen[k] += 1
                break
    return make()


def _efficiency_text(point: Point, *, has_interval: bool) -> str:
    efficiency = point.efficiency
    assert efficiency is not None
    is_shown = has_interval and efficiency.low is not None
    if not is_shown or efficiency.high is None or efficiency.high > _LARGEST:
        return formats.percent(efficiency.value)
    # As many decimals as it takes for the ends to differ, but not more than one.
    ends = (100 * (efficiency.low or 0.0), 100 * efficiency.high)
    decimals = int(f"{ends[0]:.0f}" == f"{ends[1]:.0f}")
    value, low, high = (
        f"{number:.{decimals}f}" for number in (100 * efficiency.value, *ends)
    )
    text = f"{value}{formats.THIN_SPACE}%"
    return text if low == high else f"{text} ({low}{formats.ABSENT}{high})"


def _scaling_variants(points: Sequence[Point]) -> list[str]:
    backend = points[0].backend

    def write(*, has_interval: bool) -> str:
        parts: list[str] = []
        before = None
        for point in points:
            part = _efficiency_text(point, has_interval=has_interval)
            if not parts:
                part += " efficiency"
            if point.num_replicas != before:
                part += f" on {formats.count(point.num_replicas, 'replica')}"
            before = point.num_replicas
            parts.append(f"{part} in {point.mode.value} scaling")
        if len(parts) > 1:  # only once
            parts = [*(p.removesuffix(" scaling") for p in parts[:-1]), parts[-1]]
        return f"{backend} keeps {' and '.join(parts)}."

    return [write(has_interval=True), write(has_interval=False)]


def _cause_variants(view: View, points: Sequence[Point]) -> list[str]:
    point = main_loss.worst(points)
    lost = main_loss.loss_of(view, point)
    mode = f" ({point.mode.value})" if len(points) > 1 else ""
    if lost is None and evidence.program_of(view.study) is not None:
        return []
    if lost is None:
        return ["Causes were not recorded.", ""]
    part = main_loss.largest(lost)
    if part is None:
        return ["No single cause of lost time stands out.", ""]
    assert part.share is not None
    share, cause = part.share, main_loss.CAUSES[part.name]
    text = f"Most time lost{mode}: {cause}, {formats.percent(share.value)}"
    if share.low is None or share.high is None:
        return [f"{text} of a step.", f"{text}."]
    ends = f"({100 * share.low:.0f}{formats.ABSENT}{100 * share.high:.0f})"
    return [f"{text} {ends} of a step.", f"{text} {ends}."]


def _comparison_variants(
    view: View, points: Sequence[Point], compared: Sequence[Comparison]
) -> list[str]:
    backend = points[0].backend
    others = [name for name in view.study.backends if name != backend]
    if not others:
        is_program = evidence.program_of(view.study) is not None
        return [] if is_program else [f"Only {backend} was measured."]
    same = [item for item in compared if points[0].mode in item.modes]
    if not same:
        what = others[0] if len(others) == 1 else f"{len(others)} other backends"
        return [f"No comparison with {what}."]
    ratios = []
    for item in same:
        assert item.ratio is not None
        is_first = item.first.spec.backend == backend
        other = item.second if is_first else item.first
        ratios.append((item.ratio, is_first, other.spec.backend))
    conclusive = [
        (ratio, is_first) for ratio, is_first, _ in ratios if ratio.excludes(1.0)
    ]
    wins = [is_first == (ratio.value > 1) for ratio, is_first in conclusive]
    if len(same) > 1:
        if len(wins) == len(same) and all(wins):
            return [f"It is the fastest of {len(same) + 1} backends."]
        num_faster, num_slower = wins.count(False), wins.count(True)
        open_ones = len(same) - len(wins)
        counted = (
            f"Of {len(same)} others, {num_slower} are slower, {num_faster} faster, "
            f"{open_ones} inconclusive."
        )
        return [counted, f"Faster than {num_slower} of {len(same)} others."]
    ratio, is_first, other_name = ratios[0]
    value, ends = _of_leader(ratio, is_first=is_first)
    # The ratio of one mode, where efficiencies of two were just named.
    mode = f" ({points[0].mode.value})" if len(points) > 1 else ""
    figures = f"{value} {ends}".rstrip()
    if not conclusive:
        return [
            f"Against {other_name}{mode}: {figures}, inconclusive.",
            f"Against {other_name}: {figures}, inconclusive.",
            f"Faster than {other_name}? Inconclusive.",
        ]
    text = f"{figures} as fast as {other_name}{mode}."
    return [f"It is {text}", text]


def _of_leader(ratio: Estimate, *, is_first: bool) -> tuple[str, str]:
    """Writes a ratio and its interval from the side of the leading backend."""
    value = ratio.value if is_first else 1 / ratio.value
    low, high = ratio.low, ratio.high
    if low is None or high is None or low <= 0 or not math.isfinite(1 / low + high):
        return formats.times(value), ""
    ends = (low, high) if is_first else (1 / high, 1 / low)
    if ends[1] > _LARGEST:
        return formats.times(value), ""
    return formats.times(value), f"({ends[0]:.2f}{formats.ABSENT}{ends[1]:.2f})"
