"""Input-bound: what the pipelines take alone, against the step and one replica."""

import numpy as np
import pytest
from relay_study import ALL, Lost, RelayShape, make_store

from results.figures import explain, input_bound
from results.figures.lost_time import PARTS, Observed, decompose
from results.records.models import Control
from results.study.cases import load_study

CASE = np.array([0.100, 0.101, 0.099, 0.100])


@pytest.mark.parametrize(
    ("fraction", "baseline", "verdict", "explains_loss"),
    [
        (0.97, 0.050, "input-bound", True),
        (0.97, 0.099, "input-bound", False),  # one replica is as slow
        (0.60, 0.050, "not input-bound", False),
        (0.30, 0.020, "not input-bound", False),
    ],
)
def test_pipelines_that_take_the_whole_step_bound_it(
    fraction, baseline, verdict, explains_loss
):
    """They explain a loss where they take longer than one replica's step, too."""
    found = input_bound.judge(CASE, baseline * CASE / 0.100, fraction * CASE)

    assert verdict == found.verdict
    assert fraction == pytest.approx(found.fraction.value)
    assert explains_loss is found.explains_loss


def test_an_interval_around_the_limit_is_inconclusive():
    """Nine tenths lie between generations that are above and below."""
    factors = np.array([0.85, 0.97, 0.88, 0.93])
    found = input_bound.judge(CASE, 0.5 * CASE, factors * CASE)

    assert "inconclusive" == found.verdict
    assert not found.explains_loss


def test_one_generation_is_inconclusive():
    """It has no interval, whatever its value."""
    found = input_bound.judge(CASE[:1], CASE[:1] / 2, CASE[:1])

    assert ("inconclusive", None) == (found.verdict, found.fraction.low)
    assert 1.0 == found.fraction.value


def test_what_pipelines_take_alone_is_no_part_of_the_step():
    """They run beside it: the parts add up without them."""
    case, alone = (dict.fromkeys(range(3), t) for t in (0.1, 0.05))
    plain = decompose(Observed(case=case, baseline=alone))
    found = decompose(
        Observed(case=case, baseline=alone, input_only=dict.fromkeys(range(3), 0.098))
    )

    assert plain.parts == found.parts
    assert PARTS == tuple(part.name for part in found.parts)
    assert plain.input_bound is None
    assert found.input_bound is not None
    assert pytest.approx(0.098) == found.input_bound.input_sec.value


@pytest.mark.parametrize(
    ("pipelines", "verdict"), [(0.063, "input-bound"), (0.010, "not input-bound")]
)
def test_the_turns_of_the_control_judge_its_case(tmp_path, pipelines, verdict):
    """A step of 64 ms, and pipelines that take 63 or 10 of them alone."""
    shape = RelayShape(
        lost={"in_graph": Lost(input=0.008, pipelines=pipelines)},
        controls=(*ALL, Control.INPUT_ONLY),
    )
    (item,) = explain.explain(load_study(make_store(tmp_path, shape)))

    assert item.lost is not None
    assert item.lost.input_bound is not None
    assert verdict == item.lost.input_bound.verdict
    assert (verdict == "input-bound") is item.lost.input_bound.explains_loss
    assert pytest.approx(pipelines, rel=0.1) == item.lost.input_bound.input_sec.value


def test_a_study_without_the_control_says_nothing(tmp_path):
    """Neither that a step is input-bound, nor that it is not."""
    (item,) = explain.explain(load_study(make_store(tmp_path, RelayShape())))

    assert item.lost is not None
    assert item.lost.input_bound is None
