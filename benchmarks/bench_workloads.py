"""Measures what parts of workloads take: ``fit``, input pipelines, types, metrics.

python -m benchmarks.bench_workloads [--repeats N] [--cases NAME...]

Each in fresh processes, in reversed order every other repeat; ratios are paired within
a repeat, and intervals are over processes.

*fit*: the workload ``keras_fit`` with both of its loops, which take turns in a process:
the same model, batch and optimizer on two replicas. *first*: the first step of ``fit``,
without building the model, and that under MirroredStrategy.

*input*: for each workload at its laptop preset on the embedded digits, the rate of its
input pipeline alone when nobody computes. *step*: of training alone (synthetic data,
one replica), on one and the same core.

*mixed_bfloat16*, *float32*: ResNet-50 as published, 224 pixels, one replica on two
cores, 16 synthetic images per step, the whole training step. Utilisation is the model's
floating-point operations per second over those of the largest square matrix product of
the same type, measured in the same process: what the machine can do, not what its maker
says.

*examples*: the Fréchet distance of examples of 2,048 features, the size of InceptionV3.
The time is that of the metric: moments, eigenvalues of both covariances, and the
distance.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import runner
from benchmarks.runner import Figure
from harness.run import trial_tree
from results.records.models import Allocator

BLOCKS_OF_FIT, STEPS_OF_FIT = 12, 4
NUM_WARMUP_STEPS = 3
NUM_OF = {"input": ("digits", 200), "step": ("synthetic", 20)}
"""Data, and how many batches or steps are timed."""
TYPES = ("mixed_bfloat16", "float32")
NUM_IMAGES, NUM_STEPS = 16, 6
SIDE, NUM_PRODUCTS = 4096, 5
NUM_EXAMPLES, NUM_FEATURES = 50_000, 2048
EXAMPLES = "50,000 examples"


def first_step(backend: str) -> float:
    """Seconds of the first step of ``fit``, of the model and optimizer built before."""
    program = _fit("fit", backend)
    first = runner.seconds(program.run)
    program.close()
    return first


def loops() -> dict[str, float]:
    """By loop: median over blocks of the seconds of one step."""
    programs = {loop: _fit(loop, "in_graph") for loop in ("fit", "run")}
    for program in programs.values():
        runner.seconds(program.run, 1 + NUM_WARMUP_STEPS)
    calls = {loop: program.run for loop, program in programs.items()}
    medians = runner.medians(calls, BLOCKS_OF_FIT, STEPS_OF_FIT, num_warmups=1)
    for program in programs.values():
        program.close()
    return medians


def _fit(loop: str, backend: str) -> Any:
    import replicator

    runner.set_threads()
    repl = replicator.create(backend, num_replicas=2)
    return runner.program("keras_fit", repl, batch=8, options={"loop": loop})


def rate(kind: str, name: str) -> float:
    """Images per second of the pipeline alone, or of training alone."""
    import replicator
    from workloads import WORKLOADS

    runner.set_threads(1)
    data, number = NUM_OF[kind]
    info = WORKLOADS[name]
    (preset,) = (p for p in info.presets if p.name == "laptop")
    info.prepare(data=data)
    repl = replicator.create("single", num_replicas=1)
    batch = preset.per_replica_batch_size
    program = runner.program(name, repl, batch=batch, data=data)
    call = program.run
    if kind == "input":
        call = functools.partial(next, program.batches())
    runner.seconds(call, NUM_WARMUP_STEPS)
    return program.global_batch_size / runner.seconds(call, number)


def precision(compute_dtype: str) -> dict[str, float]:
    """Images per second of training, and operations of the model and at most."""
    import tensorflow as tf

    import replicator

    program = runner.program(
        "resnet50",
        replicator.create("single", num_replicas=1),
        batch=NUM_IMAGES,
        preset="paper",
        options={"compute_dtype": compute_dtype},
    )
    runner.seconds(program.run, NUM_WARMUP_STEPS)
    images_per_sec = NUM_IMAGES / runner.seconds(program.run, NUM_STEPS)
    dtype = compute_dtype.removeprefix("mixed_")
    matrix: Any = tf.cast(tf.random.normal([SIDE, SIDE]), dtype)
    multiply = tf.function(lambda x: tf.linalg.matmul(x, x), autograph=False)
    multiply(matrix)
    medians = runner.medians({"": lambda: multiply(matrix).numpy()}, NUM_PRODUCTS)
    return {
        "images_per_sec": images_per_sec,
        "model_gflops": images_per_sec * program.flops_per_example / 1e9,
        "peak_gflops": 2 * SIDE**3 / medians[""] / 1e9,
    }


def distance() -> float:
    """Seconds of the metric."""
    from workloads import metrics

    spent = 0.0
    gaussians = []
    for seed in (0, 1):
        features = _features(seed)
        start = time.perf_counter()
        gaussians.append(metrics.Moments.of(features))
        _ = gaussians[-1].root  # kept
        spent += time.perf_counter() - start
    return spent + runner.seconds(lambda: gaussians[0].distance(gaussians[1]))


def _features(seed: int) -> np.ndarray:
    # Mixed and cut at zero, as the features of a network are.
    generator = np.random.default_rng(seed)
    shape = (NUM_FEATURES, NUM_FEATURES)
    mixing = generator.standard_normal(shape, dtype=np.float32) / NUM_FEATURES**0.5
    shape = (NUM_EXAMPLES, NUM_FEATURES)
    drawn = generator.standard_normal(shape, dtype=np.float32)
    return np.maximum(drawn @ mixing, 0.0)


# As in sweeps.
KEPT = {"variables": trial_tree.allocator_variables(Allocator.KEEP, os.environ)}
ONE_CORE = {"cores": runner.CORES[:1]}
WAYS: dict[str, Callable[[], Any]] = {
    name: functools.partial(runner.measure, function, **how)
    for name, function, how in (
        ("fit", loops, KEPT),
        ("first, in_graph", first_step, {**KEPT, "backend": "in_graph"}),
        ("first, tf_mirrored", first_step, {**KEPT, "backend": "tf_mirrored"}),
        *(
            (f"{kind}, {name}", rate, {**ONE_CORE, "kind": kind, "name": name})
            for name in ("resnet50", "sngan")
            for kind in NUM_OF
        ),
        *((name, precision, {"compute_dtype": name}) for name in TYPES),
        (EXAMPLES, distance, {}),
    )
}
FIGURES = (
    Figure(
        "throughput, fit / loop over repl.run, in_graph x2",
        *(("fit", "run"), ("fit", "fit")),
        at_least=0.97,
    ),
    Figure(
        "first step, fit, in_graph x2 / tf_mirrored x2",
        *(("first, in_graph",), ("first, tf_mirrored",)),
        at_most=0.5,
    ),
    *(
        Figure(
            f"{name}: input / training",
            *((f"input, {name}",), (f"step, {name}",)),
            # A pipeline that takes less than half of a step's time on a core of its
            # own leaves room for its bursts.
            at_least=2.0,
        )
        for name in ("resnet50", "sngan")
    ),
    *(
        Figure(f"utilisation: {name}", (name, "model_gflops"), (name, "peak_gflops"))
        for name in TYPES
    ),
    Figure(
        f"throughput: {TYPES[0]} / {TYPES[1]}",
        *((name, "images_per_sec") for name in TYPES),
        at_least=1.5,
    ),
    Figure("FID of 50,000 x 2,048", (EXAMPLES,), unit="s", at_most=60.0),
)

if __name__ == "__main__":
    runner.run(__doc__, WAYS, FIGURES, num_repeats=3)
