"""Intervals and bands of fitted laws hold the truth as often as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from results.statistics import laws

NUM_STUDIES = 250
# Binomial noise of NUM_STUDIES studies: three standard errors of 0.95.
TOLERANCE = 3 * (0.95 * 0.05 / NUM_STUDIES) ** 0.5
NUMBERS = (1, 2, 4, 8, 16, 32)
NOISE = 0.02


def _law(n: np.ndarray, sigma: float, kappa: float) -> np.ndarray:
    return 100 * n / (1 + sigma * (n - 1) + kappa * n * (n - 1))


@pytest.mark.parametrize(
    ("law", "sigma", "kappa"),
    [
        ("amdahl", 0.05, 0.0),
        ("usl", 0.05, 0.002),
        pytest.param("usl", 0.02, 0.005, marks=pytest.mark.full),
    ],
)
def test_coverage_is_as_stated(law: str, sigma: float, kappa: float) -> None:
    """Parameters, band in the middle and at its end, knee, held-out point.

    The full run has a second curve with a knee.
    """
    generator = np.random.default_rng(8)
    numbers = np.array(NUMBERS)
    held = dict.fromkeys(("sigma", "kappa", "middle", "end", "knee", "backtest"), 0)
    for _ in range(NUM_STUDIES):
        noise = np.exp(generator.normal(0, NOISE, len(NUMBERS)))
        values = _law(numbers, sigma, kappa) * noise
        found = laws.fit(law, {n: [v] for n, v in zip(NUMBERS, values, strict=True)})
        curve, knee = found.curve, found.knee
        truth = _law(np.array(curve.num_replicas), sigma, kappa)
        for name, place in (("middle", laws.NUM_CURVE_POINTS // 2), ("end", -1)):
            held[name] += curve.lows[place] <= truth[place] <= curve.highs[place]
        held["sigma"] += found.sigma.low <= sigma <= found.sigma.high
        held["kappa"] += found.kappa.low <= kappa <= found.kappa.high
        held["backtest"] += found.backtest.is_inside
        if knee.num_replicas is not None:
            peak = math.sqrt((1 - sigma) / kappa)
            held["knee"] += knee.low <= peak <= (knee.high or math.inf)

    for name in ("sigma", "middle", "end", "backtest"):
        assert held[name] / NUM_STUDIES == pytest.approx(0.95, abs=TOLERANCE)
    if law == "usl":
        assert held["kappa"] / NUM_STUDIES == pytest.approx(0.95, abs=TOLERANCE)
        assert held["knee"] / NUM_STUDIES == pytest.approx(0.95, abs=TOLERANCE)
