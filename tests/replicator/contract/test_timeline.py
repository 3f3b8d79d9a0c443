"""A profile and a timeline show the steps of run() and where each op belongs."""

import json

import keras
import pytest
import tensorflow as tf
from staged_model import Model, batches

import replicator


def events_of(path):
    """The events of a valid trace that last, those of each thread within it."""
    found = json.loads(path.read_text())["traceEvents"]
    lasting = [event for event in found if event["ph"] == "X"]
    threads = {(e["pid"], e["tid"]) for e in found if e["name"] == "thread_name"}
    for event in lasting:
        assert event["dur"] >= 0 < event["ts"]
        assert (event["pid"], event["tid"]) in threads
    return lasting


def places(events, *keys):
    """What arguments of events say of these keys, where they have them all."""
    found = [event["args"] for event in events]
    return {tuple(of[k] for k in keys) for of in found if all(k in of for k in keys)}


def test_ops_have_their_replica_and_their_bucket(tmp_path):
    repl = replicator.create("in_graph", num_replicas=2)
    with repl.context():
        weights = [tf.Variable(tf.ones([1024, 1024])) for _ in range(8)]
    optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1))

    def step(x):
        with tf.GradientTape() as tape:
            y = x
            for weight in weights:
                y = tf.tanh(tf.linalg.matmul(y, weight))
            loss = tf.reduce_mean(y)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        return loss

    x = replicator.PerReplica([tf.ones([4, 1024])] * 2)
    repl.run(step, x)
    path = tmp_path / "trace.json"
    with repl.timeline(path):
        repl.run(step, x)

    events = events_of(path)
    products = {r for r, op in places(events, "replica", "op") if "MatMul" in op}
    assert {0, 1} == products  # of oneDNN, where it is used
    buckets = {name for (name,) in places(events, "bucket")}
    assert repl.counts()["collectives"] == len(buckets) > 1


def test_ops_of_a_pipeline_have_their_stage_and_their_task(tmp_path):
    model = Model(2, 2)
    pipeline = model.pipeline(num_microbatches=2)
    inputs = model.repl.make_input_iterator(batches)
    model.train(pipeline, 1)
    path = tmp_path / "trace.json"
    with model.repl.timeline(path):
        model.repl.run(model.step, inputs)

    assert {
        (replica, k, str(task))
        for replica in range(2)
        for k, own in enumerate(pipeline.schedule)
        for task in own
    } <= places(events_of(path), "replica", "stage", "task")


def test_one_profile_at_a_time_and_one_after_a_failure(tmp_path):
    """A step that fails is in its trace."""
    repl = replicator.create("single")
    path = tmp_path / "trace.json"

    with (
        pytest.raises(RuntimeError, match="another profile is running in this process"),
        repl.timeline(path),
        repl.timeline(tmp_path / "other.json"),
    ):
        pass

    assert events_of(path) is not None
    assert not (tmp_path / "other.json").exists()
    with repl.timeline(path):
        repl.run(lambda: tf.constant(1.0))
    assert events_of(path)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", r"^timeline\(''\) must be the path of a file to write$"),
        (3, r"^timeline\(3\) must be the path of a file to write$"),
        (".", r"^timeline\(\) cannot write '.': it is a folder; use a file in a"),
        ("no/x.json", r"cannot write 'no/x.json': there is no folder .*; use a file"),
        ("a\0b", r"cannot write 'a.*b': .*null byte.*; use a file in a folder that "),
    ],
)
def test_a_path_that_cannot_be_written(path, message):
    with pytest.raises((TypeError, ValueError), match=message):
        replicator.create("single").timeline(path)


def test_a_profile_has_numbered_steps_and_the_ops_of_every_replica(tmp_path):
    """The recorded trace has the range of run(), its step numbers, replica_<r>/ ops."""
    repl = replicator.create("in_graph", num_replicas=2)
    values = replicator.PerReplica([tf.ones([64, 64]), tf.ones([64, 64])])

    def step(x):
        for _ in range(4):
            x = tf.linalg.matmul(x, x, name="my_product")
        return replicator.all_sum(x)

    repl.run(step, values)
    tf.profiler.experimental.start(str(tmp_path))
    for _ in range(3):
        repl.run(step, values)
    tf.profiler.experimental.stop()

    (trace,) = tmp_path.rglob("*.xplane.pb")
    recorded = trace.read_bytes()
    assert b"replicator/run" in recorded
    assert b"step_num" in recorded
    assert b"replica_0/my_product" in recorded
    assert b"replica_1/my_product" in recorded
    assert 4 == repl.num_steps_run
