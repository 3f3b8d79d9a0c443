"""Every process of a job whose chief or worker is killed while it runs.

python member.py BACKEND VICTIM

The client of ``multi_worker_in_graph`` and of ``async`` runs steps; other processes
serve it. Workers of ``multi_worker`` wait for worker VICTIM, which sleeps.
"""

from __future__ import annotations

import sys
import time

from replicator import server
from replicator.cluster import environment

FOR_EVER_SEC = 600.0
# Until then servers, which look for their client in turns, have seen it.
SEEN_SEC = 3.0


def tell(line):
    """Writes one line."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main():
    """Serves, or tells that the job is under way and works until it is killed."""
    backend, victim = sys.argv[1], int(sys.argv[2])
    config = environment.detect().config()
    if not config.is_chief and backend != "multi_worker":
        server.run([])
    import replicator

    num_workers = len(config.addresses["worker"])
    repl = replicator.create(backend, num_replicas=num_workers)
    if backend == "multi_worker":
        if repl.worker_id == victim:
            tell("under way")
            time.sleep(FOR_EVER_SEC)
        start = time.monotonic()
        try:
            repl.assert_in_sync()
        except replicator.ReplicatorError as error:
            waited_sec = time.monotonic() - start
            tell(f"{type(error).__name__} after {waited_sec:.1f} s: {error}")
        return
    if backend == "multi_worker_in_graph":
        repl.run(lambda: 1.0)
    time.sleep(SEEN_SEC)
    tell("under way")
    time.sleep(FOR_EVER_SEC)


if __name__ == "__main__":
    main()
