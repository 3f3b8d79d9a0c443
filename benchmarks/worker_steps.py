"""Child process of bench_multi_worker: ResNet-50 on one worker of a cluster.

    python -m benchmarks.worker_steps '{"kind": "multi_worker", ...}'

Worker 0 writes its times as JSON to the path in ``result``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Runs what the JSON argument asks for."""
    config = json.loads(sys.argv[1])
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(config["inter_op_threads"])
    own = json.loads(os.environ["TF_CONFIG"])["task"]
    if config["kind"] == "multi_worker_in_graph" and own["index"]:
        from replicator import server

        server.run([])
        return
    import replicator

    repl = replicator.create(
        config["kind"], num_replicas=config["num_replicas"], **config["options"]
    )
    start = time.perf_counter()
    run = _program(repl, config["compression"])
    run()
    time_to_first_step_sec = time.perf_counter() - start
    for _ in range(config["num_warmup_steps"]):
        run()
    times = []
    for _ in range(config["num_steps"]):
        before = time.perf_counter()
        run()
        times.append(time.perf_counter() - before)
    if own["index"] == 0:
        Path(config["result"]).write_text(
            json.dumps(
                {
                    "step_time_sec": times,
                    "time_to_first_step_sec": time_to_first_step_sec,
                }
            ),
            encoding="utf-8",
        )


def _program(repl: Any, compression: str | None) -> Any:
    """The workload's own step; with compression, the same step spelled out here."""
    from workloads.resnet50.workload import WORKLOAD

    if compression is None:
        return WORKLOAD.build(
            repl,
            preset="laptop",
            data="synthetic",
            per_replica_batch_size=8,
            seed=0,
            options={},
        ).run
    wrap = repl.wrap_optimizer
    # The workload wraps its optimizer itself; the option is added on the way.
    repl.wrap_optimizer = lambda optimizer: wrap(optimizer, compression=compression)
    return _program(repl, None)


if __name__ == "__main__":
    main()
