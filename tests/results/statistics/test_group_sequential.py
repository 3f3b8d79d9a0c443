"""A gate that looks several times errs no more often than stated, on unlike noise."""

import math

import noise_models
import numpy as np
import pytest
from noise_models import Change

from results.statistics import group_sequential
from results.statistics.group_sequential import (
    PASSED,
    REGRESSED,
    SUSTAINED,
    TAIL,
    TURNS,
    Design,
)

LOOKS = group_sequential.planned_looks(0.05)
DESIGN = Design(looks=LOOKS, most=LOOKS[-1], delta=0.05, alpha=0.05)

NUM_GATES = 150
# Three standard errors of a share near 0.95 of so many gates.
TOLERANCE = 3 * (0.95 * 0.05 / NUM_GATES) ** 0.5


def ends(change, model="this machine", num_gates=NUM_GATES):
    """How gates of six cases end."""
    logs = noise_models.simulate(
        model,
        change,
        num_gates=num_gates,
        num_generations=LOOKS[-1],
        num_cases=6,
        seed=5,
    )
    of = {TURNS: logs.turns, SUSTAINED: logs.sustained, TAIL: logs.tail}
    return group_sequential.outcomes(of, DESIGN)


def share(found, verdict):
    return float((found.verdicts == verdict).mean())


@pytest.mark.parametrize("model", ["this machine", "heavy tails"])
def test_equal_programs_pass(model):
    """At least 0.92 of gates; few regress."""
    found = ends(Change(), model)

    assert share(found, PASSED) > 0.92 - TOLERANCE
    assert share(found, REGRESSED) < 0.05 + TOLERANCE
    assert found.ends.mean() < 16


@pytest.mark.parametrize(
    "change",
    [
        Change(every_step=math.log(1.05)),
        Change(every_50th=10.0, num_cases=None),
        Change(process_in_five=math.log(1.5), num_cases=None),
    ],
    ids=["5 % of one case", "every 50th step", "one process in five"],
)
def test_slowdowns_regress(change):
    """Also those that are not in every step, or not in every process."""
    found = ends(change)

    assert share(found, REGRESSED) > 0.95 - TOLERANCE
    assert share(found, PASSED) < 0.05 + TOLERANCE


def test_turns_alone_miss_a_step_in_fifty():
    """A mean of logarithms sees a part of what it costs: the reason for stretches."""
    logs = noise_models.simulate(
        "this machine",
        Change(every_50th=10.0, num_cases=None),
        num_gates=40,
        num_generations=6,
        num_cases=3,
        seed=5,
    )

    assert logs.turns.mean() < math.log(1.2) / 2
    assert logs.sustained.mean() > 0.8 * math.log(1.2)


def test_levels_spend_the_error_and_no_more():
    """Brownian motion crosses the bounds of all looks with the stated probability."""
    from scipy import special

    looks, alpha = (3, 4, 6, 8, 12), 0.05
    levels = group_sequential.nominal_levels(looks, 12, alpha)
    steps = np.random.default_rng(3).standard_normal((40_000, 12))
    paths = steps.cumsum(axis=1)[:, [look - 1 for look in looks]] / np.sqrt(looks)
    crossed = (paths > special.ndtri(1 - np.asarray(levels))).any(axis=1)

    assert crossed.mean() == pytest.approx(alpha, abs=0.0035)
    assert group_sequential.nominal_levels((7,), 7, alpha) == pytest.approx((alpha,))


def test_a_gate_that_ends_early_has_not_spent_all():
    """The time was over after five of twelve generations."""
    looks = group_sequential.looks_until(5, (3, 4, 6, 8, 12))

    assert (3, 4, 5) == looks
    assert sum(group_sequential.nominal_levels(looks, 12, 0.05)) < 0.05


def test_a_case_without_numbers_stays_undecided():
    """The other one has passed once enough generations were seen."""
    logs = np.full((1, LOOKS[-1], 2), np.nan)
    logs[0, :, 0] = np.resize([-0.001, 0.001, 0.0], LOOKS[-1])
    found = group_sequential.outcomes({TURNS: logs}, DESIGN)

    assert [PASSED, group_sequential.UNDECIDED] == found.of_cases[TURNS][0].tolist()
    assert group_sequential.fewest_to_pass(0.05) == found.decided_at[TURNS][0, 0]
    assert group_sequential.UNDECIDED == found.verdicts[0]


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.2])
def test_a_pass_needs_generations_that_show_what_slows_one_in_five(alpha):
    """So many that all are quick with a probability of alpha at most."""
    fewest = group_sequential.fewest_to_pass(alpha)

    assert 0.8**fewest < alpha < 0.8 ** (fewest - 3)
    assert fewest in group_sequential.planned_looks(alpha)


def test_intervals_are_as_wide_as_the_dependence_that_is_not_ruled_out():
    """Wider for few generations, for neighbours that agree, and for shared noise."""
    noise = np.random.default_rng(1).standard_normal((500, 20, 6))
    few, many, one, alike, shared = (
        float(group_sequential.widening(of - of.mean(axis=1, keepdims=True)).mean())
        for of in (
            noise[:, :5],
            noise,
            noise[:, :, :1],
            noise.cumsum(axis=1),
            np.broadcast_to(noise[:, :, :1], noise.shape),
        )
    )

    assert 1 < many < few < 2
    assert many < one == pytest.approx(shared)
    assert alike > 2.5


def test_single_processes_are_judged_by_their_sign():
    """A generation counts once, to the side of most of its cases."""
    design = Design(looks=(8,), most=8, delta=0.05, alpha=0.05)
    both, one = np.zeros((8, 6)), np.zeros((8, 6))
    both[0, :4], both[1, :4] = 0.4, -0.4
    for generation in range(8):
        one[generation, generation % 6] = 0.4

    assert not group_sequential.singles(both, design, number=8).holds
    found = group_sequential.singles(one, design, number=8)
    assert found.holds
    assert (8, 0) == (int(found.num_slower), int(found.num_faster))
