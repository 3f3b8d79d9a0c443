"""Programs that tests on GPUs start: ``programs.py NAME ARGUMENTS``."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import replicator

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


def count_kernels(backend: str, preset: str, per_replica_batch_size: str) -> None:
    """Counts what one dispatch of ResNet-50 starts on GPU 0.

    Prints JSON: kernels and copies per dispatch, from TensorFlow's profiler. It counts
    none where CUPTI, which it asks, is refused, as in many containers; then its log
    says why.
    """
    from workloads.catalog import WORKLOADS

    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, enable=True)
    WORKLOADS["resnet50"].prepare(data="synthetic")
    program = WORKLOADS["resnet50"].build(
        replicator.create(backend, num_replicas=1),
        preset=preset,
        data="synthetic",
        per_replica_batch_size=int(per_replica_batch_size),
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


GLOBAL_BATCH_SIZE = 32
NUM_STEPS = 20
PART_MIB = 2048


def two_on_one(kind: str, replicas: str) -> None:
    """Trains a small network on one device (``gpu`` or ``cpu``), or on parts of it.

    Prints the loss of each step. The global batch is the same for any number of
    replicas.
    """
    num_replicas = int(replicas)
    device = tf.config.list_physical_devices(kind.upper())[0]
    limit = PART_MIB if kind == "gpu" else None
    parts = [tf.config.LogicalDeviceConfiguration(limit) for _ in range(num_replicas)]
    tf.config.set_logical_device_configuration(device, parts)
    # Its products would differ from float32 by 1e-3, and more with another batch.
    tf.config.experimental.enable_tensor_float_32_execution(enabled=False)
    keras.utils.set_random_seed(7)
    names = [f"{kind.upper()}:{index}" for index in range(num_replicas)]
    repl = replicator.create("in_graph", num_replicas=num_replicas, devices=names)
    size = GLOBAL_BATCH_SIZE // num_replicas
    images = tf.random.stateless_normal([GLOBAL_BATCH_SIZE, 16, 16, 3], [1, 2])
    labels = tf.range(GLOBAL_BATCH_SIZE) % 10
    with repl.context():
        model = keras.Sequential(
            [
                keras.Input((16, 16, 3)),
                keras.layers.Conv2D(16, 3, activation="relu"),
                keras.layers.Flatten(),
                keras.layers.Dense(10),
            ]
        )
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.05, momentum=0.9))
        optimizer.build(model.trainable_variables)

    def step(batch: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        x, y = batch
        with tf.GradientTape() as tape:
            logits = model(x, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(
                y, logits, from_logits=True
            )
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return replicator.all_mean(loss)

    split = [slice(r * size, (r + 1) * size) for r in range(num_replicas)]
    x = replicator.PerReplica([images[part] for part in split])
    y = replicator.PerReplica([labels[part] for part in split])
    for _ in range(NUM_STEPS):
        loss = repl.run(step, (x, y))
        values = loss.values if isinstance(loss, replicator.PerReplica) else [loss]
        sys.stdout.write(f"{float(values[0]):.9f}\n")


if __name__ == "__main__":
    program = {"count_kernels": count_kernels, "two_on_one": two_on_one}[sys.argv[1]]
    program(*sys.argv[2:])
