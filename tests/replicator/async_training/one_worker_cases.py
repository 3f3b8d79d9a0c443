"""Cases of one worker and one server, run by the chief of a test cluster."""

from __future__ import annotations

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


def _case(optimizer, model=LOCAL):
    def run():
        ours = train(MultiWorkerAsyncReplicator(), optimizer, model)
        with tf.device("CPU:0"):
            reference = train(replicator.create("single"), optimizer, model)
        return [ours, reference]

    return run


for _name in ("sgd", "nesterov", "adam", "rmsprop", "adamw"):
    CASES[_name] = _case(_name)
CASES["sparse_sgd"] = _case("sgd", f"embedding, {LOCAL}")
CASES["sparse_adam"] = _case("adam", f"embedding, {LOCAL}")


def staleness():
    """One worker is never behind itself."""
    repl = MultiWorkerAsyncReplicator()
    before = repl.staleness()
    train(repl, "sgd")
    after = repl.staleness()
    return [before.num_updates, before.mean, str(after), dict(after.histogram)]


CASES["staleness"] = staleness
