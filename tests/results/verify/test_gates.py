"""The verdict of a gate is recomputed by code that shares nothing with the first."""

from __future__ import annotations

import math

import noise_models
import numpy as np
import pytest
from noise_models import Change

from results.statistics import group_sequential, spending
from results.statistics.group_sequential import SUSTAINED, TAIL, TURNS
from results.verify import gates

NAMES = {0: "inconclusive", 1: "pass", 2: "regress", 3: "improve"}


def test_both_have_the_same_levels() -> None:
    """By quadrature, and on a grid; of whole gates and of one that ended early."""
    for looks in ((3, 4, 6, 8, 12), (3, 5)):
        for alpha in (0.05, 0.004):
            expected = spending.nominal_levels(looks, 12, alpha)
            assert expected == pytest.approx(gates.levels(looks, 12, alpha), rel=1e-6)


@pytest.mark.parametrize(
    "change",
    [Change(), Change(every_step=math.log(1.05)), Change(every_50th=10.0)],
    ids=["equal", "slower", "every 50th"],
)
def test_both_say_the_same_of_simulated_gates(change: Change) -> None:
    """Verdict, when, and the interval of each case."""
    planned = group_sequential.planned_looks(0.05)
    logs = noise_models.simulate(
        "this machine", change, num_gates=2, num_generations=17, num_cases=3, seed=8
    )
    of = {TURNS: logs.turns, SUSTAINED: logs.sustained, TAIL: logs.tail}
    design = group_sequential.Design(looks=planned, most=17, delta=0.05, alpha=0.05)
    found = group_sequential.outcomes(of, design)
    for index in range(2):
        plain = {kind.name: values[index].T.tolist() for kind, values in of.items()}
        again = gates.judge(plain, planned=planned, delta=0.05, alpha=0.05)

        assert NAMES[int(found.verdicts[index])] == again.whole
        assert int(found.ends[index]) == again.after
        for case in range(3):
            verdict = int(found.of_cases[TURNS][index, case])
            assert NAMES[verdict] == again.cases[case][0]
            at = int(found.decided_at[TURNS][index, case]) or again.after
            seen = group_sequential.look(of[TURNS][index], TURNS, design, number=at)
            ends = np.exp([seen.mean[case], seen.low[case], seen.high[case]])
            assert ends == pytest.approx(again.cases[case][1:], rel=1e-6)


def test_both_take_the_baseline_from_what_a_case_loses() -> None:
    """Two sizes of one backend, and a backend without a baseline."""
    logs = np.random.default_rng(4).normal(0, 0.03, (5, 3))
    plain = {"turns": logs.T.tolist(), "sustained 99th percentile": logs.T.tolist()}
    sizes = [("a", 1, {"weak", "strong"}), ("a", 2, {"weak"}), ("b", 2, {"weak"})]

    assert gates.of_efficiency(plain, sizes) == {
        "turns": [pytest.approx(logs[:, 1] - logs[:, 0])]
    }
