"""Designs of measuring on simulated noise: what their intervals are worth.

A few hundred sweeps each; ``make statistics`` simulates thousands and prints the table.
"""

import math

import numpy as np
import pytest
import simulated_designs
from simulated_designs import Coverage
from simulated_sweeps import MACHINE, Sweeps, relay

from results.statistics import generations

NUM_SWEEPS = 300
SEED = 22
# Three standard errors of the share of NUM_SWEEPS sweeps that a 95 % interval covers.
TOLERANCE = 3 * (0.95 * 0.05 / NUM_SWEEPS) ** 0.5


@pytest.fixture(scope="module")
def default():
    """Five generations in nine minutes."""
    return simulated_designs.fixed(NUM_SWEEPS, SEED, num_generations=5)


def test_simulated_noise_is_that_of_the_machine():
    """Logs of steps: their spread, and how fast it forgets itself."""
    sweeps = Sweeps(2000, SEED)
    cases, processes = np.zeros(2000, dtype=int), sweeps.start_processes(1)[0]
    log_base = math.log(MACHINE.step_sec)
    before = np.log(sweeps.step(cases, processes)) - log_base
    sweeps.pass_time(3.0)
    after = np.log(sweeps.step(cases, processes)) - log_base
    shared = 0.12**2 * math.exp(-1) + 0.04**2 + 0.02**2
    total = 0.12**2 + 0.04**2 + 0.02**2 + 0.045**2

    assert total**0.5 == pytest.approx(before.std(), rel=0.06)
    assert shared / total == pytest.approx(np.corrcoef(before, after)[0, 1], abs=0.07)


def test_a_simulated_relay_has_the_ratio_and_the_rounds_of_its_time():
    """Five starts of six processes, then rounds of six steps, within nine minutes."""
    sweeps = Sweeps(50, SEED, log_slowdown=math.log(1.5))
    measured = relay(sweeps, 5, 540)
    logs = [
        generations.mean(of)
        for sweep in range(50)
        for of in simulated_designs.logs_of(measured, sweep)
    ]

    assert np.mean(logs) == pytest.approx(math.log(1.5), abs=0.02)
    # 540 s less 5 x 6 x 8 s, by 6 x 0.4 s and half a step more of the slower case.
    assert np.mean([len(one.turns(0, 3)) for one in measured]) == pytest.approx(
        23, abs=2
    )
    assert (sweeps.clock_sec <= 541).all()


def test_the_default_covers_as_stated(default):
    """And half of their intervals are shorter than 6 %."""
    assert default.share == pytest.approx(0.95, abs=TOLERANCE)
    assert default.median_half_width < 0.06
    assert default.median_sec < 541


def test_stopping_on_width_covers_as_stated():
    """From five generations on, with a target that takes about ten."""
    found = simulated_designs.sequential(NUM_SWEEPS, SEED, target=0.03)

    assert found.share == pytest.approx(0.95, abs=TOLERANCE)
    assert found.median_half_width <= math.log(1.03)
    assert found.mean_generations > 6


def test_rounds_of_one_generation_are_no_repetitions():
    """Its interval is right about its processes, and wrong about the programs."""
    own, all_of_them = (
        simulated_designs.one_generation(NUM_SWEEPS, SEED, is_truth_of_processes=truth)
        for truth in (True, False)
    )

    assert own.share == pytest.approx(0.95, abs=TOLERANCE)
    assert all_of_them.share < 0.6


def test_fresh_processes_in_sequence_are_right_and_four_times_as_wide(default):
    """The former design: its pairs lie too far apart to share any noise."""
    found = simulated_designs.fresh_processes(
        NUM_SWEEPS, SEED, num_repetitions=4, num_steps=6
    )

    assert found.share == pytest.approx(0.95, abs=TOLERANCE)
    assert found.median_half_width > 3.5 * default.median_half_width
    assert found.median_sec == pytest.approx(540, abs=10)


def test_turns_of_four_steps_are_wider(default):
    """At equal cost: the turns that are divided lie further apart."""
    found = simulated_designs.fixed(
        NUM_SWEEPS, SEED, num_generations=5, steps_per_turn=4
    )

    assert found.median_half_width > 1.3 * default.median_half_width


def test_binomial_interval_of_a_coverage():
    """Clopper and Pearson's, from 475 of 500."""
    found = Coverage(
        design="",
        num_sweeps=500,
        num_covered=475,
        median_half_width=0.0,
        median_sec=0.0,
        mean_generations=4.0,
    )

    assert found.share == 0.95
    assert pytest.approx((0.927, 0.967), abs=1e-3) == found.interval
