"""Processes of one job: configuration, start-up, liveness, failures, servers.

Rooms, highest first: ``workers`` (each runs the program), ``remote`` and ``tpu_system``
(one client's devices elsewhere); ``liveness`` and ``environment`` (who is there, and
where); what a process of a cluster is, and who may reach its port.

Whether another process is alive is four questions, each answered in one place:

- does anything accept connections at its address: ``liveness.reachability.accepts``;
- does a TensorFlow server respond there: ``liveness.peer.answers``;
- is it still the same process: ``liveness.peer.Peer``;
- is it a member of this job: the coordination service (``_tf.workers.check_peer``).
"""
