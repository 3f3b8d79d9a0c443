"""What bfloat16 gains on this CPU: ResNet-50 as published, 224 pixels.

    python -m benchmarks.bench_precision [--repeats N]

One replica on two cores, 16 synthetic images per step, the whole training step. Every
repeat runs both types, each in a fresh process, in reversed order every other time;
ratios are paired within a repeat. Utilisation is the model's floating-point operations
per second over those of the largest square matrix product of the same type, measured in
the same process: what the machine can do, not what its maker says.
"""

from __future__ import annotations

import functools
import statistics
import time
from typing import Any

from benchmarks import runner

TYPES = ("mixed_bfloat16", "float32")
NUM_IMAGES = 16
NUM_STEPS = 6
NUM_WARMUP_STEPS = 2
SIDE = 4096
NUM_PRODUCTS = 5
TARGET = 1.5


def main() -> None:
    """Runs both types in turn and prints their ratio and utilisation."""
    arguments = runner.make_parser(__doc__, num_repeats=3).parse_args()
    ways = {
        name: functools.partial(
            runner.measure, measure, arguments={"compute_dtype": name}
        )
        for name in TYPES
    }
    found = runner.take_turns(
        ways,
        arguments.num_repeats,
        show=lambda figures: f"{figures['images_per_sec']:.2f} images/s",
    )
    for name, figures in found.items():
        runner.print_ratio(
            f"utilisation: {name}",
            [one["model_gflops"] for one in figures],
            [one["peak_gflops"] for one in figures],
        )
    runner.print_ratio(
        f"throughput: {TYPES[0]} / {TYPES[1]}",
        *([one["images_per_sec"] for one in found[name]] for name in TYPES),
        at_least=TARGET,
    )


def measure(compute_dtype: str) -> dict[str, float]:
    """Images per second of training, and operations of the model and at most."""
    import replicator
    from workloads.resnet50 import model
    from workloads.resnet50.study import WORKLOAD

    program = WORKLOAD.build(
        replicator.create("single", num_replicas=1),
        preset="paper",
        data="synthetic",
        per_replica_batch_size=NUM_IMAGES,
        seed=0,
        options={"compute_dtype": compute_dtype},
    )
    for _ in range(NUM_WARMUP_STEPS):
        program.run()
    start = time.perf_counter()
    for _ in range(NUM_STEPS):
        program.run()
    rate = NUM_IMAGES * NUM_STEPS / (time.perf_counter() - start)
    per_image = model.training_flops(image_size=224, num_classes=1000, version="v1.5")
    return {
        "images_per_sec": rate,
        "model_gflops": rate * per_image / 1e9,
        "peak_gflops": _peak_gflops(compute_dtype.removeprefix("mixed_")),
    }


def _peak_gflops(dtype: str) -> float:
    import tensorflow as tf

    matrix: Any = tf.cast(tf.random.normal([SIDE, SIDE]), dtype)
    multiply = tf.function(lambda x: tf.linalg.matmul(x, x), autograph=False)
    multiply(matrix)
    times = []
    for _ in range(NUM_PRODUCTS):
        start = time.perf_counter()
        multiply(matrix).numpy()
        times.append(time.perf_counter() - start)
    return 2 * SIDE**3 / statistics.median(times) / 1e9


if __name__ == "__main__":
    main()
