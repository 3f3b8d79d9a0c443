"""Cases of what goes wrong: on all workers, on one alone, or by misuse."""

import numpy as np
import tensorflow as tf
from tiny_models import share

import replicator


def disagreements(repl):
    """Each is noticed before anything runs, and the workers continue together."""
    is_first = repl.worker_id == 0
    one = share(repl, [np.float32(1)] * 8)

    def sums(x):
        return replicator.all_sum(x)

    def other_kind(x):
        return replicator.all_sum(x) if is_first else replicator.all_max(x)

    def other_number(x):
        return [replicator.all_sum(x) for _ in range(2 if is_first else 1)]

    def one_fails(x):
        if not is_first:
            raise KeyError("only here")
        return replicator.all_sum(x)

    def no_input():
        return replicator.all_sum(1.0)

    def batches(ctx):
        del ctx
        data = tf.data.Dataset.from_tensors(1.0).repeat(4)
        return data.batch(2, drop_remainder=is_first)

    mixed = repl.make_input_iterator(batches)
    wrong = {
        "sizes": lambda: repl.run(lambda x: replicator.all_sum(x[0]), mixed),
        "kind": lambda: repl.run(other_kind, one),
        "number": lambda: repl.run(other_number, one),
        "shape": lambda: repl.run(
            sums, share(repl, [np.ones([2 if is_first else 3], np.float32)] * 8)
        ),
        "num_steps": lambda: repl.run(no_input, num_steps=2 if is_first else 3),
        "failure": lambda: repl.run(one_fails, one),
    }
    messages = {name: said(call) for name, call in wrong.items()}
    messages["after"] = float(repl.run(sums, one)[0])
    return messages


def drift(repl):
    with repl.context():
        weight = tf.Variable(1.0, name="weight")

    def step():
        return weight + 1.0

    repl.run(step)
    repl.assert_in_sync()
    if repl.worker_id == 1:
        weight.assign(2.0)
    try:
        repl.assert_in_sync()
    except replicator.ReplicatorError as error:
        return str(error)
    finally:
        weight.assign(1.0)
    return ""


def refused(repl):
    attempts = [
        lambda: repl.make_input_iterator(
            lambda ctx: None, replicator.InputReplicationMode.SINGLE
        ),
        lambda: repl.run(replicator.all_gather, share(repl, ["text"] * 8)),
        lambda: replicator.create("multi_worker", num_replicas=3),
        lambda: replicator.MultiWorkerReplicator(num_replicas=2, pattern="sideways"),
        lambda: repl.run(replicator.all_sum, _of_another()),
        lambda: repl.run(replicator.all_sum, next(_of_another())),
    ]
    return [said(attempt) for attempt in attempts]


def _of_another():
    """Inputs of a replicator of this process alone."""
    other = replicator.create("in_graph", num_replicas=1)
    return other.make_input_iterator(lambda _: tf.data.Dataset.from_tensors(1.0))


def said(call):
    try:
        call()
    except (replicator.ReplicatorError, KeyError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


CASES = {
    "disagreements": disagreements,
    "drift": drift,
    "refused": refused,
}
