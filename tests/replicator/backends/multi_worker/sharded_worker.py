"""What the workers of a cluster do with sharded updates; results as JSON.

python sharded_worker.py FOLDER

The trainings run on ``single`` in the test's own process too, for comparison.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import replicator
from replicator.placement import devices

NUM_STEPS = 20
HALF = NUM_STEPS // 2
TIMEOUT_SEC = 60.0
OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "keras adamw": lambda: keras.optimizers.AdamW(0.01, global_clipnorm=0.5),
}


class Training:
    """A model, its optimizer and a step; the batch of a step is always the same."""

    def __init__(self, repl, optimizer="adam", folder=None, **options):
        # Workers other than 0 start from other weights, and must not notice.
        keras.utils.set_random_seed(1 + repl.worker_id)
        self.repl = repl
        with repl.context():
            layers = [keras.layers.Dense(n, activation="tanh") for n in (16, 8, 3)]
            self.model = keras.Sequential([keras.Input((12,)), *layers])
            self.optimizer = repl.wrap_optimizer(OPTIMIZERS[optimizer](), **options)
        self.optimizer.build(self.model.trainable_variables)
        if folder is not None:
            self.manager = repl.make_checkpoint_manager(
                folder, model=self.model, optimizer=self.optimizer
            )

    def step(self, x):
        """One step on one device."""
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.model(x) - 1.0) ** 2)
        weights = self.model.trainable_variables
        grads = tape.gradient(loss, weights)
        self.optimizer.apply_gradients(zip(grads, weights, strict=True))
        return loss

    def run(self, first=0, last=NUM_STEPS):
        """Trains; returns the weights."""
        repl = self.repl
        here = range(
            repl.first_replica_id, repl.first_replica_id + repl.num_local_replicas
        )
        for step in range(first, last):
            rng = np.random.default_rng(step)
            x = rng.normal(size=(8, 12)).astype(np.float32)
            parts = np.split(x, repl.num_replicas)
            repl.run(
                self.step, replicator.PerReplica([tf.constant(parts[r]) for r in here])
            )
        repl.assert_in_sync()
        return [w.numpy().tolist() for w in self.model.weights]

    def slots(self):
        """The optimizer's state per variable."""
        scalars = ("iteration", "learning_rate")
        return [v.value for v in self.optimizer.variables if v.name not in scalars]


def equal(repl, folder):
    """Weights after 20 steps with and without sharding, by optimizer."""
    del folder
    return {
        name: {
            "unsharded": Training(repl, name).run(),
            "sharded": Training(repl, name, sharded_update=True).run(),
        }
        for name in OPTIMIZERS
    }


def in_turn(repl, folder):
    """Updates of several owners, of which each needs the one before."""
    del folder
    results = []
    for is_sharded in (False, True):
        with repl.context():
            weights = [tf.Variable([1.0, float(n)]) for n in range(3)]
            optimizer = repl.wrap_optimizer(
                keras.optimizers.SGD(0.5, momentum=0.5), sharded_update=is_sharded
            )

        def step(weights=weights, optimizer=optimizer):
            optimizer.apply_gradients([(w * 0.5, w) for w in weights])
            first, second, third = weights
            second.assign_add(first)
            third.assign_add(second)
            return first + second + third

        seen = [repl.run(step, num_steps=n)[0].numpy().tolist() for n in (1, 2)]
        repl.assert_in_sync()
        results.append([seen, [w.numpy().tolist() for w in weights]])
    return results


def copies(repl, folder):
    """Two replicas per worker, each with a copy of the variables."""
    del repl, folder
    four = replicator.create(
        "multi_worker",
        num_replicas=4,
        devices=["CPU:0", "CPU:1"],
        variable_placement="mirrored",
        timeout_sec=TIMEOUT_SEC,
    )
    training = Training(four, sharded_update=True)
    return {"weights": training.run(), "explained": four.explain()}


def memory(repl, folder):
    """Bytes of slots that this process has, and those of all slots."""
    del repl, folder
    repl = replicator.create("multi_worker", num_replicas=2, timeout_sec=TIMEOUT_SEC)
    training = Training(repl, sharded_update=True)
    training.run(0, 2)
    return {
        "here": sum(slot.numpy().nbytes for slot in training.slots()),
        "all": sum(slot.shape.num_elements() * 4 for slot in training.slots()),
        "explained": repl.explain(),
    }


def saved(repl, folder):
    """Ten steps, a checkpoint, ten more."""
    training = Training(repl, folder=folder / "by_two", sharded_update=True)
    training.run(0, HALF)
    training.manager.save()
    here = sum(slot.numpy().nbytes for slot in training.slots())
    return {"weights": training.run(HALF), "here": here}


def restored(repl, folder):
    """Ten steps of one replica, restored by all."""
    if repl.is_chief:
        one = Training(replicator.create("single"), folder=folder / "by_one")
        one.run(0, HALF)
        one.manager.save()
    repl.gather_bytes(b"")  # there is a checkpoint now
    training = Training(repl, folder=folder / "by_one", sharded_update=True)
    training.manager.restore()
    here = sum(slot.numpy().nbytes for slot in training.slots())
    return {"weights": training.run(HALF), "here": here}


def refused(repl, folder):
    """What sharding over workers cannot do."""
    del folder

    def said(call):
        try:
            call()
        except replicator.ReplicatorError as error:
            return f"{type(error).__name__}: {error}"
        return "no error"

    def in_a_branch():
        with repl.context():
            weights = [tf.Variable([1.0]), tf.Variable([1.0])]
            optimizer = repl.wrap_optimizer(
                keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
                sharded_update=True,
            )
        repl.run(lambda: optimizer.apply_gradients([(w * 1.0, w) for w in weights]))

    def read_in_the_step():
        with repl.context():
            weight = tf.Variable([1.0])
            optimizer = repl.wrap_optimizer(
                keras.optimizers.SGD(0.1, momentum=0.9), sharded_update=True
            )
        optimizer.build([weight])
        slot = optimizer.wrapped.momentums[0].value
        repl.run(lambda: slot + 1.0)

    return {
        "accumulation": said(
            lambda: Training(repl, sharded_update=True, accumulation_steps=2)
        ),
        "branch": said(in_a_branch),
        "read": said(read_in_the_step),
    }


CASES = {
    "equal": equal,
    "in turn": in_turn,
    "copies": copies,
    "memory": memory,
    "saved": saved,
    "restored": restored,
    "refused": refused,
}


def main():
    """Runs all cases and writes what they returned."""
    folder = Path(sys.argv[1])
    devices.split_cpu(2)
    repl = replicator.create("multi_worker", num_replicas=2, timeout_sec=TIMEOUT_SEC)
    results = {}
    for name, case in CASES.items():
        sys.stdout.write(f"case {name}\n")
        sys.stdout.flush()
        try:
            results[name] = {"value": case(repl, folder)}
        except Exception:  # noqa: BLE001 (the test shows it)
            results[name] = {"trace": traceback.format_exc()}
    path = folder / f"results_{repl.worker_id}.json"
    path.write_text(json.dumps(results))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
