"""A member of a cluster with parameter servers; the chief takes four steps."""

from __future__ import annotations

import json
import os
import sys

if json.loads(os.environ["TF_CONFIG"])["task"]["type"] != "chief":
    from replicator import server

    server.run([])

import tensorflow as tf

import replicator

if sys.argv[1] == "one thread":
    tf.config.threading.set_inter_op_parallelism_threads(1)
if sys.argv[1] == "too late":
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.constant(1.0)
repl = replicator.create("async")
with repl.context():
    count = tf.Variable(0.0)
repl.run(lambda: count.assign_add(1.0), num_steps=2)
print("count", count.numpy())  # noqa: T201
