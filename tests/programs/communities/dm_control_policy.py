"""dm-control: episodes of the suite, and a policy gradient on what was seen."""

import keras
import numpy as np
import tensorflow as tf
from dm_control import suite

from communities.data import GLOBAL_BATCH, weights_of


def train(strategy):
    env = suite.load("cartpole", "balance", task_kwargs={"random": 1})
    size = env.action_spec().shape[0]
    with strategy.scope():
        policy = keras.Sequential(
            [keras.Input((5,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(size)]
        )
        optimizer = keras.optimizers.SGD(0.1)

    def learn(observations, actions, returns):
        with tf.GradientTape() as tape:
            distances = tf.reduce_sum((policy(observations) - actions) ** 2, axis=1)
            loss = tf.nn.compute_average_loss(
                distances * returns, global_batch_size=GLOBAL_BATCH
            )
        grads = tape.gradient(loss, policy.trainable_variables)
        optimizer.apply_gradients(zip(grads, policy.trainable_variables, strict=True))
        return loss

    noise = np.random.default_rng(1)
    losses = []
    for _ in range(2):
        seen, step = [], env.reset()
        for _ in range(GLOBAL_BATCH):
            flat = np.concatenate([np.ravel(v) for v in step.observation.values()])
            flat = flat.astype(np.float32)
            action = policy(flat[np.newaxis]).numpy()[0]
            action = (action + noise.normal(size=size)).astype(np.float32)
            step = env.step(np.clip(action, -1, 1))
            seen.append((flat, action, np.float32(step.reward)))
        arrays = tuple(map(np.stack, zip(*seen, strict=True)))
        data = tf.data.Dataset.from_tensor_slices(arrays).batch(GLOBAL_BATCH)
        for batch in strategy.experimental_distribute_dataset(data):
            loss = strategy.run(learn, args=batch)
            losses.append(float(strategy.reduce("SUM", loss, axis=None)))
    return [*losses, *weights_of(policy)]
