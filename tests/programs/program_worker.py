"""What every worker of a cluster runs: ``program_worker.py FOLDER PROGRAM...``.

Leaves in the folder what each program returned, or how it failed.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from pathlib import Path

TIMEOUT_SEC = 60.0


def main():
    """Runs the programs one after the other on one replicator."""
    folder, *names = sys.argv[1:]
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    import replicator

    repl = replicator.create("multi_worker", num_replicas=2, timeout_sec=TIMEOUT_SEC)
    from tutorials import targets

    def outcome(name):
        try:
            return targets.run(name, repl)
        except Exception:  # noqa: BLE001 - the test shows it
            return traceback.format_exc()

    outcomes = {name: outcome(name) for name in names}
    path = Path(folder) / f"outcomes_{repl.worker_id}.pickle"
    path.write_bytes(pickle.dumps(outcomes))


if __name__ == "__main__":
    main()
