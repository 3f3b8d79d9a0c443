"""Layers whose computation spans replicas."""

import keras
import numpy as np
import tensorflow as tf
from conformance_cases.registry import case, share

import replicator

_GLOBAL_BATCH_SIZE = 8
_CHANNELS = 3


def _batch():
    rng = np.random.default_rng(6)
    x = rng.normal(size=(_GLOBAL_BATCH_SIZE, 4, _CHANNELS)) * [1, 2, 3] + 0.5
    weights = rng.normal(size=x.shape)
    return x.astype(np.float32), weights.astype(np.float32)


def _layer(kind):
    layer = kind(momentum=0.8)
    layer.build((None, 4, _CHANNELS))
    layer.gamma.assign([0.5, 1.0, 1.5])
    layer.beta.assign([-1.0, 0.0, 1.0])
    return layer


def _outputs_and_gradients(layer, x, weights):
    with tf.GradientTape() as tape:
        tape.watch(x)
        out = layer(x, training=True)
        loss = tf.reduce_sum(weights * out**2)
    gradients = tape.gradient(loss, [x, layer.gamma.value, layer.beta.value])
    return out, *gradients


def _of_whole_batch(topology):
    layer = _layer(keras.layers.BatchNormalization)
    x, weights = map(tf.constant, _batch())
    for _ in range(2):
        out, of_x, of_gamma, of_beta = _outputs_and_gradients(layer, x, weights)

    def dealt(values):
        return replicator.PerReplica(np.split(values.numpy(), topology.num_replicas))

    def everywhere(value):
        return replicator.PerReplica([value.numpy()] * topology.num_replicas)

    return {
        "out": dealt(out),
        "gradient of x": dealt(of_x),
        "gradients of weights": [everywhere(of_gamma), everywhere(of_beta)],
        "moving mean": layer.moving_mean.numpy(),
        "moving variance": layer.moving_variance.numpy(),
    }


@case(
    "synchronous_training",
    "fixed_inputs",
    reference=_of_whole_batch,
    max_replicas=_GLOBAL_BATCH_SIZE,
    # The variance is a difference of sums that are taken in another order.
    rtol=2e-4,
    atol=1e-4,
)
def normalizes_over_all_replicas(repl):
    """CrossReplicaBatchNormalization: outputs, gradients, moving statistics."""
    with repl.context():
        layer = _layer(replicator.CrossReplicaBatchNormalization)

    def step(batch):
        out, of_x, *of_weights = _outputs_and_gradients(layer, *batch)
        return out, of_x, replicator.all_sum(of_weights)

    dealt = tuple(
        share(repl, np.split(values, repl.num_replicas)) for values in _batch()
    )
    for _ in range(2):
        out, of_x, of_weights = repl.run(step, dealt)
    repl.assert_in_sync()
    return {
        "out": out,
        "gradient of x": of_x,
        "gradients of weights": list(of_weights),
        "moving mean": layer.moving_mean.numpy(),
        "moving variance": layer.moving_variance.numpy(),
    }
