"""Measures the dispatch overhead of a step, against a plain tf.function of it.

python -m benchmarks.bench_dispatch [--repeats 4]

Two steps: one without work, and one that trains a layer of 72 weights from a data set.
In each of several fresh processes all ways to run a step take turns of 200 calls; the
interval is over processes.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from benchmarks import runner
from benchmarks.runner import Figure

NUM_BLOCKS, NUM_CALLS, NUM_WARMUP_CALLS = 20, 200, 50
CPUS = ["CPU:0", "CPU:1"]
PLAIN, PEER = "plain tf.function", "tf_mirrored x2"
MIRRORED: dict[str, Any] = {
    "backend": "in_graph",
    "num_replicas": 2,
    "devices": CPUS,
    "variable_placement": "mirrored",
}
OPTIONS: dict[str, dict[str, Any]] = {
    "single": {"backend": "single"},
    "in_graph x2": {"backend": "in_graph", "num_replicas": 2},
    "in_graph x2, mirrored copies": MIRRORED,
    "in_graph x2, mirrored copies, unchecked": {
        **MIRRORED,
        "external_writes": "never",
    },
    PEER: {"backend": "tf_mirrored", "num_replicas": 2, "devices": CPUS},
}
# What the cost of ours may be, as a multiple of the plain function's.
TARGETS = {"empty": 1.3, "training": 1.5}


def measure() -> dict[str, dict[str, float]]:
    """By kind of step and way: median over blocks of the microseconds of one call."""
    from replicator.core import devices

    devices.split_cpu(len(CPUS))
    result = {}
    for kind, make in (("empty", _empty), ("training", _training)):
        calls = {
            PLAIN: make(None),
            **{way: make(options) for way, options in OPTIONS.items()},
        }
        for call in calls.values():
            runner.seconds(call, NUM_WARMUP_CALLS)
        medians = runner.medians(calls, NUM_BLOCKS, NUM_CALLS)
        result[kind] = {way: 1e6 * sec for way, sec in medians.items()}
    return result


def _create(options: dict[str, Any] | None) -> Any:
    import replicator

    return None if options is None else replicator.create(**options)


def _empty(options: dict[str, Any] | None) -> Callable[[], Any]:
    import tensorflow as tf

    repl = _create(options)

    def step() -> Any:
        return tf.constant(1.0)

    call = tf.function(step) if repl is None else lambda: repl.run(step)[0]
    return lambda: call().numpy()


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
        call = functools.partial(function, iter(data))
    else:
        inputs = repl.make_input_iterator(lambda _: data)
        call = lambda: repl.run(step, inputs)[0]  # noqa: E731
    return lambda: call().numpy()


FIGURES = [
    figure
    for kind, target in TARGETS.items()
    for figure in (
        Figure(f"{kind} step: {PLAIN}", ("process", kind, PLAIN), unit="us"),
        *(
            Figure(
                f"{kind} step, time of a call: {way} / {PLAIN}",
                ("process", kind, way),
                ("process", kind, PLAIN),
                at_most=None if way == PEER else target,
            )
            for way in OPTIONS
        ),
    )
]

if __name__ == "__main__":
    ways = {"process": functools.partial(runner.measure, measure)}
    runner.run(__doc__, ways, FIGURES, num_repeats=4, show=lambda _: "measured")
