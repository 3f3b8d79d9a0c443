"""More replicas are compared with the fewest, where there are seeds enough."""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING, Any

import pytest

from results.figures import learning_gains
from results.study.cases import load_study

if TYPE_CHECKING:
    import pathlib

    from results.study.cases import Study


def study_of(root: pathlib.Path, synthetic: Any, num_runs: int) -> Study:
    """Returns a study with quality runs of one and two replicas."""
    shape = synthetic.Shape(
        backends=("in_graph",),
        repeats=1,
        budget=synthetic.LEARNING,
        num_learning_runs=num_runs,
    )
    return load_study(synthetic.make_store(root, shape))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, synthetic: Any) -> Study:
    """Returns a study with five runs of each case."""
    return study_of(tmp_path_factory.mktemp("gains"), synthetic, 5)


def reached(study: Study, num_replicas: int) -> list[float]:
    """Returns the final top-1 of the runs of a case."""
    return [
        entry.result.curve[-1].quality[0].value
        for case in study.quality_runs
        for entry in case.ok_entries
        if case.spec.num_replicas == num_replicas
    ]


def test_the_target_is_what_the_fewest_replicas_reach(study: Study) -> None:
    """The worst of five runs: all reach it, at their end or before."""
    (found,) = learning_gains.of_study(study)
    first, second = found.cases

    assert min(reached(study, 1)) == found.target
    assert first.examples.num_reached == 5
    assert (5, 5) == (first.seconds.median.n, second.seconds.median.n)
    assert "s" == first.seconds.median.unit


def test_better_is_the_share_of_better_pairs(study: Study) -> None:
    """The fewest replicas are not compared with themselves."""
    (found,) = learning_gains.of_study(study)
    first, second = found.cases
    pairs = [
        1.0 if a > b else 0.5 * (a == b)
        for a in reached(study, 2)
        for b in reached(study, 1)
    ]

    assert first.better is None
    assert second.better is not None
    assert pytest.approx(statistics.mean(pairs)) == second.better.value
    assert second.better.low is not None


def test_two_seeds_are_too_few(tmp_path: pathlib.Path, synthetic: Any) -> None:
    """No table is better than one without intervals."""
    assert () == learning_gains.of_study(study_of(tmp_path, synthetic, 2))


@pytest.mark.parametrize("is_declared", [True, False])
def test_a_metric_of_unknown_direction_is_not_compared(
    study: Study, is_declared: bool
) -> None:
    """Nobody can say what better is: its workload says neither, or nothing."""
    facts = study.metrics["top_1"].model_copy(update={"is_higher_better": None})
    metrics = (facts,) if is_declared else ()
    plan = study.plan.model_copy(update={"metrics": metrics})

    assert () == learning_gains.of_study(dataclasses.replace(study, plan=plan))
