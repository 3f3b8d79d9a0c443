"""TF-Agents: its learner trains a DQN agent on trajectories that were seen."""

import tempfile

import numpy as np
import tensorflow as tf
import tf_keras
from tf_agents.agents.dqn import dqn_agent
from tf_agents.networks import sequential
from tf_agents.specs import tensor_spec
from tf_agents.train import learner
from tf_agents.trajectories import time_step, trajectory
from tf_agents.utils import common

from communities.data import GLOBAL_BATCH

NUM_ACTIONS = 3


def _experience():
    numbers = np.random.default_rng(0)
    shape = GLOBAL_BATCH, 2
    return trajectory.Trajectory(
        step_type=np.ones(shape, np.int32),
        observation=numbers.normal(size=(*shape, 4)).astype(np.float32),
        action=numbers.integers(0, NUM_ACTIONS, shape).astype(np.int32),
        policy_info=(),
        next_step_type=np.ones(shape, np.int32),
        reward=numbers.normal(size=shape).astype(np.float32),
        discount=np.ones(shape, np.float32),
    )


def train(strategy):
    tf_keras.utils.set_random_seed(1)
    with strategy.scope():
        network = sequential.Sequential(
            [
                tf_keras.layers.Dense(8, activation="relu"),
                tf_keras.layers.Dense(NUM_ACTIONS),
            ]
        )
        counter = tf.Variable(0, dtype=tf.int64, trainable=False)
        agent = dqn_agent.DqnAgent(
            time_step.time_step_spec(tensor_spec.TensorSpec([4], tf.float32)),
            tensor_spec.BoundedTensorSpec([], tf.int32, 0, NUM_ACTIONS - 1),
            q_network=network,
            optimizer=tf_keras.optimizers.Adam(0.01),
            td_errors_loss_fn=common.element_wise_squared_loss,
            train_step_counter=counter,
        )
        agent.initialize()

    def dataset_fn():
        data = tf.data.Dataset.from_tensor_slices(_experience()).repeat()
        return data.batch(GLOBAL_BATCH, drop_remainder=True).map(lambda x: (x, ()))

    with tempfile.TemporaryDirectory() as folder:
        trainer = learner.Learner(
            folder,
            counter,
            agent,
            experience_dataset_fn=dataset_fn,
            strategy=strategy,
            run_optimizer_variable_init=False,
        )
        loss = trainer.run(iterations=3).loss
    return [float(loss), *(v.numpy() for v in network.trainable_variables)]
