"""What the levels of a sharded update cost, and what they save.

    python -m benchmarks.bench_sharding [--processes N]

Twelve layers of 912 x 912, 10 M parameters, with Adam, 64 examples per replica. Time:
two replicas with separate copies (virtual CPU devices, which share memory) on two
cores; programs of all levels alternate in one process, and each process gives one pair.
Memory: weights, averaged gradients and state on the fullest of four devices, with the
layers that are gathered at a time.
"""

from __future__ import annotations

import functools
import statistics
import time
from typing import Any

from benchmarks import runner

LEVELS = ("none", "state", "gradients", "parameters")
SIDE, NUM_LAYERS = 912, 12
NUM_STEPS_PER_CALL = 3
NUM_BLOCKS = 4
TARGET_TIME = 1.25
TARGET_MEMORY = 0.3


def main() -> None:
    """Starts the measuring processes and prints ratios to no sharding."""
    parser = runner.make_parser(__doc__, num_repeats=5, name="--processes")
    num_processes = parser.parse_args().num_repeats
    found = [runner.measure(measure_time) for _ in range(num_processes)]
    for level in LEVELS[1:]:
        runner.print_ratio(
            f"time per step, 2 replicas, {level} / none",
            [times[level] for times in found],
            [times["none"] for times in found],
            at_most=TARGET_TIME if level == "parameters" else None,
        )
    held = runner.measure(measure_memory)
    for level in LEVELS[1:]:
        target = f"; target at most {TARGET_MEMORY}" if level == "parameters" else ""
        print(
            f"bytes of the fullest of 4 devices, {level} / none: "
            f"{held[level] / held['none']:.3f} ({held[level]} of {held['none']} "
            f"bytes){target}"
        )


def measure_time() -> dict[str, float]:
    """Seconds per step by level, the median of some blocks."""
    from replicator.core import devices

    devices.split_cpu(2)
    runs = {level: _program(level, 2)[1] for level in LEVELS}
    for run in runs.values():
        run()
    turns = {level: functools.partial(_step_sec, run) for level, run in runs.items()}
    found = runner.take_turns(turns, NUM_BLOCKS)
    return {level: statistics.median(times) for level, times in found.items()}


def measure_memory() -> dict[str, int]:
    """Bytes on the fullest of four devices by level."""
    from replicator.backends import sharding
    from replicator.core import devices

    devices.split_cpu(4)
    repl, run = _program("parameters", 4)
    run()
    # As the engine has placed variables, and scheduled their gathers.
    held = [sharding.Held(*each) for each in repl._table.ownership.held()]  # noqa: SLF001
    ((_, program),) = repl._programs.items()  # noqa: SLF001
    found = {row.level: row.together for row in sharding.rows(held)}
    found["parameters"] += program.most_gathered
    return found


def _program(level: str, num_replicas: int) -> tuple[Any, Any]:
    """A replicator, and what runs some steps on it and waits for them."""
    import keras
    import tensorflow as tf

    import replicator

    repl = replicator.create(
        "in_graph",
        num_replicas=num_replicas,
        devices=[f"CPU:{index}" for index in range(num_replicas)],
        variable_placement="mirrored",
    )
    with repl.context():
        layers = [keras.layers.Dense(SIDE, "relu") for _ in range(NUM_LAYERS)]
        model = keras.Sequential([keras.Input((SIDE,)), *layers])
        optimizer = repl.wrap_optimizer(
            keras.optimizers.Adam(1e-4),
            sharded_update=False if level == "none" else level,
        )
        optimizer.build(model.trainable_variables)
    batch = tf.random.stateless_normal([64, SIDE], (0, 1))
    inputs = repl.make_input_iterator(
        lambda _: tf.data.Dataset.from_tensors(batch).repeat()
    )

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - 1.0) ** 2)
        weights = model.trainable_variables
        optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        return loss

    def run() -> None:
        float(repl.run(step, inputs, num_steps=NUM_STEPS_PER_CALL)[0])

    return repl, run


def _step_sec(run: Any) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) / NUM_STEPS_PER_CALL


if __name__ == "__main__":
    main()
