"""A process of a trial that writes who it is, where, and when it ran.

    python gang_probe.py sleep|sum <trial directory>

With ``sum`` it sums the ranks of its workers in TensorFlow, otherwise it only takes a
moment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def main() -> int:
    """Writes ``probe_<index>`` into the directory of the trial."""
    what, directory = sys.argv[1:]
    config = json.loads(os.environ["TF_CONFIG"])
    start_sec = time.monotonic()
    total = 0.0
    if what == "sum":
        from gang_sum import sum_of_ranks

        total, _ = sum_of_ranks()
    else:
        time.sleep(1.5)
    answer = {
        "index": config["task"]["index"],
        "workers": config["cluster"]["worker"],
        "node_id": os.environ["RAY_NODE_ID"],
        "sum": total,
        "start_sec": start_sec,
        "end_sec": time.monotonic(),
    }
    path = Path(directory) / f"probe_{answer['index']}"
    path.write_text(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
