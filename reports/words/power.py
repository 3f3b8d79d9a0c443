"""What a gate can find, as a table."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import TYPE_CHECKING

from results.judging import power

if TYPE_CHECKING:
    from collections.abc import Sequence

    from results.judging.power import Need, OperatingPoint

EFFECTS = (0.0, 0.02, 0.05, 0.08, 0.10)
"""True slowdowns in the tables, beside delta."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Power:
    """What generations of a given spread can find.

    Attributes:
      spread: Standard deviation of the log ratio over generations.
      source: Where it is from, in words.
      num_generations: Of the gate in the first table.
      minutes_per_generation: Start-up included.
      delta: The slowdown that matters, as a ratio.
      alpha: The probability that a slowdown of exactly ``delta`` passes.
      points: The probability of each verdict, by true slowdown.
      needs: What the correct verdict takes, by true slowdown.
      half_width: Median half width of a 95 % interval, as a ratio.
      smallest: The smallest slowdown that is found in 9 of 10 gates, as a ratio; None
        if none is.
    """

    spread: float
    source: str
    num_generations: int
    minutes_per_generation: float
    delta: float
    alpha: float
    points: tuple[OperatingPoint, ...]
    needs: tuple[Need, ...]
    half_width: float
    smallest: float | None


def text(found: Power) -> str:
    """Writes it for a terminal."""
    minutes = found.num_generations * found.minutes_per_generation
    lines = [
        f"spread between generations: {found.spread:.2%} ({found.source})",
        (
            f"a slowdown of {found.delta:.1%} matters, and passes with probability"
            f" {found.alpha:.1%}"
        ),
        "",
        (
            f"probability of each verdict, {found.num_generations} generations,"
            f" {minutes:.1f} min:"
        ),
        "true change   pass  improve  regress  inconclusive",
    ]
    lines += [
        f"{point.effect:+10.1%}  {point.passes:5.3f}  {point.improves:7.3f}"
        f"  {point.regresses:7.3f}  {point.inconclusive:12.3f}"
        for point in found.points
    ]
    lines += [
        "",
        f"for the correct verdict in {power.DEFAULT_POWER:.0%} of gates:",
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


def as_json(found: Power) -> str:
    """Writes it as data."""
    return json.dumps(dataclasses.asdict(found), indent=2)


def calculate(
    spread: float,
    *,
    source: str,
    num_generations: int,
    minutes_per_generation: float,
    delta: float,
    alpha: float,
    effects: Sequence[float] = EFFECTS,
) -> Power:
    """Calculates both tables.

    Raises:
      ResultsError: An argument that is out of range.
    """
    shown = sorted({*effects, delta})
    half_width = power.median_half_width(spread, num_generations)
    return Power(
        spread=spread,
        source=source,
        num_generations=num_generations,
        minutes_per_generation=minutes_per_generation,
        delta=delta,
        alpha=alpha,
        points=power.operating_points(
            spread, num_generations, delta, shown, alpha=alpha
        ),
        needs=power.needed(
            shown,
            spread=spread,
            minutes_per_generation=minutes_per_generation,
            delta=delta,
            alpha=alpha,
        ),
        half_width=math.expm1(half_width),
        smallest=power.smallest_effect_found(
            spread, num_generations, delta=delta, alpha=alpha
        ),
    )
