"""The command line with the fake worker of the harness's tests, in its own process.

``HARNESS_REAL_WORKER`` leaves the true worker in place; with ``HARNESS_QUIET`` every
block counts. The fingerprints of the code, which take 0.5 s, are told by a variable.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path

from harness.sources import code_digest

TESTS = Path(__file__).resolve().parents[1]
_VARIABLE = "TESTS_KNOW_FINGERPRINTS"


def command_of(function):
    """Starts the fake worker without ``site``: a quarter of the time of a trial."""
    packages = [path for path in sys.path if path.endswith("-packages")]
    paths = [*packages, str(TESTS / "harness")]
    code = f"import sys; sys.path += {paths!r}; import fake_worker; "
    return (sys.executable, "-S", "-c", f"{code}sys.exit(fake_worker.{function}())")


FAKE_WORKER, GATE_WORKER = command_of("main"), command_of("gate")


@functools.cache
def variables():
    """Returns the environment variable for such a process."""
    root = str(code_digest.SOURCE_ROOT)
    code_digest.read_once(code_digest.SOURCE_ROOT)
    known = code_digest._known.items()
    found = {p.removeprefix(root): of for p, of in known if p.startswith(root)}
    return {_VARIABLE: json.dumps(found)}


def _use_variables():
    for name, known in json.loads(os.environ.get(_VARIABLE, "{}")).items():
        code_digest._known[f"{code_digest.SOURCE_ROOT}{name}"] = tuple(known)


def main():
    import harness
    import reports

    _use_variables()
    # The page has tests of its own, and takes longer than these trials, as does the
    # import of what prints a table.
    reports.write_report = reports.print_summary = lambda *_: None
    overrides = {
        "canary": lambda _core: 0.2,
        "harness_command": (sys.executable, str(Path(__file__).resolve())),
    }
    if not os.environ.get("HARNESS_REAL_WORKER"):
        overrides["worker_command"] = FAKE_WORKER
    if os.environ.get("HARNESS_QUIET"):
        overrides["discard_reason"] = lambda _load, _num_retraces: ""
    sys.exit(harness.main(run_overrides=overrides))


if __name__ == "__main__":
    main()
