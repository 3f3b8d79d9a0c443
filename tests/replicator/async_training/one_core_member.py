"""A member of a cluster with parameter servers; the chief takes four steps."""

import json
import os
import sys

if json.loads(os.environ["TF_CONFIG"])["task"]["type"] != "chief":
    from replicator import server

    server.run([])

import tensorflow as tf

import replicator

RECOVERY_SEC = 2.0 if sys.argv[1] == "no end" else 600.0
if sys.argv[1] == "one thread":
    tf.config.threading.set_inter_op_parallelism_threads(1)
if sys.argv[1] == "too late":
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.constant(1.0)
repl = replicator.create("async", recovery_timeout_sec=RECOVERY_SEC)
with repl.context():
    count = tf.Variable(0.0)
if sys.argv[1] == "no end":
    repl.run(lambda: tf.while_loop(lambda x: x < 1.0, lambda x: (x * 1.0,), [count]))
repl.run(lambda: count.assign_add(1.0), num_steps=2)
print("count", count.numpy())  # noqa: T201
