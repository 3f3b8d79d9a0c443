"""How long the Fréchet distance takes at the size of InceptionV3's features.

    python -m benchmarks.bench_metrics [--repeats N] [--examples N]

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

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_FEATURES = 2048
NUM_EXAMPLES = 50_000
NUM_AT_ONCE = 500
TARGET_SEC = 60.0


def main() -> None:
    """Measures in processes of their own and prints the times."""
    parser = runner.make_parser(__doc__, num_repeats=3)
    parser.add_argument(
        "--examples", type=runner.positive, default=NUM_EXAMPLES, metavar="N"
    )
    arguments = parser.parse_args()
    counts = (arguments.examples, max(arguments.examples // 5, NUM_AT_ONCE))
    ways = {
        f"{count:,} examples": functools.partial(
            runner.measure, measure, arguments={"num_examples": count}
        )
        for count in counts
    }
    found = runner.take_turns(
        ways,
        arguments.num_repeats,
        show=lambda one: f"{one['sec']:.1f} s, peak {one['peak_bytes'] / 1e6:.0f} MB",
    )
    many, few = found.values()
    runner.print_value(
        f"FID of {counts[0]:,} x {NUM_FEATURES:,}",
        [one["sec"] for one in many],
        "s",
        at_most=TARGET_SEC,
    )
    runner.print_ratio(
        f"peak memory: {counts[0]:,} / {counts[1]:,} examples",
        [one["peak_bytes"] for one in many],
        [one["peak_bytes"] for one in few],
    )


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
    start = time.perf_counter()
    scores.distance(*gaussians)
    spent += time.perf_counter() - start
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


if __name__ == "__main__":
    main()
