"""Measures pipelines of two stages against one device, whole batches and memory.

python -m benchmarks.bench_pipeline [--repeats 5] [--cases NAME...]

*Serial* is the same pipeline on one core: as two devices of one core each that take
blocks. Stages are dense layers, micro-batches 512 rows of 512. The first step of
workload ``transformer``, preset ``laptop``, has micro-batches of one sequence.
Intervals are over processes. On two cores that share memory this says what the schedule
gives, and nothing of GPUs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from benchmarks import runner
from benchmarks.runner import Figure

WIDTH, ROWS, NUM_LAYERS, NUM_STAGES = 512, 512, 4, 2
NUM_BLOCKS, NUM_WARMUPS = 5, 2
PARTS, MEMORY_PARTS = 8, 16
MEGABYTE = 1e6
TOKENS = PARTS * 128
RECOMPUTED = "fill-drain, recomputed"
SCHEDULES: dict[str, dict[str, Any]] = {
    "1F1B": {},
    "fill-drain": {"schedule": "fill_drain"},
    RECOMPUTED: {"schedule": "fill_drain", "recompute": True},
}


def build(
    num_microbatches: int, *, is_whole: bool = False, num_replicas: int = 1, **how: Any
) -> Callable[[], float]:
    """Returns a function that trains replicas on two devices in all for a step."""
    import keras
    import tensorflow as tf

    import replicator

    keras.utils.set_random_seed(0)
    num_devices = NUM_STAGES // num_replicas
    repl = replicator.create(
        "in_graph", num_replicas=num_replicas, logical_devices_per_replica=num_devices
    )
    with repl.context():
        stages = []
        for k in range(NUM_STAGES):
            with replicator.logical_device(k % num_devices):
                layers = [keras.layers.Dense(WIDTH, "tanh") for _ in range(NUM_LAYERS)]
                stages.append(keras.Sequential([keras.Input((WIDTH,)), *layers]))
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.01))
    pipeline = replicator.Pipeline(stages, num_microbatches=num_microbatches, **how)
    shape = [num_microbatches * ROWS // num_replicas, WIDTH]
    # Each replica has its own: what is the same for all is computed once.
    examples = replicator.PerReplica(
        [tf.random.stateless_normal(shape, (r, 1)) for r in range(num_replicas)]
    )

    def loss_fn(outputs: Any, targets: Any) -> Any:
        return tf.reduce_mean(tf.square(outputs - targets))

    def whole(batch: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            values = batch[0]
            for k, stage in enumerate(stages):
                with replicator.logical_device(k % num_devices):
                    values = stage(values)
            loss = loss_fn(values, batch[1])
        variables = [v for stage in stages for v in stage.trainable_variables]
        return loss, list(zip(tape.gradient(loss, variables), variables, strict=True))

    def step(inputs: Any) -> Any:
        batch = inputs, tf.zeros(shape)
        loss, gradients = (
            whole(batch) if is_whole else pipeline.loss_and_gradients(batch, loss_fn)
        )
        optimizer.apply_gradients(gradients)
        return loss

    return lambda: float(repl.run(step, examples)[0])


def measure_first(num_stages: int) -> dict[str, float]:
    """Seconds of the first and of the second step of ``transformer``."""
    import replicator

    runner.set_threads(NUM_STAGES)
    repl = replicator.create(
        "in_graph", num_replicas=1, logical_devices_per_replica=num_stages
    )
    parts = {"pipeline_stages": num_stages, "num_microbatches": PARTS}
    options = parts if num_stages > 1 else {}
    program = runner.program("transformer", repl, batch=TOKENS, seed=1, options=options)
    return {step: runner.seconds(program.run) for step in ("first", "second")}


def measure_times() -> dict[str, float]:
    """By way: median over blocks of the seconds of one step; and of the first one."""
    runner.set_threads(NUM_STAGES)
    run = {name: build(PARTS, **how) for name, how in SCHEDULES.items()}
    run["one piece"] = build(PARTS, is_whole=True)
    run["two replicas"] = build(PARTS, is_whole=True, num_replicas=2)
    first = {f"first {name}": runner.seconds(one) for name, one in run.items()}
    return first | runner.medians(run, NUM_BLOCKS, num_warmups=NUM_WARMUPS)


def measure_memory() -> dict[str, float]:
    """By way: the peak in megabytes above what was there before the step."""
    import tensorflow as tf

    runner.set_threads(NUM_STAGES)
    info = functools.partial(tf.config.experimental.get_memory_info, "CPU:0")
    peaks = {}
    for name, how in SCHEDULES.items():
        run = build(MEMORY_PARTS, **how)
        run()
        before = info()["current"]
        tf.config.experimental.reset_memory_stats("CPU:0")
        run()
        peaks[name] = (info()["peak"] - before) / MEGABYTE
    return peaks


BOTH, ONE, MEMORY = "two cores", "one core", "memory"
STAGES, PIECE = "first, stages", "first, one piece"
WAYS: dict[str, Callable[[], Any]] = {
    BOTH: functools.partial(runner.measure, measure_times),
    ONE: functools.partial(runner.measure, measure_times, cores=runner.CORES[:1]),
    MEMORY: functools.partial(runner.measure, measure_memory),
    STAGES: functools.partial(runner.measure, measure_first, num_stages=NUM_STAGES),
    PIECE: functools.partial(runner.measure, measure_first, num_stages=1),
}
# Times are those of steps, so a ratio of throughput has the other's above.
FIGURES = (
    Figure(
        f"throughput, 1F1B, M = {PARTS} / serial",
        *((ONE, "1F1B"), (BOTH, "1F1B")),
        at_least=1.65,
    ),
    Figure(
        f"throughput, fill-drain, M = {PARTS} / serial",
        *((ONE, "fill-drain"), (BOTH, "fill-drain")),
    ),
    Figure(
        f"throughput, 1F1B, M = {PARTS} / the whole batch in one piece",
        *((BOTH, "one piece"), (BOTH, "1F1B")),
        at_least=1.2,
    ),
    Figure(
        f"throughput, 1F1B, M = {PARTS} / two replicas of half the batch",
        *((BOTH, "two replicas"), (BOTH, "1F1B")),
    ),
    Figure(
        "step time, fill-drain, recomputed / kept",
        *((BOTH, RECOMPUTED), (BOTH, "fill-drain")),
        at_most=1.45,
    ),
    Figure(
        "first step of these layers, 1F1B / the whole batch in one piece",
        *((BOTH, "first 1F1B"), (BOTH, "first one piece")),
    ),
    *(
        Figure(
            f"peak of activations, M = {MEMORY_PARTS}, {way} / fill-drain",
            *((MEMORY, way), (MEMORY, "fill-drain")),
            at_most=target,
        )
        for way, target in (("1F1B", 0.2), (RECOMPUTED, 0.5))
    ),
    *(
        Figure(
            f"{step} step, transformer laptop, 1F1B, M = {PARTS} / one piece",
            *((STAGES, step), (PIECE, step)),
            at_most=target,
        )
        for step, target in (("first", 2.0), ("second", None))
    ),
)

if __name__ == "__main__":
    runner.run(__doc__, WAYS, FIGURES, num_repeats=5)
