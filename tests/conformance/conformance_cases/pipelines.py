"""A model in stages: its replicas train like one device on their examples."""

import keras
import numpy as np
import tensorflow as tf
from conformance_cases.registry import case
from conformance_cases.state import split_in_order
from conformance_cases.training import (
    ATOL_WEIGHTS,
    GLOBAL_BATCH_SIZE,
    NUM_EXAMPLES,
    RTOL_LOSSES,
)

import replicator

NUM_STEPS = 8
NUM_STAGES = 2


def _layer(stage, width):
    with replicator.logical_device(stage):
        layer = keras.layers.Dense(width, activation="tanh")
        layer.build([None, 6])
    return layer


@case(
    *("synchronous_training", "pipelines"),
    num_logical_devices=NUM_STAGES,
    like_single_device=True,
    rtol=RTOL_LOSSES,
    atol=ATOL_WEIGHTS,
    max_replicas=GLOBAL_BATCH_SIZE // 2,
)
def trains_a_pipeline(repl):
    """Two stages, two micro-batches, with what a stage keeps and without."""
    with repl.context():
        keras.utils.set_random_seed(7 + repl.worker_id)
        models = [[_layer(0, 6), _layer(1, 3)] for _ in range(2)]
        optimizers = [repl.wrap_optimizer(keras.optimizers.Adam(0.01)) for _ in models]
    pipelines = [
        replicator.Pipeline(model, num_microbatches=2, recompute=recompute)
        for model, recompute in zip(models, (False, True), strict=True)
    ]

    def mean_squared(outputs, targets):
        return tf.reduce_mean(tf.square(outputs - targets))

    def step(batch):
        losses = []
        for pipeline, optimizer in zip(pipelines, optimizers, strict=True):
            loss, found = pipeline.loss_and_gradients(batch, mean_squared)
            optimizer.apply_gradients(found)
            losses.append(loss)
        return losses

    rng = np.random.default_rng(5)
    features = rng.normal(size=(NUM_EXAMPLES, 6)).astype(np.float32)
    targets = rng.normal(size=(NUM_EXAMPLES, 3)).astype(np.float32)
    inputs = repl.make_input_iterator(
        split_in_order(GLOBAL_BATCH_SIZE, features, targets)
    )
    losses = [repl.reduce("mean", repl.run(step, inputs)) for _ in range(NUM_STEPS)]
    repl.assert_in_sync()
    return {
        "losses": np.float32(losses),
        "weights": [w.numpy() for model in models for x in model for w in x.weights],
    }
