"""Ten milliseconds put into one part are found there, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from results.figures.lost_time import Observed, decompose

NUM_STUDIES = 400
NUM_GENERATIONS = 5
# Binomial noise of NUM_STUDIES studies: three standard errors of 0.95.
TOLERANCE = 3 * (0.95 * 0.05 / NUM_STUDIES) ** 0.5
STEP_SEC = 0.050
INJECTED_SEC = 0.010

# What an injection makes longer. Input and update are those of the program of all
# replicas: what one replica takes for them as well is no loss.
AFFECTED = {
    "none": (),
    "exposed_communication": ("case", "synthetic", "without_update"),
    "input": ("case", "nosync", "without_update"),
    "contention": ("case", "nosync", "solo", "synthetic", "without_update"),
    "imbalance": ("case", "nosync", "synthetic", "without_update", "imbalance"),
    "update": ("case", "nosync", "synthetic"),
    "unexplained": ("case", "nosync", "synthetic", "without_update"),
}
STEPS = (
    "case",
    "baseline",
    "nosync",
    "solo",
    "synthetic",
    "baseline_synthetic",
    "without_update",
    "baseline_without_update",
)


def _study(generator: np.random.Generator, injected: str) -> Observed:
    """Generations differ by 3 %, processes of one generation by 2 %."""
    machine = np.exp(generator.normal(0, 0.03, NUM_GENERATIONS))

    def times(name: str) -> dict[int, float]:
        mean = STEP_SEC + INJECTED_SEC * (name in AFFECTED[injected])
        process = np.exp(generator.normal(0, 0.02, NUM_GENERATIONS))
        return dict(enumerate((mean * machine * process).tolist()))

    size = INJECTED_SEC * ("imbalance" in AFFECTED[injected])
    imbalance = size * machine + generator.normal(0, 0.001, NUM_GENERATIONS)
    return Observed(
        **{name: times(name) for name in STEPS},
        imbalance=dict(enumerate(np.maximum(imbalance, 0).tolist())),
    )


@pytest.mark.parametrize("injected", AFFECTED)
def test_an_injected_delay_is_found_in_its_part(injected: str) -> None:
    """Its interval holds 10 ms, those of the other parts hold 0, as often as stated."""
    generator = np.random.default_rng(len(injected))
    held: dict[str, int] = {}
    for _ in range(NUM_STUDIES):
        found = decompose(_study(generator, injected))
        for part in found.parts:
            truth = STEP_SEC if part.name == "alone" else 0.0
            truth += INJECTED_SEC * (part.name == injected)
            held[part.name] = held.get(part.name, 0) + (not part.time.excludes(truth))

    # An imbalance of nothing cannot be negative, so its mean is not 0.
    for name in held.keys() - {"imbalance"} | {injected} - {"none"}:
        if name == "unexplained" and injected != "imbalance":
            # It has the negligible bias of that mean, and is the widest of all.
            assert held[name] / NUM_STUDIES >= 0.95 - TOLERANCE
        else:
            assert held[name] / NUM_STUDIES == pytest.approx(0.95, abs=TOLERANCE)
