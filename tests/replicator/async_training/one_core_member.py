"""A member of a cluster on one core; the chief takes four steps."""

import json
import os
import sys

import tensorflow as tf

import replicator
from replicator import server

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
if json.loads(os.environ["TF_CONFIG"])["task"]["type"] != "chief":
    server.run([])
tf.config.threading.set_inter_op_parallelism_threads(1)
if sys.argv[1] == "too late":
    tf.constant(1.0)
repl = replicator.create("async")
with repl.context():
    count = tf.Variable(0.0)
repl.run(lambda: count.assign_add(1.0), num_steps=2)
print("count", count.numpy())  # noqa: T201
