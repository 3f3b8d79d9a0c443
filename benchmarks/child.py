"""A fresh process of a benchmark: ``python -m benchmarks.child PLAN``, a JSON object.

Pins itself, then imports a module, calls a function of it, and gives back the result:
as a line of standard output, or in the file that the plan names. A function that is a
generator yields what it knows when it is ready, and measures whenever it is resumed by
a line of standard input, until that ends.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import types
from pathlib import Path
from typing import Any

MARK = "measured: "


def main() -> None:
    """Does what the plan says."""
    plan = json.loads(sys.argv[1])
    if plan["cores"]:
        os.sched_setaffinity(0, plan["cores"])
    function = getattr(importlib.import_module(plan["module"]), plan["function"])
    result = function(**plan["arguments"])
    if isinstance(result, types.GeneratorType):
        for value in result:
            _give(value)
            if not sys.stdin.readline():
                break
    elif not plan["result"]:
        _give(result)
    elif result is not None:  # one process of a cluster has it
        Path(plan["result"]).write_text(json.dumps(result), encoding="utf-8")


def _give(value: Any) -> None:
    print(MARK + json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
