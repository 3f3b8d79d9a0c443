"""A process of a trial that only writes who it is, where, and when it ran."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def main() -> int:
    """Writes ``probe_<index>`` into the directory of the trial."""
    config = json.loads(os.environ["TF_CONFIG"])
    start_sec = time.monotonic()
    time.sleep(1.5)
    answer = {
        "index": config["task"]["index"],
        "workers": config["cluster"]["worker"],
        "node_id": os.environ["RAY_NODE_ID"],
        "start_sec": start_sec,
        "end_sec": time.monotonic(),
    }
    path = Path(sys.argv[-1]) / f"probe_{answer['index']}"
    path.write_text(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
