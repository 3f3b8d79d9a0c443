"""A verdict that holds what varies between days, against known truth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from results import errors
from results.judging import day_effect
from results.judging.gate_metrics import THROUGHPUT, Rule
from results.statistics import estimates, judge
from results.statistics.judge import Verdict
from results.study import cases

if TYPE_CHECKING:
    import pathlib

NUM_GATES = 1000
DAY, GENERATION = 0.02, 0.03
NUM_GENERATIONS = 8


def _shares(num_days: int, num_cases: int, slowdown: float) -> tuple[float, float]:
    """Gates that regress, and that pass: the day slows all cases down together."""
    generator = np.random.default_rng([num_days, num_cases])
    rule = Rule(metric=THROUGHPUT, delta=0.05, alpha=0.05)
    regressed = passed = 0
    for _ in range(NUM_GATES):
        days = DAY * generator.standard_normal(num_days + 1)
        noise = GENERATION / NUM_GENERATIONS**0.5
        costs = days[:, None] + noise * generator.standard_normal(
            (num_days + 1, num_cases)
        )
        costs[-1, -1] += np.log1p(slowdown)
        verdicts = [
            day_effect.of_mean(
                day_effect.one_more_day(costs[-1, index], list(costs[:-1, index])),
                rule,
                num_cases=num_cases,
            ).verdict
            for index in range(num_cases)
        ]
        regressed += Verdict.REGRESS in verdicts
        passed += verdicts[-1] in {Verdict.PASS, Verdict.IMPROVE}
    return regressed / NUM_GATES, passed / NUM_GATES


@pytest.mark.parametrize(("num_days", "num_cases"), [(3, 1), (5, 1), (5, 6), (10, 6)])
def test_a_day_effect_makes_no_false_regression(num_days: int, num_cases: int) -> None:
    """Within three standard errors of 0.05; without days it was 0.16 to 0.37."""
    regressed, _ = _shares(num_days, num_cases, 0.0)
    _, passed = _shares(num_days, num_cases, 0.05)

    most = 0.05 + 3 * (0.05 * 0.95 / NUM_GATES) ** 0.5
    assert regressed <= most
    assert passed <= most


def test_without_days_the_same_gates_regress() -> None:
    """What the interval over generations alone says of equal programs."""
    generator = np.random.default_rng(5)
    regressed = 0
    for _ in range(NUM_GATES):
        here, there = DAY * generator.standard_normal((2, 1)) + (
            GENERATION * generator.standard_normal((2, NUM_GENERATIONS))
        )
        found = judge.of_mean(
            estimates.two_groups(list(here), list(there)),
            delta=0.05,
            alpha=0.05,
            method="",
        )
        regressed += found.verdict is Verdict.REGRESS
    assert regressed / NUM_GATES > 0.1


def test_a_large_slowdown_is_found() -> None:
    """Ten days, of 2 % each: 15 % in one case of six."""
    regressed, _ = _shares(10, 6, 0.15)

    assert regressed > 0.95


def _on(root: pathlib.Path, synthetic: Any, name: str) -> cases.Study:
    return cases.load_study(
        synthetic.make_store(root / name, synthetic.Shape(name=name))
    )


def test_studies_of_one_day_say_nothing_of_others(
    tmp_path: pathlib.Path, synthetic: Any
) -> None:
    """All synthetic trials started on one day."""
    first, second = (_on(tmp_path, synthetic, name) for name in ("a", "b"))

    with pytest.raises(
        errors.ResultsError,
        match=r"studies 'a' and 'b' were both measured on 20\d\d-\d\d-\d\d, which says",
    ):
        day_effect.check(first, [second])


@pytest.mark.parametrize("num_others", [0, 1])
def test_too_few_days_are_refused(
    tmp_path: pathlib.Path, synthetic: Any, monkeypatch: Any, num_others: int
) -> None:
    """Two days have one difference, and no spread worth the name."""
    monkeypatch.setattr(day_effect, "day_of", lambda study: study.plan.study)
    first, *others = (
        _on(tmp_path, synthetic, f"day{index}") for index in range(num_others + 1)
    )

    with pytest.raises(
        errors.ResultsError,
        match=rf"{num_others + 1} day\(s\) say too little .*; name 2 or more studies",
    ):
        day_effect.check(first, others)


def test_equal_studies_of_three_days_are_accepted(
    tmp_path: pathlib.Path, synthetic: Any, monkeypatch: Any
) -> None:
    """And one of other settings is not."""
    first, *others = (_on(tmp_path, synthetic, name) for name in ("a", "b", "c"))
    monkeypatch.setattr(day_effect, "day_of", lambda study: study.plan.study)
    day_effect.check(first, others)

    shape = synthetic.Shape(name="d", fingerprints=("00" * 10,))
    other = cases.load_study(synthetic.make_store(tmp_path / "d", shape))
    with pytest.raises(
        errors.ResultsError, match=r"study 'd' differs from 'a' \(machine fingerprint"
    ):
        day_effect.check(first, [*others, other])
