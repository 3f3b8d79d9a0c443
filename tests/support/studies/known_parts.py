"""Step times of a case and its controls where ten milliseconds are in a known part."""

import numpy as np

from results.figures.lost_time import Observed, decompose

NUM_GENERATIONS = 5
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


def _study(generator, injected):
    """Generations differ by 3 %, processes of one generation by 2 %."""
    machine = np.exp(generator.normal(0, 0.03, NUM_GENERATIONS))

    def times(name):
        mean = STEP_SEC + INJECTED_SEC * (name in AFFECTED[injected])
        process = np.exp(generator.normal(0, 0.02, NUM_GENERATIONS))
        return dict(enumerate((mean * machine * process).tolist()))

    size = INJECTED_SEC * ("imbalance" in AFFECTED[injected])
    imbalance = size * machine + generator.normal(0, 0.001, NUM_GENERATIONS)
    return Observed(
        **{name: times(name) for name in STEPS},
        imbalance=dict(enumerate(np.maximum(imbalance, 0).tolist())),
    )


def held_parts(generator, injected):
    """Yields each part of one study, and whether its interval holds the truth."""
    for part in decompose(_study(generator, injected)).parts:
        truth = STEP_SEC if part.name == "alone" else 0.0
        truth += INJECTED_SEC * (part.name == injected)
        assert part.time is not None
        yield part.name, not part.time.excludes(truth)
