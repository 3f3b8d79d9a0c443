"""Measures pipelines of two stages against one device, whole batches and memory.

python -m benchmarks.bench_pipeline [--processes 5]

*Serial* is the same pipeline on one core: as two devices of one core each that take
turns. Micro-batches are 512 rows of 512. Intervals are over processes. On two cores
that share memory this says what the schedule gives, and nothing of GPUs.
"""

from __future__ import annotations

import functools
import statistics
import time
from typing import Any

from benchmarks import runner

WIDTH, ROWS, NUM_LAYERS = 512, 512, 4
NUM_STAGES = 2
NUM_TURNS, NUM_WARMUPS = 5, 2
MEMORY_PARTS = 16
MEGABYTE = 1e6
PARTS = 8
WAYS: dict[str, dict[str, Any]] = {
    "1F1B": {},
    "fill-drain": {"schedule": "fill_drain"},
    "fill-drain, recomputed": {"schedule": "fill_drain", "recompute": True},
}


def main() -> None:
    """Measures and prints the ratios."""
    parser = runner.make_parser(__doc__, num_repeats=5, name="--processes")
    num_processes = parser.parse_args().num_repeats
    found = runner.take_turns(
        {
            "two cores": lambda: runner.measure(measure_times),
            "one core": lambda: runner.measure(measure_times, cores=runner.CORES[:1]),
            "memory": lambda: runner.measure(measure_memory),
        },
        num_processes,
        show=str,
    )
    both, one, peaks = found["two cores"], found["one core"], found["memory"]

    def sec(processes: list[dict[str, float]], way: str) -> list[float]:
        return [process[way] for process in processes]

    for way, target in (("1F1B", 1.65), ("fill-drain", None)):
        runner.print_ratio(
            f"throughput, {way}, M = {PARTS} / serial",
            sec(one, way),
            sec(both, way),
            at_least=target,
        )
    runner.print_ratio(
        f"throughput, 1F1B, M = {PARTS} / the whole batch in one piece",
        sec(both, "one piece"),
        sec(both, "1F1B"),
        at_least=1.2,
    )
    runner.print_ratio(
        "step time, fill-drain, recomputed / kept",
        sec(both, "fill-drain, recomputed"),
        sec(both, "fill-drain"),
        at_most=1.45,
    )
    runner.print_ratio(
        "first step, 1F1B / the whole batch in one piece",
        sec(both, "first 1F1B"),
        sec(both, "first one piece"),
        at_most=2.0,
    )
    for way, target in (("1F1B", 0.2), ("fill-drain, recomputed", 0.5)):
        runner.print_ratio(
            f"peak of activations, M = {MEMORY_PARTS}, {way} / fill-drain",
            sec(peaks, way),
            sec(peaks, "fill-drain"),
            at_most=target,
        )


def measure_times() -> dict[str, float]:
    """By way: median over turns of the seconds of one step; and of the first one."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(NUM_STAGES)
    run = {name: _build(PARTS, **way) for name, way in WAYS.items()}
    run["one piece"] = _build(PARTS, is_whole=True)
    first = {f"first {name}": _sec(one) for name, one in run.items()}
    ways = {name: functools.partial(_sec, one) for name, one in run.items()}
    found = runner.take_turns(ways, NUM_TURNS, num_warmups=NUM_WARMUPS)
    return first | {name: statistics.median(sec) for name, sec in found.items()}


def measure_memory() -> dict[str, float]:
    """By way: the peak in megabytes above what was there before the step."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(NUM_STAGES)
    info = functools.partial(tf.config.experimental.get_memory_info, "CPU:0")
    found = {}
    for name, way in WAYS.items():
        run = _build(MEMORY_PARTS, **way)
        run()
        before = info()["current"]
        tf.config.experimental.reset_memory_stats("CPU:0")
        run()
        found[name] = (info()["peak"] - before) / MEGABYTE
    return found


def _sec(run: Any) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _build(num_microbatches: int, *, is_whole: bool = False, **way: Any) -> Any:
    """A function that trains one step on one replica of two logical devices."""
    import keras
    import tensorflow as tf

    import replicator

    keras.utils.set_random_seed(0)
    repl = replicator.create(
        "in_graph", num_replicas=1, logical_devices_per_replica=NUM_STAGES
    )
    with repl.context():
        stages = [_stage(keras, replicator, k) for k in range(NUM_STAGES)]
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.01))
    pipeline = replicator.Pipeline(stages, num_microbatches=num_microbatches, **way)
    shape = [num_microbatches * ROWS, WIDTH]
    batch = tf.random.stateless_normal(shape, (0, 1)), tf.zeros(shape)

    def loss_fn(outputs: Any, targets: Any) -> Any:
        return tf.reduce_mean(tf.square(outputs - targets))

    def whole() -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            values = batch[0]
            for k, stage in enumerate(stages):
                with replicator.logical_device(k):
                    values = stage(values)
            loss = loss_fn(values, batch[1])
        variables = [v for stage in stages for v in stage.trainable_variables]
        return loss, list(zip(tape.gradient(loss, variables), variables, strict=True))

    def step() -> Any:
        found = whole() if is_whole else pipeline.loss_and_gradients(batch, loss_fn)
        optimizer.apply_gradients(found[1])
        return found[0]

    return lambda: float(repl.run(step)[0])


def _stage(keras: Any, replicator: Any, index: int) -> Any:
    with replicator.logical_device(index):
        layers = [keras.layers.Dense(WIDTH, "tanh") for _ in range(NUM_LAYERS)]
        return keras.Sequential([keras.Input((WIDTH,)), *layers])


if __name__ == "__main__":
    main()
