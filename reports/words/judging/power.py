"""What a gate can find, as a table."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from reports.words import formats
from results.judging import power

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.judging.power import Need, OperatingPoint
    from results.statistics.group_sequential import Design

EFFECTS = (0.0, 0.02, 0.05, 0.08, 0.10)
"""True slowdowns in the tables, beside delta."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Power:
    """What a gate finds at a given spread."""

    spread: float  # Standard deviation of the log ratio over generations.
    source: str  # Where it is from, in words.
    num_cases: int  # Cases of the gate; the change is in one of them.
    looks: tuple[int, ...]  # After how many generations it looks.
    num_generations: int  # At its last look.
    minutes_per_generation: float  # Start-up included.
    delta: float  # The slowdown that matters, as a ratio.
    alpha: float  # The accepted probability of an error of either kind.
    points: tuple[OperatingPoint, ...]  # The share of each verdict, by true slowdown.
    # What the correct verdict takes with one look, by true slowdown.
    needs: tuple[Need, ...]
    half_width: float  # Median half width of a 95 % interval, as a ratio.
    # The smallest slowdown that is found in 9 of 10 gates, as a ratio; None if none is.
    smallest: float | None
    num_gates: int = power.NUM_GATES  # Simulated gates behind each share.


def text(found: Power) -> str:
    """Writes it for a terminal."""
    minutes = found.num_generations * found.minutes_per_generation
    cases = formats.count(found.num_cases, "case")
    when = f"one look after {found.num_generations} generations"
    if len(found.looks) > 1:
        when = f"looks after {', '.join(map(str, found.looks))} generations"
    lines = [
        f"spread between generations: {found.spread:.2%} ({found.source})",
        (
            f"a slowdown of {found.delta:.1%} of one case matters, and passes with"
            f" probability {found.alpha:.1%} at most"
        ),
        "",
        (
            f"share of verdicts of gates of {cases}, simulated {found.num_gates} times;"
            f" {when}, at most {minutes:.1f} min:"
        ),
        "true change   pass  regress  inconclusive  generations",
    ]
    lines += [
        f"{point.effect:+10.1%}  {point.passes:5.3f}  {point.regresses:7.3f}"
        f"  {point.inconclusive:12.3f}  {point.generations:11.1f}"
        for point in found.points
    ]
    lines += [
        "",
        (
            f"for the correct verdict in {power.DEFAULT_POWER:.0%} of gates with one"
            " look (--repeats):"
        ),
        "true change  verdict  generations   minutes",
    ]
    lines += [_need_line(need) for need in found.needs]
    smallest = "none"
    if found.smallest is not None:
        smallest = f"+{found.smallest:.1%}"
    lines += [
        "",
        (
            f"in {minutes:.1f} min ({found.num_generations} generations): half"
            f" of all 95 % intervals are within +-{found.half_width:.1%}; the smallest"
            f" slowdown found in {power.DEFAULT_POWER:.0%} of gates: {smallest}"
        ),
    ]
    return "\n".join(lines)


def _need_line(need: Need) -> str:
    number = f"> {power.MOST_GENERATIONS}"
    minutes = "-"
    if need.num_generations is not None and need.minutes is not None:
        number, minutes = str(need.num_generations), f"{need.minutes:.1f}"
    return f"{need.effect:+10.1%}   {need.verdict.value:7}  {number:>11}  {minutes:>8}"


def calculate(
    spread: float,
    rule: Design,
    *,
    source: str,
    num_cases: int,
    minutes_per_generation: float,
    effects: Sequence[float] = EFFECTS,
) -> Power:
    """Calculates both tables."""
    shown = sorted({*effects, rule.delta})
    last = rule.looks[-1]
    return Power(
        spread=spread,
        source=source,
        num_cases=num_cases,
        looks=rule.looks,
        num_generations=last,
        minutes_per_generation=minutes_per_generation,
        delta=rule.delta,
        alpha=rule.alpha,
        points=power.operating_points(spread, shown, rule, num_cases=num_cases),
        needs=power.needed(
            shown,
            spread=spread,
            minutes_per_generation=minutes_per_generation,
            num_cases=num_cases,
            delta=rule.delta,
            alpha=rule.alpha,
        ),
        half_width=math.expm1(power.median_half_width(spread, last)),
        smallest=power.smallest_effect_found(spread, rule, num_cases=num_cases),
    )
