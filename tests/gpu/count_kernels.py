"""Counts what one dispatch of ResNet-50 starts on GPU 0: ``... BACKEND``.

Prints JSON: kernels and copies per dispatch, from TensorFlow's profiler. It counts none
where CUPTI, which it asks, is refused, as in many containers; then its log says why.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import tensorflow as tf

import replicator
from workloads.catalog import WORKLOADS

NUM_DISPATCHES = 5


def count_events(trace: Path) -> dict[str, float]:
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space: Any = xplane_pb2.XSpace()
    space.ParseFromString(trace.read_bytes())
    counts = {"kernels": 0, "copies": 0}
    for plane in space.planes:
        if not plane.name.startswith("/device:GPU:0"):
            continue
        for line in plane.lines:
            if not line.name.startswith("Stream"):
                continue
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                is_copy = name.lower().startswith(("memcpy", "memset"))
                counts["copies" if is_copy else "kernels"] += 1
    return {name: count / NUM_DISPATCHES for name, count in counts.items()}


def main(backend: str, preset: str, per_replica_batch_size: int) -> None:
    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, enable=True)
    WORKLOADS["resnet50"].prepare(data="synthetic")
    program = WORKLOADS["resnet50"].build(
        replicator.create(backend, num_replicas=1),
        preset=preset,
        data="synthetic",
        per_replica_batch_size=per_replica_batch_size,
        seed=1,
        options={},
    )
    for _ in range(3):
        program.run(1)
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        for _ in range(NUM_DISPATCHES):
            program.run(1)
        tf.profiler.experimental.stop()
        (trace,) = Path(folder).rglob("*.xplane.pb")
        sys.stdout.write(json.dumps(count_events(trace)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
