"""What a sharded update saves: time of the optimizer per step, and memory of its state.

    python -m benchmarks.bench_optimizer [--blocks N]

Four replicas with a copy of the variables each (virtual CPU devices, mirrored
placement) on two cores. The step has no model: every replica gives the same array as
the gradient of every weight. The time of the optimizer is that of a step less that of a
step which only averages the gradients. Blocks of steps of all programs alternate in one
process, in reversed order every other time; ratios are paired within a block.
"""

from __future__ import annotations

import functools
import statistics
import time
from typing import TYPE_CHECKING, Any

from benchmarks import runner

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_REPLICAS = 4
NUM_WEIGHTS = 8
SIDE = 1024
NUM_STEPS_PER_CALL = 16
NUM_CALLS_PER_BLOCK = 3
TARGET_TIME = 0.4
TARGET_MEMORY = 0.3


def main() -> None:
    """Starts the measuring process on two cores and prints its ratios."""
    parser = runner.make_parser(__doc__, num_repeats=10, name="--blocks")
    num_blocks = parser.parse_args().num_repeats
    measured = runner.measure(measure, arguments={"num_blocks": num_blocks})
    for name, result in measured.items():
        sharded, unsharded = (result["blocks"][kind] for kind in KINDS)
        runner.print_ratio(
            f"{name}: optimizer time per step, sharded / not",
            sharded,
            unsharded,
            at_most=TARGET_TIME,
        )
        most, before = (max(result["bytes"][kind].values()) for kind in KINDS)
        print(
            f"{name}: optimizer state of the fullest device, sharded / not: "
            f"{most / before:.3f} ({most} of {before} bytes); target at "
            f"most {TARGET_MEMORY}"
        )


KINDS = ("sharded", "unsharded")


def measure(num_blocks: int) -> dict[str, Any]:
    """By optimizer, what ``_compare`` finds."""
    import keras

    from replicator.core import devices

    devices.split_cpu(NUM_REPLICAS)
    optimizers = {
        "Adam": lambda: keras.optimizers.Adam(1e-4),
        "AdamW": lambda: keras.optimizers.AdamW(1e-4),
    }
    return {name: _compare(make, num_blocks) for name, make in optimizers.items()}


def _compare(make_optimizer: Callable[[], Any], num_blocks: int) -> dict[str, Any]:
    """Seconds of the optimizer per step, by block, and bytes of state by device."""
    programs = {kind: _Program(make_optimizer, kind) for kind in (*KINDS, "none")}
    for program in programs.values():
        program.run()
    turns = {
        kind: functools.partial(_median_step_sec, program)
        for kind, program in programs.items()
    }
    found = runner.take_turns(turns, num_blocks)
    blocks = {
        kind: [sec - rest for sec, rest in zip(found[kind], found["none"], strict=True)]
        for kind in KINDS
    }
    return {
        "blocks": blocks,
        "bytes": {kind: programs[kind].state_bytes() for kind in KINDS},
    }


def _median_step_sec(program: _Program) -> float:
    times = []
    for _ in range(NUM_CALLS_PER_BLOCK):
        start = time.perf_counter()
        program.run()
        times.append((time.perf_counter() - start) / NUM_STEPS_PER_CALL)
    return statistics.median(times)


class _Program:
    """Steps that average gradients and, unless ``kind`` is ``none``, update."""

    def __init__(self, make_optimizer: Callable[[], Any], kind: str) -> None:
        import tensorflow as tf

        import replicator

        repl = replicator.create(
            "in_graph",
            num_replicas=NUM_REPLICAS,
            devices=[f"CPU:{index}" for index in range(NUM_REPLICAS)],
            variable_placement="mirrored",
        )
        with repl.context():
            weights = [tf.Variable(tf.zeros([SIDE, SIDE])) for _ in range(NUM_WEIGHTS)]
            optimizer = repl.wrap_optimizer(
                make_optimizer(), sharded_update=kind == "sharded"
            )
        gradients = same_array(repl, [SIDE, SIDE])

        def step(gradient: Any) -> Any:
            if kind == "none":
                averaged = replicator.all_mean([gradient for _ in weights])
                return tf.add_n([value[0, 0] for value in averaged])
            optimizer.apply_gradients([(gradient, w) for w in weights])
            return gradient[0, 0]

        self._repl, self._optimizer = repl, optimizer
        self._run = lambda: repl.run(step, gradients, num_steps=NUM_STEPS_PER_CALL)

    def run(self) -> None:
        """Runs some steps and waits for them."""
        float(self._run()[0])

    def state_bytes(self) -> dict[str, int]:
        """Bytes of optimizer state on each device."""
        table = self._repl._table  # noqa: SLF001 (what the engine really made)
        return table.bytes_by_device(self._optimizer.variables)


def same_array(repl: Any, shape: list[int]) -> Any:
    """An endless input of the same array, read before it is needed."""
    import tensorflow as tf

    def input_fn(_: Any) -> Any:
        return tf.data.Dataset.from_tensors(tf.fill(shape, 1e-3)).cache().repeat()

    return repl.make_input_iterator(input_fn)


if __name__ == "__main__":
    main()
