"""Measures ``fit`` of Keras against a loop over ``repl.run``.

python -m benchmarks.bench_fit [--generations 4]

The workload ``keras_fit`` with both of its loops: the same model, batch and optimizer
on two replicas, which take turns in each of several fresh processes. The interval is
over processes.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from typing import Any

from benchmarks import runner
from harness.run import trial_tree
from results.records.models import Allocator

NUM_TURNS = 12
NUM_STEPS = 4
NUM_WARMUP_STEPS = 3
TARGET = 0.97


def main() -> None:
    """Measures and prints the ratio."""
    parser = runner.make_parser(__doc__, num_repeats=4, name="--generations")
    num_processes = parser.parse_args().num_repeats
    # As in sweeps, and in every child.
    os.environ.update(trial_tree.allocator_variables(Allocator.KEEP, os.environ))
    found = runner.take_turns(
        {"process": lambda: runner.measure(measure)},
        num_processes,
        show=str,
    )["process"]
    runner.print_ratio(
        "throughput, fit / loop over repl.run, in_graph x2",
        [process["run"] for process in found],
        [process["fit"] for process in found],
        at_least=TARGET,
    )


def measure() -> dict[str, float]:
    """By loop: median over turns of the seconds of one step."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(len(os.sched_getaffinity(0)))
    programs = {loop: _build(loop) for loop in ("fit", "run")}
    for program in programs.values():
        for _ in range(1 + NUM_WARMUP_STEPS):
            program.run()
    turns = {
        loop: functools.partial(_step_sec, program)
        for loop, program in programs.items()
    }
    found = runner.take_turns(turns, NUM_TURNS, num_warmups=1)
    for program in programs.values():
        program.close()
    return {loop: statistics.median(sec) for loop, sec in found.items()}


def _step_sec(program: Any) -> float:
    """Seconds of one step, from several."""
    start = time.perf_counter()
    for _ in range(NUM_STEPS):
        program.run()
    return (time.perf_counter() - start) / NUM_STEPS


def _build(loop: str) -> Any:
    import replicator
    from workloads.keras_fit.workload import WORKLOAD

    return WORKLOAD.build(
        replicator.create("in_graph", num_replicas=2),
        preset="laptop",
        data="synthetic",
        per_replica_batch_size=8,
        seed=0,
        options={"loop": loop},
    )


if __name__ == "__main__":
    main()
