"""Every process of a test cluster: the chief runs cases, the others serve.

    python member.py MODULE RESULTS_DIR

The chief runs every function in ``CASES`` of the module and writes what it returned, or
the error that it raised, to a file of its name.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path

from replicator import server
from replicator.cluster import environment


def main():
    """Serves, or runs all cases."""
    config = environment.detect().config()
    if config.kind != "chief":
        server.run(["--num-cpu-devices", "2"])
    module = importlib.import_module(sys.argv[1])
    folder = Path(sys.argv[2])
    for name, case in module.CASES.items():
        start = time.monotonic()
        try:
            result = {"value": case()}
        except Exception as error:  # noqa: BLE001 (the test raises it again)
            result = {
                "error": f"{type(error).__name__}: {error}",
                "traceback": traceback.format_exc(),
            }
        result["duration_sec"] = time.monotonic() - start
        part = folder / f"{name}.part"
        part.write_text(json.dumps(result), encoding="utf-8")
        part.rename(folder / f"{name}.json")
    # TensorFlow's threads that wait for lost processes must not hold up the end.
    os._exit(0)


if __name__ == "__main__":
    main()
