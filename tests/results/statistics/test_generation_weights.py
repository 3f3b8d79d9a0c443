"""A generation in which all cases are off counts less, whatever the sign."""

from __future__ import annotations

import math

import numpy as np
import pytest

from results.statistics import generation_weights, group_sequential
from results.statistics.group_sequential import SUSTAINED, TURNS

DESIGN = group_sequential.Design(delta=0.05, alpha=0.05)
SPOILT = 2


def _logs(*, num_generations: int = 8, num_cases: int = 6) -> np.ndarray:
    """Six cases, one of whose generations is spoilt: 15 % to either side."""
    generator = np.random.default_rng(7)
    logs = generator.normal(0, 0.02, (num_generations, num_cases))
    if num_generations > SPOILT:
        logs[SPOILT] += 0.15 * np.resize([1.0, -1.0], num_cases)
    return logs


def test_a_spoilt_generation_counts_least() -> None:
    """Less than a tenth of the others; the sign of all does not matter."""
    logs = _logs()
    (found,) = generation_weights.weights(logs).T
    others = np.delete(found, SPOILT)

    assert found[SPOILT] < 0.1 * others.min()
    assert others.max() < 2.5 * others.min()
    assert generation_weights.weights(-logs)[:, 0] == pytest.approx(found)


def test_a_slowdown_of_one_case_changes_no_weight() -> None:
    """Deviations are from the median of the case."""
    logs = _logs()
    slower = logs.copy()
    slower[:, 3] += math.log(1.05)

    assert generation_weights.weights(slower) == pytest.approx(
        generation_weights.weights(logs)
    )


@pytest.mark.parametrize(
    ("num_generations", "num_cases"), [(3, 6), (8, 2), (8, 1), (1, 6)]
)
def test_few_of_either_count_alike(num_generations: int, num_cases: int) -> None:
    """Nobody knows then whether a case or a generation is off."""
    logs = _logs(num_generations=num_generations, num_cases=num_cases)

    assert (generation_weights.weights(logs) == 1).all()


def test_generations_with_a_gap_count_alike() -> None:
    """A trial that failed is in no median."""
    logs = _logs()
    logs[0, 0] = math.nan

    assert (generation_weights.weights(logs) == 1).all()


def test_intervals_of_turns_are_narrower_by_it_and_of_stretches_are_not() -> None:
    """A step in fifty that is slow is in single stretches: none of them is left out."""
    logs = _logs()
    turns, sustained = (
        group_sequential.look(logs, kind, DESIGN, number=8)
        for kind in (TURNS, SUSTAINED)
    )

    assert (turns.high - turns.mean < 0.5 * (sustained.high - sustained.mean)).all()
    assert sustained.mean == pytest.approx(logs.mean(axis=0))


def test_equal_generations_are_judged_as_before() -> None:
    """Without a spread, weights are equal, and the mean is the mean."""
    logs = np.tile(np.linspace(-0.01, 0.01, 6), (5, 1))
    found = group_sequential.look(logs, TURNS, DESIGN, number=5)

    assert found.mean == pytest.approx(logs[0])
