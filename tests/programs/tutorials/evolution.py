"""An evolution strategy: perturbed copies of the weights are dealt over replicas."""

import tensorflow as tf

import replicator
from tutorials.sharing import arrays

NUM_STEPS = 3
POPULATION = 6
SIGMA = 0.1


def train(repl):
    """Antithetic directions, ``map_reduce`` of their scores (Salimans et al. 2017)."""
    with repl.context():
        weights = tf.Variable([0.5, -1.0, 2.0])
        generation = tf.Variable(0, trainable=False)
    goal = tf.constant([1.0, 1.0, -1.0])

    def score(values):
        return -tf.reduce_sum((values - goal) ** 2)

    def step():
        now = generation.assign_add(1)

        def direction(member):
            noise = tf.random.stateless_normal([3], seed=[now, member])
            gain = score(weights + SIGMA * noise) - score(weights - SIGMA * noise)
            return gain * noise

        total = replicator.map_reduce(direction, list(range(POPULATION)), "mean")
        weights.assign_add(0.05 / (2 * SIGMA) * total)
        return score(weights)

    scores = [float(repl.run(step)[0]) for _ in range(NUM_STEPS)]
    return {"scores": scores, "weights": arrays([weights, generation])}
