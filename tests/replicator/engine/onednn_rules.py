"""Prints, as JSON, which operations a step has after it was optimized for devices.

A process of its own: TensorFlow decides once whether rules of oneDNN hold.
"""

import json

import tensorflow as tf

from replicator._tf import dispatch
from replicator.core.devices import make_topology
from replicator.engine import optimize
from replicator.engine.trace import trace

LOCAL = "/job:localhost/replica:0/task:0/device:"
REMOTE = "/job:worker/replica:0/task:1/device:"
DEVICES = {
    "gpu": [f"{LOCAL}GPU:0", f"{LOCAL}GPU:1"],
    "remote_gpu": [f"{REMOTE}GPU:0"],
    "cpu": [f"{LOCAL}CPU:0"],
    "gpu_and_cpu": [f"{LOCAL}GPU:0", f"{LOCAL}CPU:0"],
}


def block(x):
    ones = tf.fill([4], tf.reduce_max(x))  # no constant, which would be folded
    normalized = tf.compat.v1.nn.fused_batch_norm(
        x, ones, ones, is_training=True, data_format="NHWC"
    )
    return tf.nn.relu(normalized[0])


def step(images):
    repeated = tf.while_loop(
        lambda index, _: index < 3, lambda i, x: (i + 1, block(x)), (0, images)
    )
    return tf.reduce_sum(block(images)) + tf.reduce_sum(repeated[1])


def operations(graph_def):
    nodes = [*graph_def.node]
    for function in graph_def.library.function:
        nodes += function.node_def
    return sorted(n.op for n in nodes if n.op in ("_FusedBatchNormEx", "Relu"))


def main():
    traced = trace(step, [tf.TensorSpec([2, 8, 8, 4], tf.float32)], 1)
    found = {
        name: operations(
            optimize.optimize(traced, make_topology([[d] for d in devices]))
        )
        for name, devices in DEVICES.items()
    }
    graph_def = optimize.cut(traced)
    optimize._mark_lowering(graph_def, is_lowered=False)
    keep = [*traced.output_names, *traced.control_output_names]
    unstamped = dispatch.optimize_graph(
        graph_def, keep, devices={f"{LOCAL}CPU:0": "CPU", f"{LOCAL}GPU:0": "GPU"}
    )
    print(json.dumps(found | {"without_stamps": operations(unstamped)}))  # noqa: T201


if __name__ == "__main__":
    main()
