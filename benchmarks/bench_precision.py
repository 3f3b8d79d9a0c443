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
from typing import Any

from benchmarks import runner
from benchmarks.runner import Figure

TYPES = ("mixed_bfloat16", "float32")
NUM_IMAGES, NUM_STEPS, NUM_WARMUP_STEPS = 16, 6, 2
SIDE, NUM_PRODUCTS = 4096, 5


def measure(compute_dtype: str) -> dict[str, float]:
    """Images per second of training, and operations of the model and at most."""
    import replicator
    from workloads.resnet50 import model

    program = runner.program(
        "resnet50",
        replicator.create("single", num_replicas=1),
        batch=NUM_IMAGES,
        preset="paper",
        options={"compute_dtype": compute_dtype},
    )
    runner.seconds(program.run, NUM_WARMUP_STEPS)
    rate = NUM_IMAGES / runner.seconds(program.run, NUM_STEPS)
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
    found = runner.medians({"": lambda: multiply(matrix).numpy()}, NUM_PRODUCTS)
    return 2 * SIDE**3 / found[""] / 1e9


WAYS = {
    name: functools.partial(runner.measure, measure, compute_dtype=name)
    for name in TYPES
}
FIGURES = (
    *(
        Figure(f"utilisation: {name}", (name, "model_gflops"), (name, "peak_gflops"))
        for name in TYPES
    ),
    Figure(
        f"throughput: {TYPES[0]} / {TYPES[1]}",
        *((name, "images_per_sec") for name in TYPES),
        at_least=1.5,
    ),
)

if __name__ == "__main__":
    runner.run(
        __doc__,
        WAYS,
        FIGURES,
        num_repeats=3,
        show=lambda figures: f"{figures['images_per_sec']:.2f} images/s",
    )
