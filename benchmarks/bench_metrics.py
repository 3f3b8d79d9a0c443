"""How long the Fréchet distance takes at the size of InceptionV3's features.

    python -m benchmarks.bench_metrics [--repeats N]

50,000 examples of 2,048 features, from batches that are made on the way and forgotten,
as an extractor gives them, against moments of as many. The time is that of the metric:
moments, eigenvalues of both covariances, and the distance; making the features is not
in it. Every repeat runs in a fresh process, as do 10,000 examples, whose peak memory is
compared.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.bench_replicator import CORES
from benchmarks.children import run_child

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_FEATURES = 2048
NUM_EXAMPLES = 50_000
NUM_FEW_EXAMPLES = 10_000
NUM_AT_ONCE = 500
TARGET_SEC = 60.0


def main() -> None:
    """Measures in processes of their own and prints every one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(_measure(arguments.child)))
        return
    times, peaks = [], []
    for repeat in range(arguments.repeats):
        many, few = (
            run_child(__spec__.name, str(count))
            for count in (NUM_EXAMPLES, NUM_FEW_EXAMPLES)
        )
        times.append(many["sec"])
        peaks.append(many["peak_bytes"] / few["peak_bytes"])
        print(
            f"repeat {repeat}: {many['sec']:.1f} s, peak {many['peak_bytes'] / 1e6:.0f}"
            f" MB; with {NUM_FEW_EXAMPLES:,} examples {few['sec']:.1f} s,"
            f" {few['peak_bytes'] / 1e6:.0f} MB",
            flush=True,
        )
    print(
        f"FID of {NUM_EXAMPLES:,} x {NUM_FEATURES:,}: slowest {max(times):.1f} s of"
        f" n = {len(times)} (target: at most {TARGET_SEC:g} s); peak memory over that"
        f" of {NUM_FEW_EXAMPLES:,}: largest ratio {max(peaks):.2f}"
    )


def _measure(num_examples: int) -> dict[str, float]:
    os.sched_setaffinity(0, CORES)
    from workloads.metrics import fid
    from workloads.metrics.moments import Moments

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
        gaussians.append(fid.Gaussian.of(total))
        spent += time.perf_counter() - start
    start = time.perf_counter()
    fid.distance(*gaussians)
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
