"""Intervals and gates are right as often as they say: a small part of every simulation.

``make statistics`` simulates thousands of sweeps, gates and studies.
"""

import json
import math

import gate_claims
import numpy as np
import page_claims
import pytest
import run_simulations
from gate_claims import CASES, DEPENDENT, MOST, TOO_SLOW, TRUTHS, shares
from scipy import stats

from results import judging, statistics

SEED = 3


def assert_covers(num_covered, n, stated=0.95, *, extra=0.0):
    """Within three standard errors of what is stated."""
    error = 3 * (stated * (1 - stated) / n) ** 0.5
    assert num_covered / n == pytest.approx(stated, abs=error + extra)


def test_sentences_of_pages_are_worth_what_is_claimed():
    rows = list(page_claims.quick_rows(60, SEED))

    simulated = {row.name for row in rows} | {page_claims.OF_BLOCKS}
    beside_load = {page_claims.BUSY, page_claims.BESIDE}
    named = {*page_claims.ROWS.values(), *(row for _, row in page_claims.SENTENCES)}
    assert 17 == len(rows)
    assert {None} == named - simulated - beside_load
    assert [] == [row.name for row in rows if row.misses(page_claims.CERTAIN_ERRORS)]


@pytest.mark.parametrize("model", ["this machine", "tails, 4 degrees"])
def test_sentences_of_gates_are_worth_what_is_claimed(model):
    rows = gate_claims.rows_of_model(model, 120, SEED)

    assert [] == [row for row in rows if row.is_broken]
    assert max(row.repetitions for row in rows) < 16


NUM_GATES = 300


def beyond(share):
    """Three standard errors above a share of so many gates."""
    return share + 3 * (share * (1 - share) / NUM_GATES) ** 0.5


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("num_cases", CASES)
@pytest.mark.parametrize("name", TRUTHS)
def test_gates_seldom_err(name, num_cases):
    most = MOST[name in DEPENDENT]
    for number in (None, 5, 20):
        options = {"num_gates": NUM_GATES, "seed": SEED, "number": number}
        for effect in TOO_SLOW:
            passes, _ = shares(name, effect, num_cases, **options)
            assert passes <= beyond(most["pass"]), (number, effect)
        _, regresses = shares(name, 0.0, num_cases, **options)
        assert regresses <= beyond(most["regress"]), number
    if name == "normal noise":
        of = {"num_gates": NUM_GATES, "seed": SEED}
        assert shares(name, 0.0, num_cases, **of)[0] > 0.95
        assert shares(name, 0.05, num_cases, **of)[1] > 0.95
        assert shares(name, 0.08, num_cases, **of)[1] > 0.99


def test_pages_have_the_rates_of_their_own_configuration():
    rates = judging.stated_rates(2, None, 0.05)
    few, many = (judging.stated_rates(1, number, 0.05) for number in (7, 100))

    assert 0.02 < rates.passes <= MOST[False]["pass"]
    assert rates.passes_dependent <= MOST[True]["pass"]
    assert 0 == few.passes < many.passes
    assert judging.stated_rates(2, None, 0.01) is None


def test_the_rates_that_ship_are_those_of_the_simulation():
    passes, _ = shares("slow in one run of five", 0.08, 3, num_gates=2000, seed=SEED)
    stated = 0.8 ** statistics.planned_looks(0.05)[-2]

    assert passes == pytest.approx(stated, abs=3 * (0.04 / 2000) ** 0.5)
    rows = json.loads(gate_claims.RATES.read_text(encoding="utf-8"))
    assert CASES[1] in {row["cases"] for row in rows}
    assert not list(gate_claims.broken(rows, 4000))


@pytest.mark.parametrize(
    ("of_design", "options", "most_sec"),
    [
        (run_simulations.fixed, {"num_repetitions": 5}, 541),
        # With a target that takes about ten repetitions.
        (run_simulations.sequential, {"target": 0.03}, 2000),
        (run_simulations.one_repetition, {"is_truth_of_processes": True}, 541),
    ],
    ids=["default", "stopped on width", "these processes only"],
)
def test_designs_cover_as_stated(of_design, options, most_sec):
    found = of_design(300, 22, **options)

    assert_covers(found.num_covered, 300)
    assert found.median_half_width < 0.06
    assert found.median_sec < most_sec


@pytest.mark.parametrize(
    ("numbers", "spreads", "drift"),
    [
        ((3, 3), (0.03, 0.02), 0.10),
        ((3, 3), (0.01, 0.03), 0.0),
    ],
)
def test_ratios_of_trials_cover_as_stated(numbers, spreads, drift):
    generator = np.random.default_rng([*numbers, 7])
    num_covered = 0
    for _ in range(1500):
        first, second = (
            generator.normal(0, spread, number)
            for number, spread in zip(numbers, spreads, strict=True)
        )
        if drift:
            shared = generator.normal(0, drift, numbers[0])
            first, second = first + shared, second + shared
        ratio = statistics.ratio(
            dict(enumerate(1.7 * np.exp(first))),
            {key if drift else -1 - key: v for key, v in enumerate(np.exp(second))},
        )
        assert ("paired log ratios" in ratio.method) == bool(drift)
        num_covered += not ratio.excludes(1.7)

    assert_covers(num_covered, 1500, extra=0.0 if drift else 0.01)


def test_what_the_methods_say_of_other_intervals_and_noise_is_true():
    generator = np.random.default_rng(3)
    samples = generator.normal(0, 0.03, (1500, 3))
    indices = generator.integers(0, 3, (999, 3))
    low, high = np.quantile(samples[:, indices].mean(axis=2), [0.025, 0.975], axis=1)
    skewed = [
        statistics.geometric_mean(np.exp(-of).tolist(), unit="").excludes(np.exp(-0.03))
        for of in generator.exponential(0.03, (1500, 3))
    ]

    coverage = np.mean((low <= 0) & (high >= 0))
    # As the section on the method says.
    assert coverage == pytest.approx(0.74, abs=0.03)
    assert 1 - np.mean(skewed) == pytest.approx(0.90, abs=0.03)


def test_the_interval_of_repetitions_that_agree_holds_the_truth():
    generator = np.random.default_rng(31)
    shape = (2000, 5)
    rounds = 0.5 / 20**0.5 * generator.standard_normal((*shape, 1))
    rounds = 0.1 * (rounds + generator.standard_normal((*shape, 20)))
    found = [statistics.over_rounds(of) for of in rounds]
    plain = [statistics.over_repetitions(of.mean(axis=1)) for of in rounds]
    agree = np.array(
        [one.high > other.high for one, other in zip(found, plain, strict=True)]
    )
    covered, before = (
        np.array([not of.excludes(1.0) for of in which]) for which in (found, plain)
    )

    assert 0.15 < agree.mean() < 0.35
    assert before[agree].mean() < 0.88
    assert 0.89 < covered[agree].mean() < 0.98
    assert 0.95 < covered.mean() < 0.99
    assert 0.93 < before.mean() < 0.965


@pytest.mark.parametrize(("n", "truth"), [(3, 100.0), (20, 100.0), (8, 150.0)])
def test_times_to_a_target_are_covered_as_stated(n, truth):
    generator = np.random.default_rng(n)
    budget, num_covered = 130.0, 0
    for _ in range(1000):
        amounts = truth * np.exp(generator.normal(0, 0.6, n))
        times = [
            statistics.Time(amount=min(a, budget), is_reached=bool(a <= budget))
            for a in amounts
        ]
        found = statistics.median_time(times, unit="s").median
        # An end beyond the budget is known to be there, and not where.
        num_covered += min(found.low, budget) <= truth <= found.high

    share, stated = num_covered / 1000, found.confidence
    assert not page_claims.misses(share, stated, None, 1000, page_claims.CERTAIN_ERRORS)
    if truth < budget:
        assert_covers(num_covered, 1000, stated)


def widening(number):
    """By how much intervals of so many repetitions are wider that decided to stop."""
    logs = [[float(index % 2)] for index in range(number)]
    stopped, planned = (
        statistics.over_rounds(logs, is_stopped_on_width=of) for of in (True, False)
    )
    halves = [math.log(of.high / of.value) for of in (stopped, planned)]
    return halves[0] / halves[1]


TARGETS = (2.0, 1.2, 0.8, 0.6, 0.5, 0.45, 0.4)
"""Half widths in standard deviations; they take from 5 to about 25 repetitions."""


def coverage_of_stopping(target, *, is_widened=True):
    """The rule of ``is_precise_enough`` for all studies at once, on normal numbers."""
    generator = np.random.default_rng(5)
    logs = generator.standard_normal((20_000, 60))
    numbers = np.arange(1, 61)
    centres = logs.cumsum(axis=1) / numbers
    squares = (logs**2).cumsum(axis=1) - numbers * centres**2
    quantiles = [np.inf, *stats.t.ppf(0.975, numbers[:-1])]
    factors = [1.0, *(widening(n) if is_widened else 1.0 for n in numbers[1:])]
    variances = np.maximum(squares, 0) / np.maximum(numbers - 1, 1) / numbers
    with np.errstate(invalid="ignore"):
        halves = np.array(factors) * np.array(quantiles) * np.sqrt(variances)
    is_over = (halves <= target) & (numbers >= run_simulations.FEWEST_TO_STOP)
    is_over[:, -1] = True
    stop = (np.arange(20_000), is_over.argmax(axis=1))
    return float((np.abs(centres[stop]) <= halves[stop]).mean())


def test_widening_restores_the_coverage_that_stopping_on_width_costs():
    widened = [coverage_of_stopping(target) for target in TARGETS]
    plain = [coverage_of_stopping(target, is_widened=False) for target in TARGETS]

    assert 0.934 <= min(widened) < max(widened) <= 0.957
    assert (min(plain), max(plain)) == pytest.approx((0.92, 0.949), abs=0.006)


def test_the_simulated_rule_is_the_one_that_is_used():
    target, num_covered = 0.6, 0
    generator = np.random.default_rng(6)
    for _ in range(300):
        logs = []
        while not statistics.is_precise_enough(logs, np.expm1(target)):
            logs.append([float(generator.standard_normal())])
        estimate = statistics.over_rounds(logs, is_stopped_on_width=True)
        assert np.log(estimate.high / estimate.value) <= target
        num_covered += not estimate.excludes(1.0)

    assert_covers(num_covered, 300, coverage_of_stopping(target))
