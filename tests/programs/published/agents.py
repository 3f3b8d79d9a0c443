"""Reinforcement learning that was written for ``tf.distribute``."""

import keras
import tensorflow as tf
from keras import layers

from published.examples import (
    BATCH,
    batches,
    labels,
    noise_of,
    numbers,
    results,
)

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


def actor_critic(strategy):
    """Episodes are played beside each other, and returns come from a scan."""
    starts = strategy.experimental_distribute_dataset(batches(numbers(16, 4)))
    with strategy.scope():
        common = layers.Dense(8, activation="relu")
        actor, critic = layers.Dense(2), layers.Dense(1)
        optimizer = keras.optimizers.Adam(learning_rate=0.01)
        huber = keras.losses.Huber(reduction="none")
    parts = common, actor, critic

    def play(state):
        log_probs, values, rewards = [], [], []
        for _ in range(3):
            hidden = common(state)
            logits = actor(hidden)
            action = tf.cast(noise_of(state, 1)[:, 0] > 0.0, tf.int32)
            log_probs.append(tf.gather(tf.nn.log_softmax(logits), action, batch_dims=1))
            values.append(critic(hidden)[:, 0])
            state = tf.tanh(state + tf.cast(action, tf.float32)[:, None] - 0.5)
            rewards.append(-tf.abs(state[:, 0]))
        return tf.stack(log_probs), tf.stack(values), tf.stack(rewards)

    def train_step(state):
        with tf.GradientTape() as tape:
            log_probs, values, rewards = play(state)
            returns = tf.scan(lambda total, r: r + 0.99 * total, rewards, reverse=True)
            advantage = tf.stop_gradient(returns - values)
            of_actor = -tf.reduce_sum(log_probs * advantage, axis=0)
            of_critic = huber(tf.transpose(returns), tf.transpose(values))
            loss = tf.nn.compute_average_loss(
                of_actor + of_critic, global_batch_size=BATCH
            )
            weights = [w for part in parts for w in part.trainable_variables]
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        return tf.reduce_mean(tf.reduce_sum(rewards, axis=0))

    @tf.function
    def distributed_train_step(state):
        reward = strategy.run(train_step, args=(state,))
        return strategy.reduce(MEAN, reward, axis=None)

    rewards = [float(distributed_train_step(state)) for state in starts]
    return [*rewards, *(w.numpy() for part in parts for w in part.weights)]


def deep_q_learning(strategy):
    """A network, its target, and a soft update of that."""
    replay = batches(
        numbers(16, 4), labels(2), numbers(16, seed=2), numbers(16, 4, seed=3)
    )
    replay = strategy.experimental_distribute_dataset(replay)
    with strategy.scope():
        network, target = (
            keras.Sequential(
                [keras.Input((4,)), layers.Dense(6, activation="relu"), layers.Dense(2)]
            )
            for _ in "12"
        )
        target.set_weights(network.get_weights())
        optimizer = keras.optimizers.Adam(0.01)

    def train_step(batch):
        state, action, reward, after = batch
        best = tf.reduce_max(target(after), axis=1)
        with tf.GradientTape() as tape:
            value = tf.gather(network(state), action, batch_dims=1)
            errors = tf.square(reward + 0.9 * best - value)
            loss = tf.nn.compute_average_loss(errors, global_batch_size=BATCH)
        weights = network.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
        for slow, fast in zip(target.variables, network.variables):
            slow.assign(0.9 * slow + 0.1 * fast)
        return loss

    @tf.function
    def train(iterator, steps):
        total = 0.0
        for _ in tf.range(steps):
            loss = strategy.run(train_step, args=(next(iterator),))
            total += strategy.reduce(SUM, loss, axis=None)
        return total

    total = float(train(iter(replay), tf.constant(2)))
    return [total, *results(network), *results(target)]
