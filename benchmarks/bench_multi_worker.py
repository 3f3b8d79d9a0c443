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
import statistics
import time
from typing import Any

from benchmarks import runner
from replicator.cluster import environment

NUM_STEPS = 20
NUM_WARMUP_STEPS = 3
NUM_REPLICAS = 2
GLOBAL_BATCH_SIZE = 16
# One computes while the other takes what arrives.
NUM_INTER_OP_THREADS = 2
TIMEOUT_SEC = 240.0

CASES: dict[str, dict[str, Any]] = {
    "multi_worker_in_graph": {"kind": "multi_worker_in_graph"},
    "multi_worker": {"kind": "multi_worker"},
    "tf_multi_worker": {"kind": "tf_multi_worker"},
    "multi_worker_in_graph bfloat16": {
        "kind": "multi_worker_in_graph",
        "compression": "bfloat16",
    },
    "multi_worker bfloat16": {"kind": "multi_worker", "compression": "bfloat16"},
}

PEER = "tf_multi_worker"
FIGURES = [("multi_worker_in_graph", 1.6), ("multi_worker", 1.25)]
COMPRESSED = ("multi_worker_in_graph bfloat16", "multi_worker bfloat16")
COMPRESSED_TARGET = 2.0


def main() -> None:
    """Runs all cases and prints measurements, ratios and targets."""
    parser = runner.make_parser(__doc__, num_repeats=3)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--num-steps", type=runner.positive, default=NUM_STEPS)
    arguments = parser.parse_args()
    print(f"2 worker processes on cores {runner.CORES}, one each", flush=True)
    found = runner.take_turns(
        {
            name: functools.partial(_run_case, CASES[name], arguments.num_steps)
            for name in arguments.cases
        },
        arguments.num_repeats,
        show=lambda figures: (
            f"{figures['images_per_sec']:6.1f} images/s, "
            f"first step {figures['time_to_first_step_sec']:5.1f} s"
        ),
    )
    rates = {
        name: [one["images_per_sec"] for one in figures]
        for name, figures in found.items()
    }
    if PEER in rates:
        _print_ratios(rates)


def _print_ratios(rates: dict[str, list[float]]) -> None:
    """Prints each figure that was measured beside its target."""
    figures = [(name, target) for name, target in FIGURES if name in rates]
    compressed = [name for name in COMPRESSED if name in rates]
    if compressed:
        best = max(compressed, key=lambda name: statistics.fmean(rates[name]))
        figures.append((best, COMPRESSED_TARGET))
    for name, target in figures:
        runner.print_ratio(
            f"throughput: {name} / {PEER}", rates[name], rates[PEER], at_least=target
        )


def _run_case(case: dict[str, Any], num_steps: int) -> dict[str, float]:
    """Runs the two processes of one case, on one core each."""
    return dict(
        runner.measure_cluster(
            runner.Process(
                function=measure,
                arguments={**case, "num_steps": num_steps},
                cores=(),  # those of cpusets
            ),
            timeout_sec=TIMEOUT_SEC,
            kinds=["worker"],
            num_workers=2,
            cpusets=[[core] for core in runner.CORES],
        )
    )


def measure(
    kind: str, num_steps: int, compression: str | None = None
) -> dict[str, float] | None:
    """ResNet-50 on one worker of a cluster; worker 0 returns its figures."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(NUM_INTER_OP_THREADS)
    is_first = environment.detect().config().index == 0
    if kind == "multi_worker_in_graph" and not is_first:
        from replicator import server

        server.run([])
        return None
    import replicator

    repl = replicator.create(kind, num_replicas=NUM_REPLICAS)
    start = time.perf_counter()
    run = _program(repl, compression)
    run()
    time_to_first_step_sec = time.perf_counter() - start
    for _ in range(NUM_WARMUP_STEPS):
        run()
    start = time.perf_counter()
    for _ in range(num_steps):
        run()
    if not is_first:
        return None
    return {
        # Of the window, not of its median step.
        "images_per_sec": GLOBAL_BATCH_SIZE * num_steps / (time.perf_counter() - start),
        "time_to_first_step_sec": time_to_first_step_sec,
    }


def _program(repl: Any, compression: str | None) -> Any:
    """The workload's own step; with compression, the same step spelled out here."""
    from workloads.resnet50.study import WORKLOAD

    if compression is None:
        return WORKLOAD.build(
            repl,
            preset="laptop",
            data="synthetic",
            per_replica_batch_size=8,
            seed=0,
            options={},
        ).run
    # The workload wraps its optimizer itself; the option is added on the way.
    repl.wrap_optimizer = functools.partial(
        repl.wrap_optimizer, compression=compression
    )
    return _program(repl, None)


if __name__ == "__main__":
    main()
