"""sharded_update beside what is drawn: memories, checkpoints, order, refusals.

That every level trains as one device does, with all options and on other replicas, is
drawn in ``tests/fuzz`` and asked of every backend in ``tests/conformance``.
"""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from cluster_member import check_message
from tiny_models import Training, copies, dense

import replicator

NUM_REPLICAS = 4
MADE = keras.optimizers


def _adam():
    return MADE.Adam(0.01)


def _deep():
    return dense(12, 12, 12, 3)


def _trained(repl, last, **options):
    training = Training(repl, _deep, _adam, **options)
    training.run_between(0, last)
    return training


def _values(training):
    variables = [*training.model.trainable_variables, *training.optimizer.variables]
    return [np.asarray(v) for v in variables]


def _check_close(expected, got, rtol=1e-5, atol=1e-6):
    for want, value in zip(expected, got, strict=True):
        np.testing.assert_allclose(value, want, rtol=rtol, atol=atol)


def _check_same(expected, got):
    _check_close(_values(expected), _values(got), rtol=0, atol=0)


@functools.cache
def _unsharded():
    return _trained(copies(), 4)


@functools.cache
def _alone(num_steps, **options):
    repl = replicator.create("single")
    return _trained(repl, num_steps, **options).weights()


def test_separate_memories_give_the_same(separate):
    sharded = _trained(separate(NUM_REPLICAS), 4, sharded_update=True)

    _check_same(_unsharded(), sharded)
    plans = next(program for _, program in sharded.repl._programs.items()).plans
    assert {0, 1, 2, 3} == {b.owner for plan in plans for b in plan.buckets}


def test_where_memory_is_shared_there_is_nothing_to_shard():
    repl = replicator.create("in_graph", num_replicas=NUM_REPLICAS)

    sharded = _trained(repl, 4, sharded_update="parameters")

    _check_same(_unsharded(), sharded)
    assert "replicas share one copy of every variable" in repl.explain()
    assert "gathers" not in repl.explain()


def _checkpoint(training):
    return tf.train.Checkpoint(
        model=training.model, optimizer=training.optimizer.wrapped
    )


def test_checkpoints_of_tensorflow_go_both_ways(tmp_path):
    then = _trained(copies(), 2, sharded_update=True)
    for step, is_sharded in ((2, False), (3, True)):
        path = _checkpoint(then).write(str(tmp_path / f"state-{step}"))

        then = _trained(copies(), 1, sharded_update=is_sharded)
        _checkpoint(then).read(path).assert_consumed()
        then.run_between(step, step + 1)

    _check_same(_unsharded(), then)


def test_checkpoints_go_from_any_level_to_any(tmp_path):
    ways = [
        (copies(2), "gradients"),
        (copies(4), "parameters"),
        (replicator.create("single"), False),
        (copies(2), "parameters"),
    ]
    for place, (repl, level) in enumerate(ways):
        training = Training(repl, _deep, _adam, sharded_update=level)
        manager = training.make_manager(tmp_path)
        if place:
            training.run(1)  # forgotten by restoring
            assert place == manager.restore().step
        training.run_between(place, place + 1)
        manager.save()

    _check_close(_alone(len(ways)), training.weights())


@pytest.mark.parametrize(("level", "rtol"), [("state", 0), ("parameters", 1e-6)])
def test_reads_and_writes_stay_in_order(level, rtol):
    results = []
    for sharded_update in (False, level):
        repl = copies()
        with repl.context():
            weights = [tf.Variable(float(i + 1)) for i in range(4)]
            optimizer = repl.wrap_optimizer(
                MADE.SGD(0.5, momentum=0.5), sharded_update=sharded_update
            )

        def step(x, weights=weights, optimizer=optimizer):
            seen = []
            for _ in range(2):
                old = [w.read_value() for w in weights]
                seen += [w * x for w in old]
                optimizer.apply_gradients([(w * x, w) for w in weights])
                seen += [w * x for w in weights]
                seen += [w * x + seen[-1] for w in old]
                weights[1].assign_add(weights[2] * weights[3])
                seen += [w * x for w in weights]
                weights[3].assign(weights[1])
            slot = optimizer.wrapped.momentums[2] * x
            return tf.stack([*seen, slot])

        x = replicator.PerReplica([tf.constant(r + 1.0) for r in range(NUM_REPLICAS)])
        outs = [np.stack(repl.run(step, x).values) for _ in range(3)]
        repl.assert_in_sync()
        results.append((outs, [w.numpy() for w in weights]))

    for whole, sharded in zip(*results, strict=True):
        np.testing.assert_allclose(sharded, whole, rtol)


def test_variables_of_owners_read_and_write_outside_steps():
    trained = _trained(copies(), 1, sharded_update="parameters")
    variable = trained.model.trainable_variables[4]
    devices = {v.value.device for v in trained.model.trainable_variables}
    assert set(trained.repl.devices) == devices

    before = variable.numpy()
    variable.assign(before + 1.0)
    seen = trained.repl.run(lambda: tf.reduce_sum(variable))
    outside = tf.function(lambda: tf.reduce_sum(variable))()

    for value in (*seen.values, outside):
        np.testing.assert_allclose(before.sum() + before.size, value, rtol=1e-5)
    predicted = trained.model.predict(np.ones([2, 12], np.float32), verbose=0)
    assert (2, 3) == predicted.shape


def test_steps_of_before_use_the_variables_where_they_are():
    repl = copies(2)
    with repl.context():
        weights = [tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])]
        optimizer = repl.wrap_optimizer(MADE.SGD(0.5), sharded_update="parameters")
    before = tf.function(lambda: tf.tensordot(weights[0], weights[1], axes=1))
    before()

    def evaluate():
        return tf.add_n(weights)

    def step():
        optimizer.apply_gradients([(tf.ones([2]), w) for w in weights])

    for num_updates in range(3):
        for value in repl.run(evaluate).values:
            np.testing.assert_array_equal(
                np.float32([4.0, 6.0]) - num_updates, value.numpy()
            )
        repl.run(step)
    with pytest.raises(tf.errors.OpError):
        before()


def _on_a_stock_strategy(level):
    repl = replicator.create("tf_mirrored", num_replicas=2, devices=["CPU:0", "CPU:1"])
    repl.wrap_optimizer(MADE.SGD(), sharded_update=level)


def _on_split_replicas(level):
    split = replicator.create(
        "in_graph",
        num_replicas=2,
        logical_devices_per_replica=2,
        devices=[["CPU:0", "CPU:1"], ["CPU:2", "CPU:3"]],
    )
    split.wrap_optimizer(MADE.SGD(), sharded_update=level)


def _skipped_by_keras(level):
    options = {"sharded_update": level, "accumulation_steps": 2}
    Training(copies(2), "dense", "adamw", **options).run(1)


REFUSED = {
    "'gradients' does not work with .*: all replicas upd": _on_a_stock_strategy,
    "'parameters' does not work with .*: all replicas u": _on_a_stock_strategy,
    "'parameters' .*: a replica has several": _on_split_replicas,
    "'gradients' with updates that are skipped .*AdamW here": _skipped_by_keras,
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_a_level_cannot_do_is_refused(said):
    level = said.split("'")[1]

    check_message(
        f"^OptimizerOptionError: .*sharded_update={said}", lambda: REFUSED[said](level)
    )
