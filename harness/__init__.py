"""Plans, runs and records scaling studies; the parent never imports TensorFlow.

    import harness

    code = harness.main(["gate", "--workload", "resnet50", "--baseline", "main"])
    if code == harness.ExitCode.REGRESSION: ...

``command_line`` is the click group behind ``main``, for tools that document or complete
command lines. Launchers and plugins raise the errors. What the harness knows of a
machine serves benchmarks of your own: ``read_core_clock`` says what others did to your
cores meanwhile, ``read_topology`` and ``read_machine_state`` what there is.

``__init__.pyi`` lists the public names, loaded on first use: the process of a trial
does without the command line.
"""

import sys as _sys
from pathlib import Path as _Path

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

import lazy_loader as _lazy_loader  # noqa: E402 - not one of the current folder

__getattr__, __dir__, __all__ = _lazy_loader.attach_stub(__name__, __file__)
