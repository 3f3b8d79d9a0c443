"""Log slowdowns of blocks and stretches are what plain numbers say."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

import pytest
from changed_study import with_turns

from results.judging import gate_logs, gate_metrics
from results.statistics.group_sequential import SUSTAINED, TAIL, TURNS
from results.study.cases import load_study

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from results.records.models import TrialResult
    from results.study.cases import Case

    Pair = tuple[Case, Case]


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
