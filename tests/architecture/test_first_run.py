"""What the first run of a step calls: how much a newcomer has to read."""

import json
import os
import subprocess
import sys

import case_cluster
import pytest

# Files that ``in_graph`` loads; files and code objects (lambdas and comprehensions too)
# of a first and a second run.
# Lower them when they fall; ``docs/architecture.md`` names the files.
MOST = {"loaded": (52, 0), "first": (37, 392), "second": (13, 44)}

PROGRAM = """
import json, os, sys
import keras, tensorflow as tf, replicator

repl = replicator.create("in_graph", num_replicas=2)
with repl.context():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1))

def step(batch):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(batch) - 1.0) ** 2)
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    return loss

batches = replicator.PerReplica([tf.ones([2, 4])] * 2)
root = os.path.dirname(replicator.__file__)

def count():
    called = set()
    def see(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root):
            called.add((code.co_filename, code.co_firstlineno))
    sys.setprofile(see)
    try:
        repl.run(step, batches)
    finally:
        sys.setprofile(None)
    return len({name for name, _ in called}), len(called)

modules = [module for name, module in sys.modules.items() if name[:11] == "replicator."]
loaded = sum(not hasattr(module, "__path__") for module in modules), 0
print(json.dumps({"loaded": loaded, "first": count(), "second": count()}))
"""


@pytest.mark.processes
def test_a_run_stays_short_to_read():
    """Counted in a process of its own: others may have imported and traced before."""
    done = subprocess.run(
        (sys.executable, "-c", PROGRAM),
        capture_output=True,
        text=True,
        check=True,
        env={
            **case_cluster.ENV,
            "PATH": "",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),  # a quick import
        },
    )
    for run, (files, functions) in json.loads(done.stdout).items():
        assert files <= MOST[run][0], (run, files)
        assert functions <= MOST[run][1], (run, functions)
