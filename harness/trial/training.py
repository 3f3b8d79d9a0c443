"""The part of a quality run after its measured window: training to a budget.

Evaluations split the budget into equal parts. The number of steps of a part is
decided before it starts, from the time of the steps so far, and is the same in all
processes: each with its own clock could stop at a different step, and a step needs all.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Protocol

from results.records.models import BudgetUnit

if TYPE_CHECKING:
    from collections.abc import Callable

    from results.records.models import Budget

# The time of a step is estimated from at most this many of the last ones.
_NUM_RECENT_STEPS = 50


class Trainable(Protocol):
    """The part of ``workloads.spec.StepProgram`` that a quality run needs."""

    global_batch_size: int

    def evaluate(self) -> Any:
        """Returns the quality metrics."""

    def samples(self) -> bytes | None:
        """Returns a picture of what the program makes, as PNG, or None."""

    def num_environment_steps(self) -> int | None:
        """Returns the environment steps of the whole trial so far, or None."""

    def agree(self, value: int) -> int:
        """Returns the value of the first process, in all of them."""


@dataclasses.dataclass(kw_only=True)
class TrainingProgress:
    """How far a program has been trained."""

    step_time_sec: list[float]  # Durations of all steps, the first one included.
    global_batch_size: int  # Examples per step.

    @property
    def num_steps(self) -> int:
        """Steps so far."""
        return len(self.step_time_sec)

    @property
    def num_examples(self) -> int:
        """Examples of the global batch so far; repeated ones count again."""
        return self.num_steps * self.global_batch_size

    @property
    def train_time_sec(self) -> float:
        """Time in steps; the first one is left out, since it traces."""
        return sum(self.step_time_sec[1:])

    def used(self, unit: BudgetUnit) -> float:
        """Returns the part of a budget that was used."""
        return {
            BudgetUnit.SECONDS: self.train_time_sec,
            BudgetUnit.STEPS: self.num_steps,
            BudgetUnit.EXAMPLES: self.num_examples,
        }[unit]

    def per_step(self, unit: BudgetUnit) -> float:
        """Returns the part of a budget that one more step will use."""
        recent = self.step_time_sec[1:][-_NUM_RECENT_STEPS:]
        return {
            BudgetUnit.SECONDS: sum(recent) / len(recent) if recent else math.inf,
            BudgetUnit.STEPS: 1,
            BudgetUnit.EXAMPLES: self.global_batch_size,
        }[unit]


def train(
    program: Trainable,
    budget: Budget,
    progress: TrainingProgress,
    step: Callable[[], None],
    record: Callable[..., None],
    attach: Callable[[str, bytes], None],
    save: Callable[[], None],
) -> list[dict[str, Any]]:
    """Trains until the budget is used up, and measures quality in between."""
    quality: list[dict[str, Any]] = []
    for number in range(1, budget.num_evaluations + 1):
        left = budget.amount * number / budget.num_evaluations
        left -= progress.used(budget.unit)
        num_steps = math.ceil(left / progress.per_step(budget.unit))
        # At least one: each point belongs to a different model.
        for _ in range(program.agree(max(num_steps, 1))):
            step()
        # Before the evaluation, during which actors may continue.
        num_environment_steps = program.num_environment_steps()
        quality = [fields_of(metric) for metric in program.evaluate()]
        samples = program.samples()
        name = f"samples_{progress.num_steps:08}.png" if samples else ""
        if samples:
            attach(name, samples)
        record(
            num_steps=progress.num_steps,
            num_examples=progress.num_examples,
            train_time_sec=progress.train_time_sec,
            num_environment_steps=num_environment_steps,
            quality=quality,
            samples=name,
        )
        save()
    return quality


def fields_of(record: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass, for a line of a rank file."""
    return {name: getattr(record, name) for name in record.__dataclass_fields__}
