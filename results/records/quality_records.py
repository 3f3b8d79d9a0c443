"""Records of learning quality: budgets, what metrics mean, and their figures."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

from pydantic import Field

from results.records import limits
from results.records.record_base import (
    Amount,
    FileName,
    Fraction,
    Line,
    Name,
    PositiveTotal,
    Real,
    Record,
    Total,
)


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


# Only reading an older plan uses this table (``results/records/upgrade.py``). A metric
# of today is declared in its workload, and its facts are in the plan.

_ALL = "the whole held-out split"
_IMAGES = "generated images against the training images"
_WINDOW = "over the measured window"
_TOLERANCE = 0.05

# Name: title, unit, whether more is better, how it was measured.
_LEARNED: dict[str, dict[str, tuple[str, str, bool, str]]] = {
    "resnet50": {
        "top_1": ("Top-1 accuracy", "ratio", True, _ALL),
        "top_5": ("Top-5 accuracy", "ratio", True, _ALL),
    },
    "sngan": {
        "fid": ("FID", "1", False, _IMAGES),
        "kid": ("KID", "1", False, _IMAGES),
        "inception_score": ("Inception Score", "1", True, "generated images"),
        "recognised": ("Recognised", "ratio", True, "generated images"),
    },
    "d4pg": {
        "episode_return": ("Episode return", "return", True, "episodes without noise"),
    },
}
# Name: unit, whether more is better.
_OF_WINDOW: dict[str, dict[str, tuple[str, bool | None]]] = {
    "d4pg": {
        "learner_steps_per_sec": ("learner steps/s", True),
        "transitions_per_sec": ("transitions/s", True),
        "clipped_target_share": ("ratio", False),
        "environment_steps_per_sec": ("environment steps/s", True),
        "learner_wait_share": ("ratio", False),
        "finished_episodes": ("episodes", None),
        "policy_lag": ("learner steps", False),
        "refused_environment_steps": ("environment steps", False),
        "replaced_actors": ("actors", False),
        "replay_ratio": ("transitions/step", None),
        "actor_idle_share": ("ratio", False),
    },
}


def of_workload(workload: object) -> list[dict[str, Any]]:
    """Returns the facts as a plan stores them; none of a workload that is unknown."""
    learned = _LEARNED.get(str(workload), {})
    found = [
        _facts(name, title, unit, is_higher_better, protocol)
        for name, (title, unit, is_higher_better, protocol) in learned.items()
    ]
    for name, (unit, is_higher_better) in _OF_WINDOW.get(str(workload), {}).items():
        title = name.replace("_", " ").replace(" per sec", " per second").capitalize()
        facts = _facts(name, title, unit, is_higher_better, _WINDOW)
        found.append({**facts, "is_of_window": True})
    return found


def _facts(
    name: str, title: str, unit: str, is_higher_better: bool | None, protocol: str
) -> dict[str, Any]:
    return {
        "name": name,
        "title": title,
        "unit": unit,
        "is_higher_better": is_higher_better,
        "tolerance": _TOLERANCE,
        "protocol": protocol,
    }
