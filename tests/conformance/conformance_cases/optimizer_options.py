"""Options of wrap_optimizer: what they promise holds over all replicas of the job."""

import keras
import numpy as np
import tensorflow as tf
from conformance_cases.registry import case, share
from conformance_cases.training import (
    LIKE_ONE,
    NUM_STEPS,
    adam,
    dense_net,
    momentum,
    normal_features,
    one_layer,
    train,
)

# Of bfloat16; float16 keeps three bits more.
UNIT_ROUNDOFF = 2.0**-8


@case(
    "synchronous_training",
    "gradient_compression",
    like_single_device=True,
    # Ten updates by gradients of about 1, each rounded twice, at a rate of 0.1. What is
    # linear in gradients follows their rounding; Adam divides by their size, so a
    # component that is nearly zero may go anywhere.
    rtol=2 * UNIT_ROUNDOFF,
    atol=2 * UNIT_ROUNDOFF * 0.1 * NUM_STEPS,
)
def trains_with_gradients_in_16_bits(repl):
    """Losses and weights of one device, up to the rounding of sent gradients."""
    optimizers = {
        name: (momentum, {"compression": name}) for name in ("bfloat16", "float16")
    }
    return train(repl, one_layer, optimizers, normal_features(6))


def _accumulating():
    return keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2)


@case("synchronous_training", "gradient_accumulation", **LIKE_ONE)
def trains_with_accumulated_gradients(repl):
    """Every other call updates, with the mean of both; Keras' own option, too."""
    optimizers = {
        "momentum": (momentum, {"accumulation_steps": 2}),
        "adam": (adam, {"accumulation_steps": 2}),
        "keras": _accumulating,
    }
    return train(repl, one_layer, optimizers, normal_features(6))


@case(
    "synchronous_training",
    "fixed_inputs",
    # Averages (3, 0) and 4 have norm 5; clipping before would see a norm above 50.
    reference=lambda _: {
        "vector": np.float32([1.0 - 0.5 * 0.6, 2.0]),
        "scalar": np.float32(3.0 - 0.5 * 0.8),
    },
)
def global_clipping_comes_after_reduction(repl):
    """Gradients that cancel across replicas are averaged first; one norm for all."""
    n = repl.num_replicas
    with repl.context():
        vector, scalar = tf.Variable([1.0, 2.0]), tf.Variable(3.0)
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.5), global_clipnorm=1.0)
    signs = [0.0] if n == 1 else [(-1.0) ** r for r in range(n)]
    grads = (
        share(repl, [np.float32([3.0, 50.0 * sign]) for sign in signs]),
        share(repl, [np.float32(4.0)] * n),
    )

    def step(pair):
        optimizer.apply_gradients(zip(pair, (vector, scalar), strict=True))
        return tf.constant(0)

    repl.run(step, grads)
    repl.assert_in_sync()
    return {"vector": vector.numpy(), "scalar": scalar.numpy()}


@case(
    "synchronous_training",
    "dynamic_loss_scale",
    "fixed_inputs",
    reference=lambda t: {
        # Gradient 2^15 * (mean of r + 1) / 2^15; the second step is skipped.
        "weight": np.float32(1.0 - 2 * 0.5 * (t.num_replicas + 1) / 2),
        "scale": np.float32(2.0**14),
        "num_skipped": np.int64(1),
        "num_updates": np.int64(2),
    },
)
def a_dynamic_loss_scale_skips_on_all_replicas(repl):
    """One replica overflows: none updates, and the scale is halved for all."""
    n = repl.num_replicas
    with repl.context():
        weight = tf.Variable(1.0)
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.5), loss_scale="dynamic")

    def step(x):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(weight * x)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return loss

    fine = [np.float32(r + 1) for r in range(n)]
    overflowing = [*fine[:-1], np.float32(np.inf)]
    for values in (fine, overflowing, fine):
        repl.run(step, share(repl, values))
    repl.assert_in_sync()
    state = optimizer.loss_scale
    return {
        "weight": weight.numpy(),
        "scale": np.float32(state.scale.numpy()),
        "num_skipped": np.int64(state.num_skipped_steps.numpy()),
        "num_updates": np.int64(optimizer.iterations.numpy()),
    }


def _train_sharded(repl, **options):
    # As many variables as there are replicas, so that each of them owns one.
    optimizers = {"sharded": (adam, options)}
    return train(repl, dense_net, optimizers, normal_features(6))


@case("synchronous_training", "sharded_update", **LIKE_ONE)
def trains_with_a_sharded_update(repl):
    """One replica updates each variable; the weights are those of a full update."""
    return _train_sharded(repl, sharded_update=True)


@case("synchronous_training", "sharded_gradients", **LIKE_ONE)
def trains_with_sharded_gradients(repl):
    """Sums are kept by owners, clipped by the norm of all of them."""
    return _train_sharded(repl, sharded_update="gradients", global_clipnorm=0.05)


@case("synchronous_training", "sharded_parameters", **LIKE_ONE)
def trains_with_sharded_parameters(repl):
    """Weights are on their owners' devices and are read from there."""
    return _train_sharded(repl, sharded_update="parameters")
