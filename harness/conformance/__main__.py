"""Checks a program in any language against the protocol of the client.

python -m harness.conformance [--timeout SEC] [--only CHECK] -- COMMAND...

The command, which may have placeholders such as {per_replica_batch_size}, is started as
a trial of a study starts it, several times. Prints a line per check; the exit code is 0
if the program passes all, 4 if not, 2 if there is none.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from harness.command import program
from harness.conformance.checks import CHECKS, NonconformingError
from harness.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

PASSED, BAD_REQUEST, FAILED = 0, 2, 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m harness.conformance", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SEC")
    parser.add_argument("--only", choices=list(CHECKS), action="append")
    parser.add_argument("command", nargs="+", help="the program and its arguments")
    options = parser.parse_args(arguments)
    command: list[str] = options.command
    if shutil.which(command[0]) is None:
        sys.stderr.write(
            f"error: there is no program {command[0]!r} here; give its path, or one"
            " that is in PATH, after '--'\n"
        )
        return BAD_REQUEST
    try:
        for word in command:
            program.names_in(word)
    except PlanError as error:
        sys.stderr.write(f"error: {error}\n")
        return BAD_REQUEST
    num_failed = 0
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        for number, name in enumerate(options.only or CHECKS):
            try:
                detail = CHECKS[name](
                    Path(folder) / str(number), command, options.timeout
                )
            except NonconformingError as error:
                num_failed += 1
                sys.stdout.write(f"failed  {name:<15} {error}\n")
            else:
                sys.stdout.write(f"ok      {name:<15} {detail}\n")
            sys.stdout.flush()
    return FAILED if num_failed else PASSED


if __name__ == "__main__":
    sys.exit(main())
