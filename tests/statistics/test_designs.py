"""Designs of measuring on simulated noise: what their intervals are worth.

A few hundred sweeps each; ``make statistics`` simulates thousands and prints the table.
"""

import math

import pytest
import simulated_designs

NUM_SWEEPS = 300
SEED = 22
# Three standard errors of the share of NUM_SWEEPS sweeps that a 95 % interval covers.
TOLERANCE = 3 * (0.95 * 0.05 / NUM_SWEEPS) ** 0.5


@pytest.fixture(scope="module")
def default():
    """Five generations in nine minutes."""
    return simulated_designs.fixed(NUM_SWEEPS, SEED, num_generations=5)


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
