"""Records of learning quality: budgets, what metrics mean, and their figures."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import Field

from results.records import limits
from results.records.bounds import (
    Amount,
    FileName,
    Fraction,
    Line,
    Name,
    PositiveTotal,
    Real,
    Total,
)
from results.records.record_base import Record


class BudgetUnit(str, Enum):
    """Unit of a quality run's budget; seconds count its training steps only."""

    SECONDS = "seconds"
    STEPS = "steps"
    EXAMPLES = "examples"


class Budget(Record):
    """How long a quality run trains, and how often its quality is measured."""

    amount: float = Field(gt=0, le=limits.MAX_BUDGET)
    unit: BudgetUnit
    num_evaluations: int = Field(
        ge=1,
        le=limits.MAX_EVALUATIONS,
        description="evenly spaced, the last at the end",
    )

    def __str__(self) -> str:
        return f"{self.amount:g} {self.unit.value}"


class MetricFacts(Record):
    """What the figures of a metric mean, as its workload declares it."""

    name: Name
    title: Name = Field(description="what readers call it")
    unit: Name
    is_higher_better: bool | None = Field(
        description="which way it gets better; null if neither way is better"
    )
    tolerance: float = Field(
        gt=0, lt=1, description="loss, relative to a baseline, that its gate accepts"
    )
    protocol: Line = Field(description="how it is measured, on how many examples")
    is_of_window: bool = Field(
        default=False,
        description="a rate of the measured window, not what was learned",
    )

    @property
    def is_judged(self) -> bool:
        """Whether a gate can say which of two results is better."""
        return self.is_higher_better is not None and not self.is_of_window


class QualityMetric(Record):
    """One learning-quality figure with its count and interval."""

    name: Name
    value: Real
    unit: Name
    num_examples: PositiveTotal = Field(description="n")
    low: Real
    high: Real
    confidence: Fraction = 0.95
    method: Line
    protocol: Line = Field(
        default="",
        description="what else the figure depends on; two protocols share no axis",
    )


Metrics = Annotated[tuple[QualityMetric, ...], Field(max_length=limits.MAX_METRICS)]


class QualityPoint(Record):
    """Quality at one point of a quality run; counts include all its steps so far."""

    num_steps: PositiveTotal
    num_examples: PositiveTotal = Field(description="steps times the global batch size")
    train_time_sec: Amount = Field(
        description="of all steps except the first, which traces; no evaluation"
    )
    num_environment_steps: Total | None = Field(
        default=None, description="of all actors so far; None without any"
    )
    quality: Metrics
    samples: FileName = Field(
        default="", description="file in the trial's directory: a picture, as PNG"
    )
