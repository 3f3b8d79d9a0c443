"""Whether the input pipelines feed faster than the networks eat.

    python -m benchmarks.bench_input [--repeats N]

For each workload at its laptop preset on the embedded digits: batches per second of its
input pipeline alone over steps per second of training alone (synthetic data, one
replica), both on one and the same core, one after the other. A process per rate, in
reversed order every other repeat; ratios are paired within a repeat.
"""

from __future__ import annotations

import functools
import importlib

from benchmarks import runner
from benchmarks.runner import Figure

WORKLOADS = ("resnet50", "sngan")
NUM_STEPS, NUM_WARMUP_STEPS, NUM_BATCHES = 20, 3, 200


def measure(kind: str, name: str) -> float:
    """Images per second of the pipeline when nobody computes, or of training alone."""
    import replicator
    from workloads.catalog import WORKLOADS as CATALOG

    runner.set_threads(1)
    data, number = {"input": ("digits", NUM_BATCHES), "step": ("synthetic", NUM_STEPS)}[
        kind
    ]
    info = CATALOG[name]
    (preset,) = (p for p in info.presets if p.name == "laptop")
    importlib.import_module(info.module).WORKLOAD.prepare(data=data)
    repl = replicator.create("single", num_replicas=1)
    batch = preset.per_replica_batch_size
    program = runner.program(name, repl, batch=batch, data=data)
    call = program.run
    if kind == "input":
        call = functools.partial(next, program.batches())
    runner.seconds(call, NUM_WARMUP_STEPS)
    return program.global_batch_size / runner.seconds(call, number)


WAYS = {
    f"{name}, {kind}": functools.partial(
        runner.measure, measure, cores=runner.CORES[:1], kind=kind, name=name
    )
    for name in WORKLOADS
    for kind in ("input", "step")
}
FIGURES = [
    Figure(
        f"{name}: input / training",
        (f"{name}, input",),
        (f"{name}, step",),
        # A pipeline that takes less than half of a step's time on a core of its own
        # leaves room for its bursts.
        at_least=2.0,
    )
    for name in WORKLOADS
]

if __name__ == "__main__":
    runner.run(__doc__, WAYS, FIGURES, num_repeats=3, show="{:7.1f} images/s".format)
