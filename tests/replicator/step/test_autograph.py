"""AutoGraph converts what the user wrote, and nothing of this library."""

import inspect
from pathlib import Path

import tensorflow as tf
from tensorflow.python.autograph.pyct import transpiler

import replicator

LIBRARY = Path(replicator.__file__).parent


def converted_by(call, monkeypatch):
    """The functions that a call makes AutoGraph convert, and where they are."""
    found = []
    original = transpiler.GenericTranspiler.transform_function

    def transform(self, function, context):
        found.append((function.__name__, Path(inspect.getfile(function))))
        return original(self, function, context)

    monkeypatch.setattr(transpiler.GenericTranspiler, "transform_function", transform)
    call()
    return found


def test_a_step_and_stages_are_converted_and_what_calls_them_is_not(monkeypatch):
    """Of a pipeline that was a third of what was converted."""
    repl = replicator.create("in_graph", num_replicas=1, logical_devices_per_replica=2)

    def stage(x):
        if tf.reduce_sum(x) > 0:  # Python alone could not
            x = x * 3.0
        return x

    def mean(outputs, targets):
        return tf.reduce_mean(outputs - targets)

    pipeline = replicator.Pipeline([stage, stage], num_microbatches=2)

    def step(x):
        if tf.reduce_max(x) > 1.0:
            x = x + 1.0
        return pipeline.loss_and_gradients((x, tf.zeros_like(x)), mean)[0]

    x = replicator.PerReplica([tf.constant([1.0, 3.0])])
    losses = []
    converted = converted_by(lambda: losses.extend(repl.run(step, x)), monkeypatch)

    assert [27.0] == [float(loss) for loss in losses]
    assert {"step", "stage", "mean"} == {name for name, _ in converted}
    assert not [path for _, path in converted if path.is_relative_to(LIBRARY)]
