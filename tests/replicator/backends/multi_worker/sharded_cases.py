"""What two workers do with sharded updates."""

import functools
import json
import os
import re
import tempfile
from pathlib import Path
from unittest import mock

import keras
import tensorflow as tf
from cluster_member import check, check_close, check_messages, gathered
from tiny_models import Training

import replicator

NUM_STEPS = 20
HALF = NUM_STEPS // 2
TIMEOUT_SEC = 60.0


def train(repl, optimizer="adam", **options):
    training = Training(repl, "deep", optimizer, **options)
    training.run_between(0, NUM_STEPS)
    return training.weights()


@functools.cache
def _alone(optimizer):
    return train(replicator.create("single"), optimizer)


def check_weights(repl, weights, optimizer="adam"):
    """Bit for bit on all workers, and to rounding those of one device.

    After that, new layers have other names on the chief than on the other worker.
    """
    check([weights] * 2, gathered(repl, weights))
    if repl.is_chief:
        check_close(_alone(optimizer), weights)


def check_shares(repl, variables):
    """Each process has its share, together there is all of it."""
    here = gathered(repl, sum(variable.numpy().nbytes for variable in variables))
    size = sum(variable.shape.num_elements() * 4 for variable in variables)
    check(size, sum(here))
    assert max(here) <= 0.6 * size, here
    return here


def make_own():
    """Its plan has no trainings of other cases."""
    return replicator.create("multi_worker", num_replicas=2, timeout_sec=TIMEOUT_SEC)


def shared_folder(repl):
    return Path(gathered(repl, tempfile.mkdtemp())[0])


def a_sharded_update_is_the_unsharded_one(repl):
    whole, sharded = (
        train(repl, "clipped adamw", sharded_update=is_sharded)
        for is_sharded in (False, True)
    )
    check(whole, sharded)
    check_weights(repl, sharded, "clipped adamw")


SKIPPED = {"accumulation_steps": 2, "loss_scale": "dynamic"}
UNFINISHED = 7  # calls, of which the last one has not been followed by an update


def sharded_gradients_are_dropped_by_those_who_do_not_own_them(_):
    """Buckets of one owner each; weights of one device, also if updates are skipped.

    And if it continues where both workers had a part of unfinished sums.
    """
    repl = make_own()
    folder = shared_folder(repl)
    skipping = Training(repl, "deep", sharded_update="gradients", **SKIPPED)
    skipping.run_between(0, UNFINISHED)
    skipping.make_manager(folder).save()
    skipping.run_between(UNFINISHED, NUM_STEPS)
    plans = [plan for _, p in repl._programs.items() for plan in p.plans]
    owners = [
        [plan.collective.shapes[p].as_list() for p in bucket.positions]
        for plan in plans
        for bucket in plan.buckets
        if bucket.is_for_owner
    ]
    check([owners] * 2, gathered(repl, owners))
    check(6, sum(map(len, owners[:2])))
    # The sums of calls are on their owners as well.
    sums = [v for v in skipping.slots() if "accumulated_grad" in v.name]
    size = sum(check_shares(repl, sums))
    # A ring of two sends each sum twice, and the owner each new value once.
    text = f"moves {2 * size} bytes by reductions and {size} bytes of weights between w"
    assert text in repl.explain()
    clipped = train(repl, "clipped adamw", sharded_update="gradients")
    check_weights(repl, clipped, "clipped adamw")
    if repl.is_chief:
        one = Training(replicator.create("single"), "deep", **SKIPPED)
        check(UNFINISHED // 2, one.make_manager(folder).restore().step)
        one.run_between(UNFINISHED, NUM_STEPS)
        check_close(one.weights(), skipping.weights())


def updates_of_several_owners_wait_for_each_other(repl):
    """None is sent together with what it has to wait for; steps in a loop too."""
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
    check(*results)


def two_replicas_per_worker_have_copies_each(_):
    four = replicator.create(
        "multi_worker",
        num_replicas=4,
        devices=["CPU:0", "CPU:1"],
        variable_placement="mirrored",
        timeout_sec=TIMEOUT_SEC,
    )
    check_weights(four, train(four, sharded_update=True))
    other = f"worker {1 - four.worker_id}, device 0, "
    for owner in ("device:CPU:0 ", "device:CPU:1 ", other):
        assert re.search(rf"{owner}updates \d variables", four.explain())


def a_checkpoint_of_two_workers_continues_with_one(_):
    """The chief writes all state; after that each worker has its share again."""
    repl = make_own()
    folder = shared_folder(repl)
    training = Training(repl, "deep", sharded_update=True)
    training.run_between(0, HALF)
    training.make_manager(folder).save()
    of_chief, _ = check_shares(repl, training.slots())
    training.run_between(HALF, NUM_STEPS)
    assert f"keeps {of_chief} bytes of optimizer state" in repl.explain()
    if repl.is_chief:
        one = Training(replicator.create("single"), "deep")
        check(HALF, one.make_manager(folder).restore().step)
        one.run_between(HALF, NUM_STEPS)
        check_close(one.weights(), training.weights())


def a_checkpoint_of_one_replica_continues_with_two_workers(repl):
    folder = shared_folder(repl)
    if repl.is_chief:
        one = Training(replicator.create("single"), "deep")
        one.run_between(0, HALF)
        one.make_manager(folder).save()
    repl.gather_bytes(b"")  # there is a checkpoint now
    training = Training(repl, "deep", sharded_update=True)
    training.make_manager(folder).restore()
    check_shares(repl, training.slots())
    training.run_between(HALF, NUM_STEPS)
    check_weights(repl, training.weights())


def a_commit_on_each_host_has_the_state_of_all_workers(repl):
    """After it each worker has its share again, and after a restore."""
    folder = shared_folder(repl)
    job = {
        "disk": f"{folder}/disk",
        "disk_every": 10,
        "is_first_of_host": True,
        "memory": f"{folder}/memory-{repl.worker_id}",
        "num_hosts": 2,
        "start": 1,
        "stop_file": f"{folder}/stop",
    }

    def begin():
        training = Training(repl, "deep", sharded_update=True)
        with mock.patch.dict(os.environ, REPLICATOR_ELASTIC=json.dumps(job)):
            state = replicator.ElasticState(
                repl, model=training.model, optimizer=training.optimizer
            )
        return training, state

    before, state = begin()
    before.run_between(0, HALF)
    state.step = HALF
    state.commit()
    check_shares(repl, before.slots())
    after, state = begin()
    check(HALF, state.step)
    check_shares(repl, after.slots())
    after.run_between(HALF, NUM_STEPS)
    check_weights(repl, after.weights())


def what_cannot_be_shared_out_is_refused(repl):
    def make(**options):
        return Training(repl, "deep", **{"sharded_update": True, **options})

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

    wrong = {
        r"OptimizerOptionError: .* with MultiWorkerBetweenGraphReplicator: one ": (
            lambda: make(accumulation_steps=2)
        ),
        r"OptimizerOptionError: global_clipnorm=1.0 does not work with .*: no wo": (
            lambda: make(
                sharded_update="gradients", accumulation_steps=2, global_clipnorm=1.0
            )
        ),
        r"sharded_update='parameters' does not work with .*: every worker keeps": (
            lambda: make(sharded_update="parameters")
        ),
        r"OptimizerOptionError: .*one \w*If node of the step uses the": in_a_branch,
        r"OptimizerOptionError: .* on worker 0 only, but the step uses it": (
            read_in_the_step
        ),
        r"OptimizerOptionError: .*sharded_update=True keeps .*_manager": (
            lambda: make().optimizer.save_own_variables({})
        ),
    }
    check_messages(wrong)


CASES = (
    a_sharded_update_is_the_unsharded_one,
    sharded_gradients_are_dropped_by_those_who_do_not_own_them,
    updates_of_several_owners_wait_for_each_other,
    two_replicas_per_worker_have_copies_each,
    a_checkpoint_of_two_workers_continues_with_one,
    a_checkpoint_of_one_replica_continues_with_two_workers,
    a_commit_on_each_host_has_the_state_of_all_workers,
    what_cannot_be_shared_out_is_refused,
)
