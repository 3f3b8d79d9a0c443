"""A process of a trial that writes who it is, where, and when it ran.

    python gang_probe.py <trial directory>

It sums the ranks of its workers, which count from 1, by connections between the
addresses that the workers were given.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path

_LONGEST_SEC = 60.0
_HOLDS_SEC = 1.5
"""So long that a gang on the same nodes would be seen."""


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


def main():
    (directory,) = sys.argv[1:]
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


if __name__ == "__main__":
    main()
