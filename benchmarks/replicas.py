"""Child process of bench_replicator: one program, timed step by step.

    python -m benchmarks.replicas '{"kind": "in_graph", "num_replicas": 2, ...}'

Prints one JSON line ``{"ready": ...}`` when warm, waits for a line on standard input
(so that several children start together), then prints the step times.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    """Runs what the JSON argument asks for."""
    config = json.loads(sys.argv[1])
    os.sched_setaffinity(0, config["cores"])
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(len(config["cores"]))
    if config["kind"] == "overhead":
        _overhead(config)
        return
    start = time.perf_counter()
    program = _build(config["kind"], config["num_replicas"])
    program.run()
    time_to_first_step_sec = time.perf_counter() - start
    for _ in range(config["num_warmup_steps"]):
        program.run()
    _print(ready=True, time_to_first_step_sec=time_to_first_step_sec)
    sys.stdin.readline()
    window_start = time.monotonic()
    times = [_timed(program.run) for _ in range(config["num_steps"])]
    _print(
        step_time_sec=times,
        window=[window_start, time.monotonic()],
        global_batch_size=program.global_batch_size,
    )


def _build(kind: str, num_replicas: int) -> Any:
    import replicator
    from workloads.resnet50.workload import WORKLOAD

    return WORKLOAD.build(
        replicator.create(kind, num_replicas=num_replicas),
        preset="laptop",
        data="synthetic",
        per_replica_batch_size=8,
        seed=0,
        options={},
    )


def _overhead(config: dict[str, Any]) -> None:
    """Alternates blocks of `single` with blocks of a loop without the replicator."""
    program, plain = _build("single", 1), _plain_loop()
    for run in (program.run, plain) * (1 + config["num_warmup_steps"]):
        run()
    _print(ready=True)
    sys.stdin.readline()
    blocks = []
    for index in range(config["num_blocks"]):
        pair = [("single", program.run), ("plain", plain)]
        block = {}
        for name, run in pair if index % 2 else reversed(pair):
            times = [_timed(run) for _ in range(config["num_steps"])]
            block[name] = sorted(times)[len(times) // 2]
        blocks.append(block)
    _print(blocks=blocks)


def _plain_loop() -> Any:
    """ResNet-50 as a user without this library writes it, with the fused update."""
    import tensorflow as tf

    from workloads.data import pipeline
    from workloads.resnet50 import losses
    from workloads.resnet50.config import make_config
    from workloads.resnet50.model import ResNet50

    config = make_config("laptop", {})
    model = ResNet50(
        num_classes=config.num_classes,
        version=config.version,
        zero_gamma=config.zero_gamma,
        compute_dtype=config.compute_dtype,
        seed=0,
    )
    weights = [w.value for w in model.trainable_variables]
    slots = [tf.Variable(tf.zeros_like(w)) for w in weights]
    dataset = pipeline.synthetic_dataset(
        pipeline.PipelineConfig(
            per_replica_batch_size=8,
            image_size=config.image_size,
            seed=0,
            shuffle_buffer_size=config.shuffle_buffer_size,
            num_threads=config.num_input_threads,
        ),
        num_classes=config.num_classes,
    )

    @tf.function
    def step(iterator: Any) -> Any:
        batch = next(iterator)
        with tf.GradientTape() as tape:
            logits = model(batch["image"], training=True)
            loss = tf.reduce_mean(losses.softmax_cross_entropy(batch["label"], logits))
        for weight, slot, grad in zip(
            weights, slots, tape.gradient(loss, weights), strict=True
        ):
            tf.raw_ops.ResourceApplyKerasMomentum(
                var=weight.handle, accum=slot.handle, lr=0.003, grad=grad, momentum=0.9
            )
        return loss

    iterator = iter(dataset)
    return lambda: float(step(iterator))


def _timed(run: Any) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _print(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    main()
