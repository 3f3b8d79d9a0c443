"""map_reduce and map_gather: work items dealt over replicas."""

import numpy as np
import tensorflow as tf
from conformance_cases.registry import case, on_every

import replicator

_NUM_ITEMS = 5


def _items():
    """Matrices of different sizes, as the blocks of a preconditioner are."""
    rng = np.random.default_rng(5)
    return [
        (rng.normal(size=(n, n)) / 8 + np.eye(n)).astype(np.float32)
        for n in range(2, 2 + _NUM_ITEMS)
    ]


@case(
    "collectives",
    reference=lambda t: [on_every(t, np.linalg.inv(item)) for item in _items()],
    rtol=1e-4,
    atol=1e-5,
)
def map_gather(repl):
    """Each inverse is computed on one replica, and all replicas get all of them."""
    items = _items()

    def step():
        return replicator.map_gather([tf.constant(x) for x in items], tf.linalg.inv)

    return repl.run(step)


def _traces():
    return np.float32([np.trace(item) ** 2 for item in _items()])


@case(
    "collectives",
    reference=lambda t: {
        "sum": on_every(t, _traces().sum()),
        "mean": on_every(t, _traces().mean()),
        "min": on_every(t, _traces().min()),
        "max": on_every(t, _traces().max()),
        # Replicas share one loss, so their gradients average to that of one device.
        "gradient": np.float32(2 * 3.0 * _traces().sum()),
    },
)
def map_reduce(repl):
    """Items are reduced over all replicas, and the gradient reaches a variable."""
    items = _items()
    with repl.context():
        scale = tf.Variable(3.0)

    def step():
        tensors = [tf.constant(x) for x in items]

        def plain(x):
            return tf.linalg.trace(x) ** 2

        results = {
            op: replicator.map_reduce(plain, tensors, op)
            for op in ("sum", "mean", "min", "max")
        }
        with tf.GradientTape() as tape:
            loss = replicator.map_reduce(
                lambda x: tf.linalg.trace(scale * x) ** 2, tensors, "sum"
            )
        gradient = replicator.all_mean(tape.gradient(loss, scale))
        return {**results, "gradient": gradient}

    out = repl.run(step)
    return {**out, "gradient": repl.reduce("max", out["gradient"])}
