"""What nobody refers to any more is gone: programs, functions, copies of variables."""

import gc
import json
import re
import weakref

import keras
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context as eager_context
from tiny_models import Model, batches

import replicator


def function_names():
    return set(map(str, eager_context.context().list_function_names()))


def _make_step(repl):
    with repl.context():
        layers = [keras.layers.Dense(8), keras.layers.BatchNormalization()]
        model = keras.Sequential([keras.Input((4,)), *layers])
        optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1, momentum=0.9))

    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(tf.ones([2, 4]), training=True) ** 2)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        return loss

    return step


@pytest.mark.parametrize(("name", "num_replicas"), [("single", 1), ("in_graph", 4)])
def test_a_program_goes_with_its_step_function(name, num_replicas):
    repl = replicator.create(name, num_replicas=num_replicas)

    def graphs():
        gc.collect()
        found = [o for o in gc.get_objects() if type(o).__name__ == "FuncGraph"]
        return {id(g) for g in found if g.name == "replica"}

    no_graphs, before = graphs(), function_names()
    step = _make_step(repl)
    repl.run(step)
    reference, num_added = weakref.ref(step), len(function_names() - before)
    table = [] if name == "single" else repl._table.entries()
    copies = [weakref.ref(copy) for entry in table for copy in entry.copies]
    assert set() == graphs() - no_graphs
    del step, table
    gc.collect()

    assert num_added
    assert copies or name == "single"
    assert reference() is None
    assert set() == {n for n in function_names() - before if "replicated" in n}
    assert [] == repl._programs.items()
    assert name == "single" or [] == repl._table.entries()
    assert [] == [c for c in copies if c() is not None]


def test_programs_live_as_long_as_the_objects_of_their_steps():
    """agent.step is made anew at each access, and still traced once.

    State that two steps use outlives the first of them.
    """
    repl = replicator.create("in_graph", num_replicas=2)
    with repl.context():
        local = tf.Variable(0.0, trainable=False)
    traced = []

    class Agent:
        def step(self):
            traced.append(self)
            replica_id = replicator.get_replica_context().replica_id
            local.assign_add(tf.cast(replica_id + 1, tf.float32))
            return local.read_value()

    def read():
        return local.read_value()

    agent = Agent()
    for _ in range(3):
        repl.run(agent.step)
        gc.collect()
    repl.run(read)

    assert 1 == len(traced)
    traced.clear()
    del agent
    gc.collect()

    assert [3.0, 6.0] == [float(v) for v in repl.run(read)]
    assert 1 == len(repl._programs.items())


TYPES = [
    *("float8_e4m3fn", "bfloat16", "float16", "float32", "float64"),
    *("int4", "uint4", "complex64", "complex128", "bool"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
]


def _array(name, values):
    dtype = getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name
    return np.asarray(values).astype(dtype)


def _words(call):
    with pytest.raises(ValueError, match="reduce") as caught:
        call()
    said = re.sub(r"^.*(all_)?reduce '", "'", str(caught.value), flags=re.DOTALL)
    return said.strip()


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("op", ["sum", "mean", "min", "max"])
def test_outside_a_step_types_are_reduced_as_inside(repl_once, op):
    numbers = [[r + 1, 3 - r] for r in range(repl_once.num_replicas)]
    values = {
        name: replicator.PerReplica([tf.constant(_array(name, v)) for v in numbers])
        for name in TYPES
    }
    refused = [
        name
        for name in TYPES
        if (op == "mean" and ("int" in name or name == "bool"))
        or (op not in {"mean", "sum"} and name.startswith("complex"))
        or (op == "sum" and name == "bool")
    ]
    taken = {name: values[name] for name in TYPES if name not in refused}

    inside = repl_once.run(
        lambda given: {name: replicator.all_reduce(x, op) for name, x in given.items()},
        taken,
    )

    for name, value in taken.items():
        outside = repl_once.reduce(op, value)
        assert outside.dtype == inside[name][0].dtype
        np.testing.assert_array_equal(
            outside.numpy().astype(complex), inside[name][0].numpy().astype(complex)
        )
    for name in refused[:1] + refused[-1:]:
        assert _words(lambda name=name: repl_once.reduce(op, values[name])) == _words(
            lambda name=name: repl_once.run(
                lambda x: replicator.all_reduce(x, op), values[name]
            )
        )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            [tf.zeros([1]), tf.zeros([2])],
            r"differs .* float32\(1,\), float32\(2,\), is",
        ),
        (
            [tf.constant(1.0), tf.constant(1.0, tf.float64)],
            r"differs between replicas, .*float32\(\), flo",
        ),
        ([], r"reduce 'mean' of 0 .*are 2 repl"),
        ([1.0] * 3, r"reduce 'mean' of 3 .*are 2 repl"),
    ],
)
def test_what_has_no_mean_is_refused(in_graph, values, message):
    with pytest.raises((TypeError, ValueError), match=message):
        in_graph.reduce("mean", replicator.PerReplica(values))


@pytest.mark.parametrize(
    "repl_once", [("single", 1), ("tf_mirrored", 2)], indirect=True
)
def test_slices_are_reduced_densely_and_strings_not_at_all(repl_once):
    slices = tf.IndexedSlices(tf.ones([1, 2]), tf.constant([1]), tf.constant([2, 2]))
    count = repl_once.num_replicas

    reduced = repl_once.reduce("sum", replicator.PerReplica([slices] * count))

    assert [[0, 0], [count] * 2] == reduced.numpy().tolist()
    with pytest.raises(ValueError, match=r"reduce 'mean' of string is not defined"):
        repl_once.reduce("mean", replicator.PerReplica(["a"] * count))


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
        weights = [tf.Variable(tf.ones([1024, 1024])) for _ in range(4)]
    optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1))

    def step(x):
        with tf.GradientTape() as tape:
            for weight in weights:
                x = tf.tanh(tf.linalg.matmul(x, weight, name="my_product"))
            loss = tf.reduce_mean(x)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, weights), weights, strict=True)
        )
        return loss

    x = replicator.PerReplica([tf.ones([4, 1024])] * 2)
    repl.run(step, x)
    path = tmp_path / "trace.json"
    with repl.timeline(path):
        repl.run(step, x)
    tf.profiler.experimental.start(str(tmp_path))
    repl.run(step, x)
    tf.profiler.experimental.stop()

    events = events_of(path)
    products = {r for r, op in places(events, "replica", "op") if "MatMul" in op}
    assert {0, 1} == products  # of oneDNN, where it is used
    buckets = {name for (name,) in places(events, "bucket")}
    assert repl.counts()["collectives"] == len(buckets) > 1
    (trace,) = tmp_path.rglob("*.xplane.pb")
    recorded = trace.read_bytes()
    for name in (b"replicator/run", b"step_num", b"replica_1/my_product"):
        assert name in recorded
    assert 3 == repl.num_steps_run


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
