"""Judges two files of pytest-benchmark by the rule of ``gate``.

The unit is the generation, a fresh process, never the round: the repeats within a
process share its memory layout and caches. The two files were measured at different
times, so they are compared as two studies are (``results/statistics/estimates.py``).
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, Any, Final

import pydantic
from pydantic import AliasChoices, AliasPath, Field

from results import errors
from results.figures.relay import TurnCounts
from results.judging.gate import Gate
from results.judging.gate_metrics import Metric
from results.judging.judged_case import JudgedCase
from results.records.record_base import Seconds
from results.statistics import estimates, group_sequential
from results.store.record_file import first_complaint

if TYPE_CHECKING:
    from pathlib import Path

GENERATION: Final = "generation"
"""In ``extra_info``: the process, where one file holds several."""
TIME_PER_CALL: Final = Metric(name="time_per_call", is_cost=True, worse="slower")

_Fact = Annotated[str | int | None, Field(default=None)]


class Machine(pydantic.BaseModel):
    """What must match before two figures are compared; not the machine's name."""

    cpu_model: _Fact = Field(
        default=None,
        validation_alias=AliasChoices(AliasPath("cpu", "brand_raw"), "processor"),
    )
    num_logical_cores: _Fact = Field(
        default=None, validation_alias=AliasPath("cpu", "count")
    )
    system: _Fact
    kernel: _Fact = Field(default=None, validation_alias="release")
    architecture: _Fact = Field(default=None, validation_alias="machine")
    python_version: _Fact


class Benchmark(pydantic.BaseModel):
    """One benchmark in one process."""

    name: str = Field(validation_alias="fullname")
    generation: int = Field(
        default=0, validation_alias=AliasPath("extra_info", GENERATION)
    )
    median_sec: Seconds = Field(validation_alias=AliasPath("stats", "median"))


class Measured(pydantic.BaseModel):
    """What one file holds."""

    machine: Machine = Field(validation_alias="machine_info")
    benchmarks: tuple[Benchmark, ...] = Field(min_length=1)

    @property
    def names(self) -> list[str]:
        """The benchmarks, in the order in which they were measured."""
        return list(dict.fromkeys(of.name for of in self.benchmarks))

    def logs(self, name: str) -> list[float]:
        """Returns ln(median seconds of a call) in each generation."""
        return [math.log(of.median_sec) for of in self.benchmarks if of.name == name]


def read(path: Path) -> Measured:
    """Reads a file that ``pytest --benchmark-json`` or ``make bench-micro`` wrote."""
    try:
        found = Measured.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except pydantic.ValidationError as error:
        why = first_complaint(error)
    except (OSError, RecursionError, ValueError) as error:
        why = str(error)
    else:
        processes = {(of.name, of.generation) for of in found.benchmarks}
        if len(processes) == len(found.benchmarks):
            return found
        why = "it has a benchmark twice in one process"
    raise errors.ResultsError(
        f"{str(path)!r} has no benchmarks that can be judged: {why}; give a file that"
        " 'make bench-micro' or 'pytest --benchmark-json FILE' wrote"
    )


def judged(
    change: Measured, baseline: Measured, *, name: str, delta: float, alpha: float
) -> Gate:
    """Judges the benchmarks that both files have; one that is gone counts as failed."""
    shared = [of for of in change.names if of in baseline.names]
    if not shared:
        raise errors.ResultsError(
            "the two files have no micro-benchmark in common; the first has"
            f" {', '.join(change.names[:3])}, the second"
            f" {', '.join(baseline.names[:3])}"
        )
    gone = [of for of in baseline.names if of not in change.names]
    return Gate(
        metric=TIME_PER_CALL,
        baseline=name,
        delta=delta,
        alpha=alpha,
        cases=tuple(
            _judged(of, change.logs(of), baseline.logs(of), delta, alpha)
            for of in shared
        ),
        twin=None,
        turns=TurnCounts(num_turns=0, num_void=0, num_lost=0, reasons=()),
        is_weaker=True,
        differences=_differences(change.machine, baseline.machine),
        failures=tuple(f"{of} is in the baseline only" for of in gone),
        num_ok=len(shared),
    )


def _judged(
    name: str, here: list[float], there: list[float], delta: float, alpha: float
) -> JudgedCase:
    fewest = min(len(here), len(there))
    if fewest < group_sequential.FEWEST_GENERATIONS:
        reason = (
            f"{fewest} run(s), a verdict needs"
            f" {group_sequential.FEWEST_GENERATIONS} or more:"
            f" processes differ, and one says nothing about by how much"
        )
        return JudgedCase(name=name, judgement=None, reason=reason)
    mean = estimates.two_groups(here, there)
    judgement = group_sequential.of_mean(mean, delta=delta, alpha=alpha)
    return JudgedCase(name=name, judgement=judgement)


def _differences(first: Machine, second: Machine) -> tuple[str, ...]:
    here: dict[str, Any] = first.model_dump()
    there = second.model_dump()
    return tuple(
        f"{name}: {value!r} and {there[name]!r}"
        for name, value in here.items()
        if value != there[name]
    )
