"""A net of two large layers under a memory limit: `whole` on one process, or `split`.

    python limited.py whole|split

Every process limits its data to what it has after start plus ``ROOM_BYTES``. Prints the
losses as JSON. As a member of a cluster that is not worker 0, it serves.
"""

import json
import os
import resource
import sys
import threading
import time
from pathlib import Path

LAYER_BYTES = 256 * 2**20
WIDTH = 4096
# A layer, its gradient and an equal temporary fit, and the stacks of threads that start
# later; two layers with their gradients do not.
ROOM_BYTES = 3 * LAYER_BYTES + 200 * 2**20
NUM_STEPS = 3
# Threads that start after the limit was set count with their whole stacks.
STACK_BYTES = 2 * 2**20


def use_small_stacks():
    """Starts this program again: stacks of threads are as large as at its start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if soft != STACK_BYTES:
        resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, hard))
        os.execv(sys.executable, [sys.executable, *sys.argv])


def limit():
    """Leaves this process the room that one layer needs."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (line,) = [text for text in status.splitlines() if text.startswith("VmData")]
    most = int(line.split()[1]) * 1024 + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def limit_server(config):
    """Limits this process once its server runs: before, it starts many threads."""
    from replicator.cluster import liveness

    while not liveness.accepts(config.address, 1.0):
        time.sleep(0.05)
    limit()
    sys.stdout.write("limited\n")
    sys.stdout.flush()


def main():
    use_small_stacks()
    import numpy as np
    import tensorflow as tf

    import replicator
    from replicator import server
    from replicator.cluster import environment

    tf.constant(0)  # the runtime's own memory is not counted
    is_split = sys.argv[1] == "split"
    if is_split:
        config = environment.detect().config()
        if not config.is_chief:
            threading.Thread(target=limit_server, args=[config], daemon=True).start()
            server.run([])
    if is_split:
        repl = replicator.create(
            "multi_worker_in_graph", num_replicas=1, logical_devices_per_replica=2
        )
    else:
        repl = replicator.create(
            "single", devices=["CPU:0", "CPU:0"], logical_devices_per_replica=2
        )
    limit()
    layers = []
    num_rows = LAYER_BYTES // 4 // WIDTH
    with repl.context():
        for part, shape in enumerate([[WIDTH, num_rows], [num_rows, WIDTH]]):
            with replicator.logical_device(part):
                layers.append(tf.Variable(tf.fill(shape, 1.0 / WIDTH)))

    def step(x):
        with tf.GradientTape() as tape:
            with replicator.logical_device(0):
                h = tf.matmul(x, layers[0])
            with replicator.logical_device(1):
                loss = tf.reduce_mean(tf.matmul(h, layers[1]) ** 2)
        for layer, grad in zip(layers, tape.gradient(loss, layers), strict=True):
            tf.raw_ops.ResourceApplyGradientDescent(
                var=layer.handle, alpha=0.1, delta=grad
            )
        return loss

    x = np.random.default_rng(0).normal(size=[2, WIDTH]).astype(np.float32)
    batch = replicator.PerReplica([tf.constant(x)])
    losses = [float(repl.run(step, batch)[0]) for _ in range(NUM_STEPS)]
    sys.stdout.write(json.dumps({"losses": losses}) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
