"""What the workers of a cluster do with sharded updates.

The trainings run on ``single`` in the test's own process too, for comparison.
"""

import keras
import tensorflow as tf
from tiny_models import Training

import replicator
from replicator.core import devices

NUM_STEPS = 20
HALF = NUM_STEPS // 2
TIMEOUT_SEC = 60.0


def train(repl, optimizer="adam", **options):
    training = Training(repl, "deep", optimizer, **options)
    training.run_between(0, NUM_STEPS)
    return training.weights()


def equal(repl, folder):
    del folder
    return [
        train(repl, "clipped adamw", sharded_update=is_sharded)
        for is_sharded in (False, True)
    ]


SKIPPED = {"accumulation_steps": 2, "loss_scale": "dynamic"}
UNFINISHED = 7  # calls, of which the last one has not been followed by an update


def gradients(repl, folder):
    del repl
    repl = replicator.create("multi_worker", num_replicas=2, timeout_sec=TIMEOUT_SEC)
    skipping = Training(repl, "deep", sharded_update="gradients", **SKIPPED)
    skipping.run_between(0, UNFINISHED)
    skipping.make_manager(folder / "unfinished").save()
    skipping.run_between(UNFINISHED, NUM_STEPS)
    sums = [v for v in skipping.slots() if "accumulated_grad" in v.name]
    plans = [plan for _, p in repl._programs.items() for plan in p.plans]
    return {
        "clipped": train(repl, "clipped adamw", sharded_update="gradients"),
        "skipped": skipping.weights(),
        "sums here": sum(total.numpy().nbytes for total in sums),
        "sums": sum(total.shape.num_elements() * 4 for total in sums),
        "owners": [
            [plan.collective.shapes[p].as_list() for p in bucket.positions]
            for plan in plans
            for bucket in plan.buckets
            if bucket.is_for_owner
        ],
        "explained": repl.explain(),
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
    weights = train(four, sharded_update=True)
    return {"weights": weights, "explained": four.explain()}


def second_half(training):
    here = sum(slot.numpy().nbytes for slot in training.slots())
    training.run_between(HALF, NUM_STEPS)
    return {"weights": training.weights(), "here": here}


def saved(repl, folder):
    """Ten steps, a checkpoint, ten more; and the bytes of all slots, here or not."""
    del repl  # its plan has other trainings, too
    repl = replicator.create("multi_worker", num_replicas=2, timeout_sec=TIMEOUT_SEC)
    training = Training(repl, "deep", sharded_update=True)
    training.run_between(0, HALF)
    training.make_manager(folder / "by_two").save()
    return {
        **second_half(training),
        "all": sum(slot.shape.num_elements() * 4 for slot in training.slots()),
        "explained": repl.explain(),
    }


def restored(repl, folder):
    """Ten steps of one replica, restored by all."""
    if repl.is_chief:
        one = Training(replicator.create("single"), "deep")
        one.run_between(0, HALF)
        one.make_manager(folder / "by_one").save()
    repl.gather_bytes(b"")  # there is a checkpoint now
    training = Training(repl, "deep", sharded_update=True)
    training.make_manager(folder / "by_one").restore()
    return second_half(training)


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

    def saved_by_keras(repl):
        training = Training(repl, "deep", sharded_update=True)
        training.optimizer.save_own_variables({})

    return {
        "accumulation": said(
            lambda: Training(repl, "deep", sharded_update=True, accumulation_steps=2)
        ),
        "norm of sums": said(
            lambda: Training(
                repl,
                "deep",
                sharded_update="gradients",
                accumulation_steps=2,
                global_clipnorm=1.0,
            )
        ),
        "parameters": said(lambda: Training(repl, "deep", sharded_update="parameters")),
        "branch": said(in_a_branch),
        "read": said(read_in_the_step),
        "files of Keras": said(lambda: saved_by_keras(repl)),
    }


CASES = {
    "equal": equal,
    "gradients": gradients,
    "in turn": in_turn,
    "copies": copies,
    "saved": saved,
    "restored": restored,
    "refused": refused,
}


def set_up(folder):
    devices.split_cpu(2)
    repl = replicator.create("multi_worker", num_replicas=2, timeout_sec=TIMEOUT_SEC)
    return repl, folder
