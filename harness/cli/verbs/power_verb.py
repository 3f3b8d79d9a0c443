"""The verb ``power``: what a gate can find with the spread of a study."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Annotated

import click
from pydantic import Field

from harness.cli import exit_codes
from harness.cli.shared_options import (
    DEFAULT_ALPHA,
    DEFAULT_DELTA,
    RUNS_DIR,
    Alpha,
    Delta,
    IsJson,
    RunsDir,
    complete_study,
)
from harness.errors import PlanError
from harness.options.durations import duration
from harness.options.notation import PERCENTAGE
from harness.options.option import Option, Options
from harness.planning import defaults
from harness.planning import study as study_module
from reports.words.judging import power as power_table
from results.judging import gate_metrics
from results.judging import power as power_module
from results.records.limits import MAX_SEED
from results.statistics import generations, judge

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cli.verb import Call
    from results.study.cases import Study


MAX_CASES = 100


class PowerRequest(Options):
    """Of which gate the power is shown."""

    study: Annotated[str | None, Option(is_argument=True, complete=complete_study)] = (
        None
    )
    spread: Annotated[
        float | None,
        Option(
            kind=PERCENTAGE,
            help="Standard deviation between generations, such as `3%`.",
            default="that of the study's primary contrast",
        ),
    ] = None
    num_generations: Annotated[
        Annotated[int, Field(ge=2, le=MAX_SEED)] | None,
        Option(
            name="generations",
            help="One look after exactly so many.",
            default="the looks of a gate for which there is time",
        ),
    ] = None
    num_cases: Annotated[
        Annotated[int, Field(ge=1, le=MAX_CASES)] | None,
        Option(
            name="cases",
            help="Cases of the gate; the change is in one of them.",
            default="those of the study, or 1",
        ),
    ] = None
    minutes: Annotated[
        float | None,
        Option(
            kind=duration("min", unit="min"),
            help="Time of the gate; a bare number is minutes.",
            default=f"`{defaults.MINUTES_OF_GATE:g}min`",
        ),
    ] = None
    target: Annotated[
        float | None,
        Option(
            kind=PERCENTAGE,
            help="Half width to check: an error says what it takes, and what the time"
            " reaches.",
        ),
    ] = None
    delta: Delta = DEFAULT_DELTA
    alpha: Alpha = DEFAULT_ALPHA
    runs_dir: RunsDir = RUNS_DIR
    is_json: IsJson = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Spread:
    """A spread, where it is from, and how long a generation takes."""

    value: float
    source: str
    minutes_per_generation: float
    num_cases: int = 1


def run(request: PowerRequest, _: Call) -> int:
    """Prints the tables.

    Raises:
      PlanError: The arguments contradict each other, or the time is too short.
      ResultsError: There is no such study, or it has no spread.
    """
    judge.check_delta(request.delta)
    judge.check_alpha(request.alpha)
    found = _spread(request.study, request.spread, request.runs_dir)
    each = found.minutes_per_generation
    minutes_in_all = (
        defaults.MINUTES_OF_GATE if request.minutes is None else request.minutes
    )
    number = request.num_generations or math.floor(minutes_in_all / each + 1e-9)
    if number < judge.FEWEST_GENERATIONS:
        needed = judge.FEWEST_GENERATIONS * each
        raise PlanError(
            f"--minutes {minutes_in_all:g} is time for {number} generation(s) of"
            f" {each:.1f} min, but a verdict needs {judge.FEWEST_GENERATIONS} or more;"
            f" use --minutes {math.ceil(needed)} or more"
        )
    if request.target is not None:
        _check_target(request.target, found, number)
    table = power_table.calculate(
        found.value,
        power_module.design(
            delta=request.delta,
            alpha=request.alpha,
            num_generations=request.num_generations,
            most=number,
        ),
        source=found.source,
        num_cases=request.num_cases or found.num_cases,
        minutes_per_generation=each,
    )
    click.echo(
        power_table.as_json(table) if request.is_json else power_table.text(table)
    )
    return exit_codes.OK


def _check_target(target: float, found: _Spread, number: int) -> None:
    """Checks that half of all measurements reach a target in their time.

    Raises:
      PlanError: They do not; says what can be reached, and what it takes.
    """
    needed = power_module.generations_for_target(target, found.value)
    if needed is not None and needed <= number:
        return
    each = found.minutes_per_generation
    takes = f"needs more than {power_module.MOST_GENERATIONS} generations"
    advice = ""
    if needed is not None:
        takes = f"needs {needed} generations, about {needed * each:.0f} min"
        advice = f"--minutes {math.ceil(needed * each)} or "
    reached = power_module.median_half_width(found.value, number)
    if number >= generations.FEWEST_TO_STOP:
        reached *= generations.widening(number)
    raise PlanError(
        f"--target {target:.2%} {takes} at a spread of {found.value:.2%}, and"
        f" {number * each:.1f} min are time for {number}, which reach"
        f" {math.expm1(reached):.1%}; use {advice}a wider target"
    )


def _spread(study: str | None, spread: float | None, runs_dir: Path) -> _Spread:
    if study is None and spread is None:
        raise PlanError(
            "power needs a spread between generations: name a study of a relay, or give"
            " one such as --spread 3%"
        )
    usual = defaults.MINUTES / defaults.GENERATIONS
    if study is None:
        assert spread is not None
        return _Spread(
            value=spread,
            source="given",
            minutes_per_generation=usual,
        )
    loaded = study_module.load(study, runs_dir)
    each = _minutes_per_generation(loaded) or usual
    source = "given"
    if spread is None:
        spread, source = _spread_of(loaded)
    return _Spread(
        value=spread,
        source=source,
        minutes_per_generation=each,
        num_cases=len(loaded.cases),
    )


def _minutes_per_generation(study: Study) -> float:
    """Returns how long the timed trials of a generation took, on average."""
    used_sec = sum(
        entry.trial.status.duration_sec
        for entry in study.planned
        if not entry.spec.budget
        and entry.trial is not None
        and entry.trial.status is not None
    )
    return used_sec / 60 / study.plan.repeats


def _spread_of(study: Study) -> tuple[float, str]:
    """Returns the spread of the primary contrast, and its description.

    Raises:
      PlanError: There is no primary contrast, or it has one generation only.
    """
    name, primary = study.plan.study, study.plan.measuring.primary
    if primary is None:
        raise PlanError(
            f"study {name!r} has no primary contrast, so it has no spread; give one,"
            " such as --spread 3%, or measure two backends or replica counts"
        )
    cases = {case.case_id: case for case in (*study.cases, *study.other_revisions)}
    ids = (primary.first_case_id, primary.second_case_id)
    missing = [case_id for case_id in ids if case_id not in cases]
    if missing:
        raise PlanError(
            f"study {name!r} has no case {missing[0]!r}, which its primary contrast"
            " names: its plan is not its own; restore it from a copy, or give --spread"
        )
    first, second = (cases[case_id] for case_id in ids)
    logs = gate_metrics.log_ratios(first, second, gate_metrics.THROUGHPUT)
    if len(logs) < judge.FEWEST_GENERATIONS:
        raise PlanError(
            f"study {name!r} has {len(logs)} generation(s) of {primary.text}, but a"
            f" spread needs {judge.FEWEST_GENERATIONS} or more; measure more"
            " --repeats, or give --spread"
        )
    mean = math.fsum(logs) / len(logs)
    variance = math.fsum((log - mean) ** 2 for log in logs) / (len(logs) - 1)
    return math.sqrt(variance), f"{primary.text}; {len(logs)} generations of {name}"
