"""Every process of the test cluster: worker 0 is the client, the others serve.

    python client.py RESULTS_DIR

The client runs every function of ``client_cases`` and writes what it returned, or the
error that it raised, to a file of its name. Once there is a file ``go_on``, it runs
steps until it is killed.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from pathlib import Path

from replicator import server
from replicator.cluster import environment


def main():
    """Serves, or runs all cases."""
    config = environment.detect().config()
    if not config.is_chief:
        server.run([])
    import client_cases

    client_cases.make(2)  # without servers, no case can run
    folder = Path(sys.argv[1])
    for name, case in client_cases.CASES.items():
        start = time.monotonic()
        try:
            result = {"value": case()}
        except Exception as error:  # noqa: BLE001 (the test raises it again)
            result = {
                "error": f"{type(error).__name__}: {error}",
                "traceback": traceback.format_exc(),
            }
        result["duration_sec"] = time.monotonic() - start
        _write(folder, name, result)
    _write(folder, "all", {"value": list(client_cases.CASES)})
    while not (folder / "go_on").exists():  # the cores are left to other tests
        time.sleep(0.1)
    client_cases.run_forever(lambda: _write(folder, "stepping", {"value": True}))


def _write(folder, name, result):
    part = folder / f"{name}.part"
    part.write_text(json.dumps(result), encoding="utf-8")
    part.rename(folder / f"{name}.json")


if __name__ == "__main__":
    main()
