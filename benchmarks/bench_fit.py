"""Measures ``fit`` of Keras against a loop over ``repl.run``, and its first step.

python -m benchmarks.bench_fit [--generations 4] [--cases NAME...]

The workload ``keras_fit`` with both of its loops: the same model, batch and optimizer
on two replicas, which take turns in each of several fresh processes. The first step of
``fit``, without building the model, is compared with that under MirroredStrategy, each
in processes of its own. Intervals are over processes.
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
TARGET, FIRST_TARGET = 0.97, 0.5
CASES = ("throughput", "first")


def main() -> None:
    """Measures and prints the ratios."""
    parser = runner.make_parser(__doc__, num_repeats=4, name="--generations")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    arguments = parser.parse_args()
    # As in sweeps, and in every child.
    os.environ.update(trial_tree.allocator_variables(Allocator.KEEP, os.environ))
    for case in arguments.cases:
        show = _show_first if case == "first" else _show_throughput
        show(arguments.num_repeats)


def _show_throughput(num_processes: int) -> None:
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


def _show_first(num_processes: int) -> None:
    found = runner.take_turns(
        {
            backend: functools.partial(
                runner.measure, measure_first, arguments={"backend": backend}
            )
            for backend in ("in_graph", "tf_mirrored")
        },
        num_processes,
        show=str,
    )
    runner.print_ratio(
        "first step, fit, in_graph x2 / tf_mirrored x2",
        *([process["first"] for process in processes] for processes in found.values()),
        at_most=FIRST_TARGET,
    )


def measure_first(backend: str) -> dict[str, float]:
    """Seconds of the first step of ``fit``, of the model and optimizer built before."""
    _set_threads()
    program = _build("fit", backend)
    start = time.perf_counter()
    program.run()
    first = time.perf_counter() - start
    program.close()
    return {"first": first}


def measure() -> dict[str, float]:
    """By loop: median over turns of the seconds of one step."""
    _set_threads()
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


def _set_threads() -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(len(os.sched_getaffinity(0)))


def _build(loop: str, backend: str = "in_graph") -> Any:
    import replicator
    from workloads.keras_fit.study import WORKLOAD

    return WORKLOAD.build(
        replicator.create(backend, num_replicas=2),
        preset="laptop",
        data="synthetic",
        per_replica_batch_size=8,
        seed=0,
        options={"loop": loop},
    )


if __name__ == "__main__":
    main()
