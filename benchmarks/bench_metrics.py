"""How long the Fréchet distance takes at the size of InceptionV3's features.

    python -m benchmarks.bench_metrics [--repeats N]

50,000 examples of 2,048 features, from batches that are made on the way and forgotten,
as an extractor gives them, against moments of as many. The time is that of the metric:
moments, eigenvalues of both covariances, and the distance; making the features is not
in it. Every repeat runs in a fresh process, as does a fifth of the examples, whose peak
memory is compared.
"""

from __future__ import annotations

import functools
import resource
import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks import runner
from benchmarks.runner import Figure

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_FEATURES, NUM_AT_ONCE = 2048, 500
MANY, FEW = "50,000 examples", "10,000 examples"


def measure(num_examples: int) -> dict[str, float]:
    """Seconds of the metric, and the most memory that the process has had."""
    from workloads.metrics import scores
    from workloads.metrics.estimate import Moments

    spent = 0.0
    gaussians = []
    for seed in (0, 1):
        total: Moments | None = None
        for features in _batches(num_examples, seed):
            start = time.perf_counter()
            part = Moments.of(features)
            total = part if total is None else total.merge(part)
            spent += time.perf_counter() - start
        assert total is not None
        start = time.perf_counter()
        gaussians.append(scores.Gaussian.of(total))
        spent += time.perf_counter() - start
    spent += runner.seconds(lambda: scores.distance(*gaussians))
    peak_kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"sec": spent, "peak_bytes": peak_kilobytes * 1024.0}


def _batches(num_examples: int, seed: int) -> Iterator[np.ndarray]:
    # Mixed and cut at zero, as the features of a network are.
    generator = np.random.default_rng(seed)
    shape = (NUM_FEATURES, NUM_FEATURES)
    mixing = generator.standard_normal(shape, dtype=np.float32) / NUM_FEATURES**0.5
    for _ in range(num_examples // NUM_AT_ONCE):
        shape = (NUM_AT_ONCE, NUM_FEATURES)
        drawn = generator.standard_normal(shape, dtype=np.float32)
        yield np.maximum(drawn @ mixing, 0.0)


WAYS = {
    name: functools.partial(runner.measure, measure, num_examples=number)
    for name, number in ((MANY, 50_000), (FEW, 10_000))
}
FIGURES = (
    Figure("FID of 50,000 x 2,048", (MANY, "sec"), unit="s", at_most=60.0),
    Figure(
        "peak memory: 50,000 / 10,000 examples",
        (MANY, "peak_bytes"),
        (FEW, "peak_bytes"),
    ),
)

if __name__ == "__main__":
    runner.run(
        __doc__,
        WAYS,
        FIGURES,
        num_repeats=3,
        show=lambda one: f"{one['sec']:.1f} s, peak {one['peak_bytes'] / 1e6:.0f} MB",
    )
