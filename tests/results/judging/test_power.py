"""What a gate can find, the time that more takes, and the slowdowns that it judges."""

import math
from statistics import fmean

import numpy as np
import pytest
from study_files import with_blocks

import results
from results import judging, load_study, statistics
from results.statistics import BLOCKS, SUSTAINED, TAIL, Verdict

SPREAD = 0.03
# Three standard errors of a share of the simulated gates.
TOLERANCE = 3 * (0.25 / 2000) ** 0.5


def one_look(number, alpha=0.05):
    """The rule of a gate with ``--repeats``."""
    return statistics.planned_design(delta=0.05, alpha=alpha, num_repetitions=number)


def needed(effect, **fields):
    defaults = {"spread": SPREAD, "minutes_per_repetition": 2.5}
    (found,) = statistics.needed([effect], **defaults | fields)
    return found


def test_a_default_gate_decides():
    rule = statistics.planned_design(delta=0.05, alpha=0.05)
    equal, slower = statistics.operating_points(SPREAD, [0.0, 0.05], rule, num_cases=6)

    assert equal.passes > 0.95 - TOLERANCE
    assert equal.regresses < 0.05
    assert slower.passes < 0.05
    assert slower.regresses > 0.95 - TOLERANCE
    assert slower.repetitions < 11
    assert equal.passes + equal.regresses + equal.inconclusive == pytest.approx(1)


def test_a_gate_without_time_for_all_looks_does_not_pass():
    short = statistics.planned_design(delta=0.05, alpha=0.05, most=5)
    (equal,) = statistics.operating_points(SPREAD, [0.0], short, num_cases=6)

    assert ((4, 5), 17) == (short.looks, short.most)
    assert 0 == equal.passes


def test_what_each_effect_needs():
    same, slow, hopeless = needed(0.0), needed(0.10), needed(0.0499)
    found = needed(0.08)

    assert (Verdict.PASS, Verdict.REGRESS) == (same.verdict, slow.verdict)
    assert same.num_repetitions > slow.num_repetitions
    assert same.minutes == 2.5 * same.num_repetitions
    assert 15 == same.num_repetitions == needed(0.0, num_cases=6).num_repetitions
    assert (None, None) == (hopeless.num_repetitions, hopeless.minutes)
    for fewer, is_enough in ((0, True), (1, False)):
        rule = one_look(found.num_repetitions - fewer)
        (point,) = statistics.operating_points(SPREAD, [0.08], rule)
        assert (point.regresses >= 0.9) is is_enough


def test_smallest_effect_found_has_the_power():
    four = statistics.smallest_effect_found(SPREAD, one_look(4))
    (point,) = statistics.operating_points(SPREAD, [four], one_look(4))

    assert point.regresses == pytest.approx(0.9, abs=0.02)
    assert statistics.smallest_effect_found(SPREAD, one_look(8)) < four
    assert statistics.smallest_effect_found(0.001, one_look(20)) == 0.05
    assert statistics.smallest_effect_found(10.0, one_look(2)) is None


def test_half_of_all_measurements_reach_the_median_half_width():
    generator = np.random.default_rng(4)
    found = map(statistics.over_repetitions, generator.normal(0, SPREAD, (2000, 4)))
    widths = [math.log(estimate.high / estimate.low) / 2 for estimate in found]

    assert statistics.median_half_width(SPREAD, 4) == pytest.approx(
        np.median(widths), rel=0.04
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: one_look(1), "num_repetitions is 1, must be 2 or more"),
        (lambda: needed(0, spread=0.0), "spread is 0.0, must be positive and finite"),
    ],
)
def test_arguments_out_of_range_are_refused(call, message):
    with pytest.raises(results.ResultsError, match=message):
        call()


@pytest.fixture(scope="module")
def pairs(make, synthetic):
    """Two cases and their baselines: every third block is a stretch, some are
    discarded.
    """
    fields = {"num_rounds": 12, "noise": 0.05, "aa_factor": None}
    study = load_study(make(synthetic.gate_shape(slower=1 / 1.1, **fields)))

    def fields(entry):
        gap = 4 + entry.spec.num_replicas
        return {
            "is_sustained": lambda block: block.round_index % 3 == 0,
            "discard_reason": lambda block: "x" * (block.round_index % gap == 3),
        }

    study = with_blocks(study, fields)
    return list(zip(study.cases, study.other_revisions, strict=True))


def steps_by_round(result, *, is_sustained):
    """The steps of valid blocks or stretches; a step ends with its last rank."""
    all_ranks = zip(*(rank.step_time_sec for rank in result.ranks), strict=True)
    steps = [max(of) for of in all_ranks]
    found = {}
    for block in result.blocks:
        own, steps = steps[: block.num_steps], steps[block.num_steps :]
        if block.is_sustained == is_sustained and not block.discard_reason:
            sec = (block.end_ns - block.start_ns) / 1e9 / block.num_steps
            found[block.round_index] = own if is_sustained else [sec]
    return found


def percentile(steps):
    """The 99th, between the two nearest steps in proportion."""
    ordered = sorted(steps)
    rank = 0.99 * (len(ordered) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (rank - below) * (ordered[above] - ordered[below])


def slowdown(here, there, kind):
    """By other code: the log ratio of the rounds that both sides have."""
    ours, theirs = (
        steps_by_round(of, is_sustained=kind is not BLOCKS) for of in (here, there)
    )
    rounds = sorted(ours.keys() & theirs.keys())
    if kind is BLOCKS:
        return fmean(math.log(ours[r][0] / theirs[r][0]) for r in rounds)
    figure = fmean if kind is SUSTAINED else percentile
    both = [figure([step for r in rounds for step in of[r]]) for of in (ours, theirs)]
    return math.log(both[0] / both[1])


def test_slowdowns_of_blocks_and_stretches(pairs):
    found = judging.slowdown_logs(pairs, judging.metric_of("throughput"))

    assert [BLOCKS, SUSTAINED, TAIL] == list(found)
    for column, (case, other) in enumerate(pairs):
        for row, entries in enumerate(zip(case.entries, other.entries, strict=True)):
            here, there = (entry.result for entry in entries)
            for kind, values in found.items():
                expected = slowdown(here, there, kind)
                assert pytest.approx(expected, rel=1e-9) == values[row, column]


def test_efficiency_is_what_a_case_loses_beyond_its_baseline(pairs):
    whole, found = (
        judging.slowdown_logs(pairs, judging.metric_of_gate(name, ()))
        for name in ("throughput", "efficiency")
    )

    assert [BLOCKS, SUSTAINED] == list(found)
    for kind, values in found.items():
        own, base = whole[kind][:, 1], whole[kind][:, 0]
        assert values[:, 0] == pytest.approx(own - base)
