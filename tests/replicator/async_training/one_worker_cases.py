"""Cases of one worker and one server, run by the chief of a test cluster."""

import tensorflow as tf
import tiny_models

import replicator
from replicator.backends.asynchronous import MultiWorkerAsyncReplicator

CASES = {}
LOCAL = "batch norm and dropout"


def train(repl, optimizer, model=LOCAL):
    """Ten steps of a net with batch norm and dropout, the last four in one dispatch."""
    training = tiny_models.Training(repl, model, optimizer)
    losses = [*training.run(6), *training.run(4, num_steps_per_run=4)]
    return [losses, training.weights(), int(training.optimizer.iterations.numpy())]


def sgd():
    """The same training over a server, and on one device."""
    ours = train(MultiWorkerAsyncReplicator(), "sgd")
    with tf.device("CPU:0"):
        reference = train(replicator.create("single"), "sgd")
    return [ours, reference]


CASES["sgd"] = sgd
