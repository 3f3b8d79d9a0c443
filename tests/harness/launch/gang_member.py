"""A member of a gang that says who it is in JSON; with ``sum``, what all sum.

With ``probe`` and the directory of a trial, it writes there who it is, where, and when
it ran, and sums the ranks of its workers, which count from 1, by connections between
the addresses that the workers were given.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path

from replicator.cluster import environment

_LONGEST_SEC = 60.0
_HOLDS_SEC = 1.5
"""So long that a gang on the same nodes would be seen."""


def identity():
    config = environment.detect().config()
    return {
        "worker_id": config.worker_id,
        "local_worker_id": config.local_worker_id,
        "num_workers_on_host": config.num_workers_on_host,
        "addresses": list(config.addresses["worker"]),
    }


def sum_of_ranks():
    import tensorflow as tf

    import replicator

    repl = replicator.create("multi_worker", num_replicas=2, timeout_sec=60.0)

    def step(_):
        rank = tf.cast(replicator.get_replica_context().replica_id, tf.float32)
        return replicator.all_sum(rank + 1.0)

    inputs = repl.make_input_iterator(
        lambda _: tf.data.Dataset.from_tensors(tf.zeros([1])).repeat()
    )
    total = repl.reduce("mean", repl.run(step, inputs))
    return {"worker_id": repl.worker_id, "sum": float(total)}


def met(addresses, index):
    """Returns the sum of the ranks of two workers, each of which hears the other's."""
    places = [
        (host, int(port)) for host, _, port in (a.rpartition(":") for a in addresses)
    ]
    deadline = time.monotonic() + _LONGEST_SEC
    with socket.create_server(places[index]) as server:
        server.settimeout(_LONGEST_SEC)
        while True:
            try:
                said = socket.create_connection(places[1 - index], timeout=1.0)
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        with said:
            said.sendall(bytes([index + 1]))
            heard, _ = server.accept()
            with heard:
                return float(index + 1 + heard.recv(1)[0])


def probe(directory):
    config = json.loads(os.environ["TF_CONFIG"])
    start_sec = time.monotonic()
    index, workers = config["task"]["index"], config["cluster"]["worker"]
    total = met(workers, index)
    time.sleep(_HOLDS_SEC)
    answer = {
        "index": index,
        "workers": workers,
        "node_id": os.environ["RAY_NODE_ID"],
        "sum": total,
        "start_sec": start_sec,
        "end_sec": time.monotonic(),
    }
    (Path(directory) / f"probe_{index}").write_text(json.dumps(answer))


def main(what="", directory=""):
    if what == "probe":
        probe(directory)
    else:
        answer = sum_of_ranks() if what == "sum" else identity()
        sys.stdout.write(f"{json.dumps(answer)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
