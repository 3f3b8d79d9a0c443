"""Accumulation where replicas have memories of their own: each keeps its own sums."""

import collections

import keras
import numpy as np
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

import replicator


def _ran(folder, run):
    """How often each node of collectives ran, by the profile of what is run."""
    tf.profiler.experimental.start(str(folder))
    run()
    tf.profiler.experimental.stop()
    (path,) = folder.rglob("*.xplane.pb")
    counts = collections.Counter()
    for plane in xplane_pb2.XSpace.FromString(path.read_bytes()).planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                if "/collective_" in name:
                    counts[name.rpartition(":")[2]] += 1
    return counts


def test_gradients_meet_in_calls_that_update_only(separate, fed, tmp_path):
    """Of eight calls two add up what replicas have; the plan says that it is so."""
    run, _, _ = fed(separate(2), accumulation_steps=4)
    for _ in range(5):
        run(1.0, 2.0)

    counts = _ran(tmp_path, lambda: [run(1.0, 2.0) for _ in range(8)])

    assert 2 == counts["AddN"] == counts["Mul"]


def test_the_plan_says_which_collectives_wait(separate, fed):
    repl = separate(2)
    run, _, _ = fed(repl, accumulation_steps=4, loss_scale="dynamic")

    run(1.0, 2.0)

    waiting, always = "#1 all_reduce(mean)", "#0 all_reduce(min)"
    lines = {line.partition(":")[0]: line for line in repl.explain().splitlines()}
    assert lines[waiting].endswith(", in calls that update")
    assert "in calls that update" not in lines[always]


def test_steps_per_execution_accumulate_too(separate):
    """A dispatch of three steps begins and ends within windows of two."""
    repl = separate(2)
    with repl.context():
        weight = tf.Variable(0.0)
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(1.0), accumulation_steps=2)
    dataset = tf.data.Dataset.from_tensor_slices(np.arange(12, dtype=np.float32))
    inputs = repl.make_input_iterator(lambda _: dataset)

    def step(x):
        optimizer.apply_gradients([(x, weight)])

    seen = []
    for _ in range(2):
        repl.run(step, inputs, num_steps=3)
        seen.append(float(weight.numpy()))

    assert [-1.5, -1.5 - 5.5 - 9.5] == seen


def test_an_overflow_on_the_way_waits_for_a_smaller_scale(separate, fed):
    """The update is skipped, nothing that was added is lost, and the scale halves."""
    options = {"accumulation_steps": 2, "loss_scale": "dynamic"}
    run, _, optimizer = fed(separate(2), compression="float16", **options)

    seen = [run(3.0, 1.0), run(3.0, 1.0), run(6.0, 6.0)]

    # The mean of sums, halved and scaled: 2^15 * 2, then 2^14 * 5, then 2^13 * 5; only
    # the last is less than 65,504.
    assert [1.0, 1.0, 1.0] == seen
    assert 2.0**13 == float(optimizer.loss_scale.scale.numpy())
    assert 2 == int(optimizer.loss_scale.num_skipped_steps.numpy())
    assert 1.0 - (12.0 + 8.0) / 2 / 4 == run(0.0, 0.0)
    assert 0 == int(optimizer.accumulation.count.numpy())


def test_a_checkpoint_holds_an_accumulation_that_was_begun(separate, fed, tmp_path):
    """Saved by two replicas in the middle of a window, for any number of them."""
    repl = separate(2)
    run, weight, optimizer = fed(repl, accumulation_steps=2)
    manager = repl.make_checkpoint_manager(tmp_path, weight=weight, optimizer=optimizer)
    run(1.0, 3.0)
    manager.save(1)
    assert 1.0 - 3.0 == run(4.0, 4.0)

    for num_replicas in (2, 4, 1):
        then = separate(num_replicas)
        run, weight, optimizer = fed(then, accumulation_steps=2)
        run(*[9.0] * num_replicas)  # forgotten by restoring
        again = then.make_checkpoint_manager(
            tmp_path, weight=weight, optimizer=optimizer
        )
        again.restore()

        assert 1.0 - 3.0 == run(*[4.0] * num_replicas)


def test_sums_apart_are_those_of_a_sharded_update_too(separate):
    """Slots have one owner each; sums are wherever gradients are."""
    results = []
    for is_sharded in (False, True):
        repl = separate(2)
        with repl.context():
            weights = [tf.Variable(tf.ones([n])) for n in (8, 6, 5)]
            optimizer = repl.wrap_optimizer(
                keras.optimizers.Adam(0.1),
                accumulation_steps=2,
                sharded_update=is_sharded,
            )

        def step(x, weights=weights, optimizer=optimizer):
            optimizer.apply_gradients([(w * x, w) for w in weights])

        for call in range(4):
            grads = [tf.constant(call + 1.0), tf.constant(call + 2.0)]
            repl.run(step, replicator.PerReplica(grads))
        repl.assert_in_sync()
        results.append([w.numpy() for w in weights])

    for want, got in zip(*results, strict=True):
        np.testing.assert_allclose(want, got, rtol=1e-5)
