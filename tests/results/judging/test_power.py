"""What a gate can find: probabilities of its verdicts, and the time that more takes."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from changed_study import with_turns

from results import errors
from results.judging import gate_logs, gate_metrics, power
from results.statistics import generations
from results.statistics.group_sequential import SUSTAINED, TAIL, TURNS, Verdict
from results.study.cases import load_study

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from results.records.models import TrialResult
    from results.study.cases import Case

    Pair = tuple[Case, Case]


SPREAD = 0.03
# Three standard errors of a share of the simulated gates.
TOLERANCE = 3 * (0.25 / power.NUM_GATES) ** 0.5


def one_look(number, alpha=0.05):
    """The rule of a gate with ``--repeats``."""
    return power.design(delta=0.05, alpha=alpha, num_generations=number)


@pytest.mark.parametrize("num_cases", [1, 6])
def test_a_default_gate_decides(num_cases):
    """No change passes, and 5 % of one case are found before the last look."""
    rule = power.design(delta=0.05, alpha=0.05)
    equal, slower = power.operating_points(
        SPREAD, [0.0, 0.05], rule, num_cases=num_cases
    )

    assert equal.passes > 0.95 - TOLERANCE
    assert equal.regresses < 0.05
    assert slower.passes < 0.05
    assert slower.regresses > 0.95 - TOLERANCE
    assert slower.generations < 11
    assert equal.passes + equal.regresses + equal.inconclusive == pytest.approx(1)


def test_a_gate_without_time_for_all_looks_does_not_pass():
    """Five of fifteen generations: what slows one in five is missed in a third."""
    short = power.design(delta=0.05, alpha=0.05, most=5)

    assert ((4, 5), 17) == (short.looks, short.most)
    (equal,) = power.operating_points(SPREAD, [0.0], short, num_cases=6)
    assert 0 == equal.passes


def test_what_each_effect_needs():
    """No change passes, more than delta regresses, and their time is known."""
    same, slow = power.needed([0.0, 0.10], spread=SPREAD, minutes_per_generation=2.5)

    assert (Verdict.PASS, Verdict.REGRESS) == (same.verdict, slow.verdict)
    assert same.num_generations > slow.num_generations
    assert same.minutes == 2.5 * same.num_generations


def test_fewer_generations_are_not_enough():
    """The number is the smallest that has the power; of six cases it is larger."""
    (need,) = power.needed([0.08], spread=SPREAD, minutes_per_generation=1, power=0.9)
    (of_six,) = power.needed(
        [0.0], spread=SPREAD, minutes_per_generation=1, num_cases=6
    )
    (of_one,) = power.needed([0.0], spread=SPREAD, minutes_per_generation=1)
    assert need.num_generations is not None
    for more, is_enough in ((0, True), (-1, False)):
        rule = one_look(need.num_generations + more)
        (point,) = power.operating_points(SPREAD, [0.08], rule)
        assert (point.regresses >= 0.9) is is_enough
    assert 15 == of_six.num_generations == of_one.num_generations


def test_an_effect_just_below_delta_cannot_be_shown_to_be():
    """No number of generations within reason passes it."""
    (need,) = power.needed([0.0499], spread=SPREAD, minutes_per_generation=2.5)

    assert (None, None) == (need.num_generations, need.minutes)


def test_smallest_effect_found_has_the_power():
    """More generations find less; a hopeless number finds nothing."""
    four = power.smallest_effect_found(SPREAD, one_look(4), power=0.9)
    (point,) = power.operating_points(SPREAD, [four], one_look(4))

    assert point.regresses == pytest.approx(0.9, abs=0.02)
    assert power.smallest_effect_found(SPREAD, one_look(8), power=0.9) < four
    assert power.smallest_effect_found(0.001, one_look(20), power=0.9) == 0.05
    assert power.smallest_effect_found(10.0, one_look(2), power=0.9) is None


def test_half_of_all_measurements_reach_the_median_half_width():
    """Simulated with the interval that is reported."""
    generator = np.random.default_rng(4)
    widths = []
    for _ in range(2000):
        estimate = generations.over_generations(generator.normal(0, SPREAD, 4).tolist())
        widths.append(math.log(estimate.high / estimate.low) / 2)

    assert power.median_half_width(SPREAD, 4) == pytest.approx(
        np.median(widths), rel=0.04
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: power.operating_points(0.0, [0], one_look(4)),
            r"spread is 0\.0, must be positive and finite: the standard deviation",
        ),
        (
            lambda: one_look(1),
            r"num_generations is 1, must be 2 or more: one says nothing about",
        ),
        (
            lambda: power.design(delta=-0.05, alpha=0.05),
            r"delta is -0\.05, must be more than 0 and at most 1",
        ),
        (
            lambda: one_look(4, alpha=0.7),
            r"alpha is 0\.7, must be more than 0 and less than 0\.5",
        ),
        (
            lambda: power.operating_points(SPREAD, [-1.0], one_look(4)),
            r"effect is -1\.0, must be a ratio above -1: 0\.05 is 5 % slower",
        ),
        (
            lambda: power.needed([0], spread=SPREAD, minutes_per_generation=0),
            r"minutes_per_generation is 0, must be positive and finite",
        ),
        (
            lambda: power.needed(
                [0], spread=SPREAD, minutes_per_generation=1, power=1.0
            ),
            r"power is 1\.0, must be more than 0 and less than 1: the probability of",
        ),
        (
            lambda: power.operating_points(SPREAD, [0], one_look(4), num_cases=0),
            r"num_cases is 0, must be 1 or more: those that the gate judges",
        ),
        (
            lambda: power.median_half_width(math.nan, 4),
            r"spread is nan, must be positive and finite",
        ),
        (
            lambda: generations.check_target(0),
            r"target is 0, must be a positive ratio",
        ),
    ],
)
def test_arguments_out_of_range_are_refused(call, message):
    with pytest.raises(errors.ResultsError, match=message):
        call()


@pytest.fixture
def pairs(tmp_path: Path, synthetic: Any) -> list[Pair]:
    """Two cases and their baselines: every third block is a stretch, some are void."""
    shape = synthetic.Shape(
        backends=("in_graph",),
        modes=(synthetic.WEAK,),
        repeats=3,
        num_rounds=12,
        noise=0.05,
        is_evaluated=False,
        revisions={"1234567890ab": 1.1},
        twin_factor=None,
    )
    study = load_study(synthetic.make_store(tmp_path / "s", shape))

    def fields(entry: Any) -> dict[str, Any]:
        gap = 4 + entry.spec.num_replicas
        return {
            "is_sustained": lambda turn: turn.round_index % 3 == 0,
            "void_reason": lambda turn: "x" * (turn.round_index % gap == 3),
        }

    study = with_turns(study, fields)
    return list(zip(study.cases, study.other_revisions, strict=True))


def blocks(result: TrialResult) -> dict[int, float]:
    """Returns seconds per step of valid blocks by round."""
    return {
        turn.round_index: (turn.end_ns - turn.start_ns) / 1e9 / turn.num_steps
        for turn in result.turns
        if not turn.void_reason and not turn.is_sustained
    }


def stretches(result: TrialResult) -> dict[int, list[float]]:
    """Returns the steps of valid stretches by round; a step ends with its last rank."""
    all_ranks = zip(*(rank.step_time_sec for rank in result.ranks), strict=True)
    steps = [max(of) for of in all_ranks]
    found = {}
    for turn in result.turns:
        own, steps = steps[: turn.num_steps], steps[turn.num_steps :]
        if turn.is_sustained and not turn.void_reason:
            found[turn.round_index] = own
    return found


def percentile(steps: list[float]) -> float:
    """Returns the 99th, between the two nearest steps in proportion."""
    ordered = sorted(steps)
    place = 0.99 * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def of_turns(here: TrialResult, there: TrialResult) -> float:
    """Returns the mean log ratio of the rounds that both have."""
    ours, theirs = blocks(here), blocks(there)
    rounds = ours.keys() & theirs.keys()
    return statistics.fmean(math.log(ours[r] / theirs[r]) for r in rounds)


def of_stretches(
    here: TrialResult, there: TrialResult, how: Callable[[list[float]], float]
) -> float:
    """Returns the log ratio of a figure of all steps of the rounds that both have."""
    ours, theirs = stretches(here), stretches(there)
    rounds = sorted(ours.keys() & theirs.keys())
    both = ([step for r in rounds for step in of[r]] for of in (ours, theirs))
    return math.log(how(next(both)) / how(next(both)))


def test_slowdowns_of_blocks_and_stretches(pairs: list[Pair]) -> None:
    """By generation and case, of what both sides have."""
    found = gate_logs.of_pairs(pairs, gate_metrics.THROUGHPUT)

    assert [TURNS, SUSTAINED, TAIL] == list(found)
    for column, (case, other) in enumerate(pairs):
        assert case.spec.num_replicas == other.spec.num_replicas
        for row, entries in enumerate(zip(case.entries, other.entries, strict=True)):
            here, there = (entry.result for entry in entries)
            plain = {
                TURNS: of_turns(here, there),
                SUSTAINED: of_stretches(here, there, statistics.fmean),
                TAIL: of_stretches(here, there, percentile),
            }
            got = {kind: values[row, column] for kind, values in found.items()}
            assert pytest.approx(plain, rel=1e-9) == got


def test_efficiency_is_what_a_case_loses_beyond_its_baseline(pairs: list[Pair]) -> None:
    """Of blocks and means of stretches; a ratio has no percentile."""
    whole = gate_logs.of_pairs(pairs, gate_metrics.THROUGHPUT)
    found = gate_logs.of_pairs(pairs, gate_metrics.EFFICIENCY)

    assert [TURNS, SUSTAINED] == list(found)
    for kind, values in found.items():
        own, base = whole[kind][:, 1], whole[kind][:, 0]
        assert values[:, 0] == pytest.approx(own - base)
