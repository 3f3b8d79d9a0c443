"""Measures the dispatch overhead of a step, against a plain tf.function of it.

python -m benchmarks.bench_dispatch [--generations 4]

Two steps: one without work, and one that trains a layer of 72 weights from a data set.
In each of several fresh processes all ways to run a step take turns of 200 calls; the
interval is over processes.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from typing import TYPE_CHECKING, Any

from benchmarks import runner

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
    "in_graph x2, mirrored copies, unchecked": {
        "backend": "in_graph",
        "num_replicas": 2,
        "devices": CPUS,
        "variable_placement": "mirrored",
        "external_writes": "never",
    },
    "tf_mirrored x2": {"backend": "tf_mirrored", "num_replicas": 2, "devices": CPUS},
}
PEER = "tf_mirrored"
# What the cost of ours may be, as a multiple of the plain function's.
TARGETS = {"empty": 1.3, "training": 1.5}


def main() -> None:
    """Measures and prints both steps."""
    parser = runner.make_parser(__doc__, num_repeats=4, name="--generations")
    num_processes = parser.parse_args().num_repeats
    found = runner.take_turns(
        {"process": lambda: runner.measure(measure)},
        num_processes,
        show=lambda _: "measured",
    )["process"]
    for kind, target in TARGETS.items():
        plain = [process[kind][PLAIN] for process in found]
        print(f"\n{kind} step")
        runner.print_value(PLAIN, [1e6 * sec for sec in plain], "us")
        for way, options in WAYS.items():
            runner.print_ratio(
                f"time of a call: {way} / {PLAIN}",
                [process[kind][way] for process in found],
                plain,
                at_most=None if options["backend"] == PEER else target,
            )


def measure() -> dict[str, dict[str, float]]:
    """By kind of step and way: median over turns of the seconds of one call."""
    from replicator.core import devices

    devices.split_cpu(len(CPUS))
    result = {}
    for kind, make in (("empty", _empty), ("training", _training)):
        calls = {PLAIN: make(None), **{way: make(WAYS[way]) for way in WAYS}}
        for call in calls.values():
            for _ in range(NUM_WARMUP_CALLS):
                call()
        turns = {way: functools.partial(_call_sec, call) for way, call in calls.items()}
        found = runner.take_turns(turns, NUM_TURNS)
        result[kind] = {way: statistics.median(sec) for way, sec in found.items()}
    return result


def _call_sec(call: Callable[[], Any]) -> float:
    """Seconds of one call, from many."""
    start = time.perf_counter()
    for _ in range(NUM_CALLS):
        call()
    return (time.perf_counter() - start) / NUM_CALLS


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
