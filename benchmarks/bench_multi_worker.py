"""How fast synchronous replication over processes is, as ratios measured in one run.

    python -m benchmarks.bench_multi_worker [--repeats N] [--cases NAME...]

ResNet-50, 64 pixels, 8 examples per replica, synthetic data; two worker processes with
one core and two inter-op threads each, on one machine, joined by TensorFlow's gRPC.
Every repeat runs every case once, in fresh processes, the order reversed in every other
repeat (ABBA); ratios are paired within a repeat. The peer is
``tf.distribute.MultiWorkerMirroredStrategy`` with its ring, run as its documentation
shows.
"""

from __future__ import annotations

import functools
import time
from typing import Any

from benchmarks import runner
from benchmarks.runner import Figure

NUM_STEPS, NUM_WARMUP_STEPS = 20, 3
NUM_REPLICAS, BATCH = 2, 8
# One computes while the other takes what arrives.
NUM_INTER_OP_THREADS = 2
TIMEOUT_SEC = 240.0
PEER, RATE = "tf_multi_worker", "images_per_sec"
# By the backend and the compression of gradients.
TARGETS: dict[str, float | None] = {
    "multi_worker_in_graph": 1.6,
    "multi_worker": 1.25,
    PEER: None,
    "multi_worker_in_graph bfloat16": 2.0,
    "multi_worker bfloat16": 2.0,
}


def run_case(name: str) -> dict[str, float]:
    kind, _, compression = name.partition(" ")
    process = runner.Process(
        function=measure,
        arguments={"kind": kind, "compression": compression},
        cores=(),  # those of cpusets
    )
    rates: dict[str, float] = runner.measure_cluster(
        process,
        timeout_sec=TIMEOUT_SEC,
        kinds=["worker"],
        num_workers=2,
        cpusets=[[core] for core in runner.CORES],
    )
    return rates


def measure(kind: str, compression: str) -> dict[str, float] | None:
    """ResNet-50 on one worker of a cluster; worker 0 returns its figures."""
    import replicator
    from replicator.cluster import environment

    runner.set_threads(NUM_INTER_OP_THREADS)
    is_first = environment.detect().config().index == 0
    if kind == "multi_worker_in_graph" and not is_first:
        from replicator import server

        server.run([])
        return None
    repl = replicator.create(kind, num_replicas=NUM_REPLICAS)
    start = time.perf_counter()
    run = build(repl, compression).run
    run()
    first = time.perf_counter() - start
    runner.seconds(run, NUM_WARMUP_STEPS)
    # Of the window, not of its median step.
    rate = NUM_REPLICAS * BATCH / runner.seconds(run, NUM_STEPS)
    return {RATE: rate, "first": first} if is_first else None


def build(repl: Any, compression: str) -> Any:
    """The workload's own program, whose optimizer has an option more."""
    if compression:
        repl.wrap_optimizer = functools.partial(
            repl.wrap_optimizer, compression=compression
        )
    return runner.program("resnet50", repl, batch=BATCH)


WAYS = {name: functools.partial(run_case, name) for name in TARGETS}
FIGURES = [
    Figure(f"throughput: {name} / {PEER}", (name, RATE), (PEER, RATE), at_least=target)
    for name, target in TARGETS.items()
    if name != PEER
]

if __name__ == "__main__":
    print(f"2 worker processes on cores {runner.CORES}, one each", flush=True)
    runner.run(
        __doc__,
        WAYS,
        FIGURES,
        num_repeats=3,
        show=lambda of: f"{of[RATE]:6.1f} images/s, first step {of['first']:5.1f} s",
    )
