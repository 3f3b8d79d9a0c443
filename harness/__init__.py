"""Plans, runs and records scaling studies; the parent never imports TensorFlow.

    import harness

    code = harness.main(["gate", "--workload", "resnet50", "--baseline", "main"])
    if code == harness.ExitCode.REGRESSION: ...

``command_line`` is the click group behind ``main``, for tools that document or complete
command lines. Launchers and plugins raise the errors.
"""

import sys as _sys
from pathlib import Path as _Path
from typing import TYPE_CHECKING as _TYPE_CHECKING

from harness.errors import HarnessError, LaunchError, PlanError

if _TYPE_CHECKING:
    from harness.cli.exit_codes import ExitCode
    from harness.cli.main import command_line, main

__all__ = [
    "ExitCode",
    "HarnessError",
    "LaunchError",
    "PlanError",
    "command_line",
    "main",
]

SOURCE_ROOT = _Path(__file__).resolve().parents[1]
"""The folder of our packages: a checkout, or where they are installed."""

# ``python -m`` looks into the current folder first, where a user may have a file with
# the name of a package, such as ``results.py``. ``-m`` stands in ``argv`` while the
# module is looked for, so in each process that is started as a module of this package.
_is_safe = _sys.flags.isolated or getattr(_sys.flags, "safe_path", False)
if (
    _sys.argv[:1] == ["-m"]
    and not _is_safe
    and _sys.path[0]
    and _Path(_sys.path[0]).resolve() != SOURCE_ROOT
):
    del _sys.path[0]


def __getattr__(name: str) -> object:
    """Loads the command line on first use: the process of a trial does without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from harness.cli import exit_codes, main

    return getattr(exit_codes if name == "ExitCode" else main, name)
