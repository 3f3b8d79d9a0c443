"""Measures ``fit`` of Keras against a loop over ``repl.run``, and its first step.

python -m benchmarks.bench_fit [--repeats 4] [--cases NAME...]

The workload ``keras_fit`` with both of its loops: the same model, batch and optimizer
on two replicas, which take turns in each of several fresh processes. The first step of
``fit``, without building the model, is compared with that under MirroredStrategy, each
in processes of its own. Intervals are over processes.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from benchmarks import runner
from benchmarks.runner import Figure

NUM_TURNS, NUM_STEPS, NUM_WARMUP_STEPS = 12, 4, 3


def measure_first(backend: str) -> float:
    """Seconds of the first step of ``fit``, of the model and optimizer built before."""
    program = _build("fit", backend)
    first = runner.seconds(program.run)
    program.close()
    return first


def measure() -> dict[str, float]:
    """By loop: median over turns of the seconds of one step."""
    programs = {loop: _build(loop, "in_graph") for loop in ("fit", "run")}
    for program in programs.values():
        runner.seconds(program.run, 1 + NUM_WARMUP_STEPS)
    calls = {loop: program.run for loop, program in programs.items()}
    found = runner.medians(calls, NUM_TURNS, NUM_STEPS, num_warmups=1)
    for program in programs.values():
        program.close()
    return found


def _build(loop: str, backend: str) -> Any:
    import replicator

    runner.set_threads()
    repl = replicator.create(backend, num_replicas=2)
    return runner.program("keras_fit", repl, batch=8, options={"loop": loop})


FIRST = {
    f"first, {backend}": functools.partial(
        runner.measure, measure_first, backend=backend
    )
    for backend in ("in_graph", "tf_mirrored")
}
WAYS = {"throughput": functools.partial(runner.measure, measure), **FIRST}
FIGURES = (
    Figure(
        "throughput, fit / loop over repl.run, in_graph x2",
        ("throughput", "run"),
        ("throughput", "fit"),
        at_least=0.97,
    ),
    Figure(
        "first step, fit, in_graph x2 / tf_mirrored x2",
        *((name,) for name in FIRST),
        at_most=0.5,
    ),
)

if __name__ == "__main__":
    from harness.run import trial_tree
    from results.records.models import Allocator

    # As in sweeps, and in every child.
    os.environ.update(trial_tree.allocator_variables(Allocator.KEEP, os.environ))
    runner.run(__doc__, WAYS, FIGURES, num_repeats=4)
