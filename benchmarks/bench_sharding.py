"""What the levels of a sharded update cost, and what they save.

    python -m benchmarks.bench_sharding [--repeats N] [--cases NAME...]

Replicas are virtual CPU devices with a copy of the variables each, on two cores. *time*
and *memory*: twelve layers of 912 x 912, 10 M parameters, with Adam, 64 examples per
replica. Programs of all levels alternate in one process of two replicas, and each
process gives one pair; memory is weights, averaged gradients and state on the fullest
of four devices, with the layers that are gathered at a time.

*optimizer*: four replicas, and a step without a model: every replica gives the same
array as the gradient of every weight. The time of the optimizer is that of a step less
that of a step which only averages the gradients. Blocks of steps of all programs
alternate in one process, in reversed order every other time; ratios are paired within a
block.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from benchmarks import runner

LEVELS = ("none", "state", "gradients", "parameters")
SIDE, NUM_LAYERS, NUM_STEPS_PER_CALL, NUM_BLOCKS = 912, 12, 3, 4
OPTIMIZERS, KINDS = ("Adam", "AdamW"), ("sharded", "unsharded")
WEIGHT_SIDE, NUM_WEIGHTS = 1024, 8
NUM_STEPS_OF_OPTIMIZER, NUM_CALLS_PER_BLOCK = 16, 3
TARGET_MEMORY = 0.3
CASES = ("time", "memory", "optimizer")


def main() -> None:
    parser = runner.make_parser(__doc__, num_repeats=5)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    given = parser.parse_args()
    if "time" in given.cases:
        repeats = [runner.measure(measure_time) for _ in range(given.num_repeats)]
        for level in LEVELS[1:]:
            runner.print_figure(
                f"time per step, 2 replicas, {level} / none",
                [times[level] for times in repeats],
                [times["none"] for times in repeats],
                at_most=1.25 if level == "parameters" else None,
            )
    if "memory" in given.cases:
        held = runner.measure(measure_memory)
        for level in LEVELS[1:]:
            title = f"bytes of the fullest of 4 devices, {level} / none"
            _print_bytes(title, held[level], held["none"], level == "parameters")
    for name in OPTIMIZERS if "optimizer" in given.cases else ():
        num_blocks = 2 * given.num_repeats
        repeats = runner.measure(measure_optimizer, name=name, num_blocks=num_blocks)
        times = [
            [
                sec - rest
                for sec, rest in zip(repeats[kind], repeats["none"], strict=True)
            ]
            for kind in KINDS
        ]
        title = f"{name}: optimizer time per step, sharded / not"
        runner.print_figure(title, *times, at_most=0.4)
        title = f"{name}: optimizer state of the fullest device, sharded / not"
        _print_bytes(title, *repeats["bytes"], True)


def _print_bytes(title: str, most: int, before: int, has_target: bool) -> None:
    target = f"; target at most {TARGET_MEMORY}" * has_target
    print(f"{title}: {most / before:.3f} ({most} of {before} bytes){target}")


def _replicator(num_replicas: int) -> Any:
    import replicator
    from replicator.core import devices

    devices.split_cpu(num_replicas)
    return replicator.create(
        "in_graph",
        num_replicas=num_replicas,
        devices=[f"CPU:{index}" for index in range(num_replicas)],
        variable_placement="mirrored",
    )


def measure_time() -> dict[str, float]:
    """Seconds per step by level, the median of some blocks."""
    calls = {level: _training(_replicator(2), level) for level in LEVELS}
    for call in calls.values():
        call()
    medians = runner.medians(calls, NUM_BLOCKS)
    return {level: sec / NUM_STEPS_PER_CALL for level, sec in medians.items()}


def measure_memory() -> dict[str, int]:
    """Bytes on the fullest of four devices by level."""
    from replicator.backends import sharding

    repl = _replicator(4)
    run = _training(repl, "parameters")  # a program lives as long as its step
    run()
    # As the engine has placed variables, and scheduled their gathers.
    held = [sharding.Held(*each) for each in repl._table.ownership.held()]  # noqa: SLF001
    bytes_of = {row.level: row.together for row in sharding.rows(held)}
    gathered = re.search(r"at most (\d+) bytes of weights on a", repl.explain())
    assert gathered is not None
    bytes_of["parameters"] += int(gathered[1])
    return bytes_of


def _training(repl: Any, level: str) -> Callable[[], float]:
    import keras
    import tensorflow as tf

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

    return lambda: float(repl.run(step, inputs, num_steps=NUM_STEPS_PER_CALL)[0])


def measure_optimizer(name: str, num_blocks: int) -> dict[str, Any]:
    """Seconds per step by kind and block, and bytes of state on the fullest device."""
    calls, sizes = {}, []
    for kind in (*KINDS, "none"):
        repl = _replicator(4)
        calls[kind] = _updating(repl, name, kind)
        calls[kind]()
        if kind in KINDS:
            # What the engine really made, beside the weights that all devices have.
            told = re.findall(r"CPU:\d: ([\d,]+) bytes", repl.summary())
            fullest = max(int(size.replace(",", "")) for size in told)
            sizes.append(fullest - 4 * NUM_WEIGHTS * WEIGHT_SIDE**2)

    def block(kind: str) -> float:
        medians = runner.medians({kind: calls[kind]}, NUM_CALLS_PER_BLOCK)
        return medians[kind] / NUM_STEPS_OF_OPTIMIZER

    blocks = {kind: functools.partial(block, kind) for kind in calls}
    return runner.interleave(blocks, num_blocks) | {"bytes": sizes}


def _updating(repl: Any, name: str, kind: str) -> Callable[[], float]:
    """Steps that average gradients and, unless ``kind`` is ``none``, update."""
    import keras
    import tensorflow as tf

    import replicator

    shape = [WEIGHT_SIDE, WEIGHT_SIDE]
    with repl.context():
        weights = [tf.Variable(tf.zeros(shape)) for _ in range(NUM_WEIGHTS)]
        optimizer = repl.wrap_optimizer(
            getattr(keras.optimizers, name)(1e-4), sharded_update=kind == "sharded"
        )

    def input_fn(_: Any) -> Any:  # the same array, read before it is needed
        return tf.data.Dataset.from_tensors(tf.fill(shape, 1e-3)).cache().repeat()

    gradients = repl.make_input_iterator(input_fn)

    def step(gradient: Any) -> Any:
        if kind == "none":
            averaged = replicator.all_mean([gradient for _ in weights])
            return tf.add_n([value[0, 0] for value in averaged])
        optimizer.apply_gradients([(gradient, w) for w in weights])
        return gradient[0, 0]

    return lambda: float(repl.run(step, gradients, num_steps=NUM_STEPS_OF_OPTIMIZER)[0])


if __name__ == "__main__":
    main()
