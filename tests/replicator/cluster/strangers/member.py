"""What runs in a job whose chief or worker is killed while it does.

The client of ``multi_worker_in_graph`` and of ``async`` runs steps; other processes
serve it. Workers of ``multi_worker`` wait for worker VICTIM, which sleeps.
"""

import time

import messages

import replicator
from replicator.cluster import environment

FOR_EVER_SEC = 500.0
# Until then servers, which look for their client in turns, have seen it.
SEEN_SEC = 3.0


def set_up(_folder, *, backend, victim):
    return backend, victim


def work(backend, victim):
    """Says that the job is under way, and works until somebody is killed."""
    config = environment.detect().config()
    num_workers = len(config.addresses["worker"])
    repl = replicator.create(backend, num_replicas=num_workers)
    if backend == "multi_worker":
        if repl.worker_id == victim:
            messages.send(under_way=True)
            time.sleep(FOR_EVER_SEC)
        start = time.monotonic()
        try:
            repl.assert_in_sync()
        except replicator.ReplicatorError as error:
            messages.send(
                error=f"{type(error).__name__}: {error}",
                waited_sec=time.monotonic() - start,
            )
        return
    if backend == "multi_worker_in_graph":
        repl.run(lambda: 1.0)
    time.sleep(SEEN_SEC)
    messages.send(under_way=True)
    time.sleep(FOR_EVER_SEC)


CASES = {"work": work}
