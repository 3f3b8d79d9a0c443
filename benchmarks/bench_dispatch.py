"""Measures what starting a step costs, against a plain tf.function of the same step.

python -m benchmarks.bench_dispatch [--generations 4]

Two steps: one without work, and one that trains a layer of 72 weights from a data set.
In each of several fresh processes all ways to run a step take turns of 200 calls; the
interval is over processes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any

from benchmarks.bench_replicator import paired_ratio, print_figure
from benchmarks.children import run_child

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_TURNS = 20
NUM_CALLS = 200
NUM_WARMUP_CALLS = 50
CPUS = ["CPU:0", "CPU:1"]
PLAIN = "plain tf.function"
WAYS: dict[str, dict[str, Any]] = {
    "single": {"backend": "single"},
    "in_graph x2": {"backend": "in_graph", "num_replicas": 2},
    "in_graph x2, mirrored copies": {
        "backend": "in_graph",
        "num_replicas": 2,
        "devices": CPUS,
        "variable_placement": "mirrored",
    },
    "tf_mirrored x2": {"backend": "tf_mirrored", "num_replicas": 2, "devices": CPUS},
}
PEER = "tf_mirrored"
# What the cost of ours may be, as a multiple of the plain function's.
TARGETS = {"empty": 1.3, "training": 1.5}


def main() -> None:
    """Measures and prints both steps."""
    if "--child" in sys.argv:
        print(json.dumps(_measure()))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generations", type=int, default=4)
    generations = parser.parse_args().generations
    found = []
    for generation in range(generations):
        found.append(run_child("benchmarks.bench_dispatch"))
        print(f"process {generation + 1} of {generations} measured", flush=True)
    for kind, target in TARGETS.items():
        plain = [process[kind][PLAIN] for process in found]
        print(f"\n{kind} step; {PLAIN}: {1e6 * statistics.median(plain):.0f} us")
        for way, options in WAYS.items():
            estimate = paired_ratio([(p[kind][way], p[kind][PLAIN]) for p in found])
            title = f"time of a call: {way} / {PLAIN}"
            if options["backend"] == PEER:
                print(
                    f"{title:55} {estimate.value:.3f} "
                    f"[{estimate.low:.3f}, {estimate.high:.3f}] n = {estimate.n}"
                )
            else:
                print_figure(title, estimate, target, is_more_better=False)


def _measure() -> dict[str, dict[str, float]]:
    """By kind of step and way: median over turns of the seconds of one call."""
    from replicator.placement import devices

    devices.split_cpu(len(CPUS))
    result = {}
    for kind, make in (("empty", _empty), ("training", _training)):
        calls = {PLAIN: make(None), **{way: make(WAYS[way]) for way in WAYS}}
        for call in calls.values():
            for _ in range(NUM_WARMUP_CALLS):
                call()
        seconds: dict[str, list[float]] = {way: [] for way in calls}
        for _ in range(NUM_TURNS):
            for way, call in calls.items():
                start = time.perf_counter()
                for _ in range(NUM_CALLS):
                    call()
                seconds[way].append((time.perf_counter() - start) / NUM_CALLS)
        result[kind] = {way: statistics.median(all_) for way, all_ in seconds.items()}
    return result


def _create(options: dict[str, Any] | None) -> Any:
    import replicator

    return None if options is None else replicator.create(**options)


def _empty(options: dict[str, Any] | None) -> Callable[[], Any]:
    import tensorflow as tf

    repl = _create(options)

    def step() -> Any:
        return tf.constant(1.0)

    if repl is None:
        function = tf.function(step)

        def call() -> Any:
            return function().numpy()

        return call

    def run() -> Any:
        return repl.run(step)[0].numpy()

    return run


def _training(options: dict[str, Any] | None) -> Callable[[], Any]:
    import keras
    import numpy as np
    import tensorflow as tf

    repl = _create(options)
    with contextlib.nullcontext() if repl is None else repl.context():
        weights = [tf.Variable(np.ones((8, 8), np.float32)), tf.Variable([0.0] * 8)]
        optimizer: Any = keras.optimizers.SGD(0.1, momentum=0.9)
        optimizer.build(weights)
    if repl is not None:
        optimizer = repl.wrap_optimizer(optimizer)
    data = tf.data.Dataset.from_tensors(np.ones((4, 8), np.float32)).repeat()

    def step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = tf.matmul(batch, weights[0]) + weights[1]
            loss = tf.reduce_mean(outputs**2)
        optimizer.apply(tape.gradient(loss, weights), weights)
        return loss

    if repl is None:
        function = tf.function(lambda source: step(next(source)))
        iterator = iter(data)

        def call() -> Any:
            return function(iterator).numpy()

        return call
    inputs = repl.make_input_iterator(lambda _: data)

    def run() -> Any:
        return repl.run(step, inputs)[0].numpy()

    return run


if __name__ == "__main__":
    main()
