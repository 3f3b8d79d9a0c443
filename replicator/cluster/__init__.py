"""Processes of one job: configuration, start-up, liveness, failures, servers.

Whether another process is alive is four questions, each answered in one place:

- does anything accept connections at its address: ``liveness.Link``;
- does a TensorFlow server respond there: ``liveness.answers``;
- is it still the same process: ``liveness.Peer``;
- is it a member of this job: the coordination service (``_tf.workers.check_peer``).
"""
