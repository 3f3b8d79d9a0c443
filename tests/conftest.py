"""What all tests share: stores nobody measured, and the table of conformance.

The table is here and not beside its tests: where tests run in several processes, the
one that prints loads this file only.
"""

from __future__ import annotations

import importlib.util
import pathlib
import sys
from typing import Any

import pytest

CONFORMANCE = pathlib.Path(__file__).with_name("conformance")
_OUTCOMES: dict[tuple[str, str], str] = {}
_STATES = {"passed": "pass", "failed": "FAIL"}
SOURCE = pathlib.Path(__file__).parents[1] / "benchmarks" / "synthetic.py"


def pytest_runtest_logreport(report: Any) -> None:
    """Collects what came of each conformance case; the test says which it was."""
    if report.when == "call":
        for name, value in report.user_properties:
            if name == "conformance":
                _OUTCOMES[tuple(value)] = _STATES.get(report.outcome) or (
                    "-" if "not run here" in str(report.longrepr) else "lacks"
                )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints the table of backends and cases."""
    if not _OUTCOMES:
        return
    if str(CONFORMANCE) not in sys.path:
        sys.path.insert(0, str(CONFORMANCE))
    from conformance_cases import matrix

    terminalreporter.section(matrix.TITLE)
    for line in matrix.render_run(_OUTCOMES):
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def synthetic() -> Any:
    """The module ``benchmarks/synthetic.py``."""
    if "synthetic_store" not in sys.modules:
        spec = importlib.util.spec_from_file_location("synthetic_store", SOURCE)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        # Dataclasses look their module up while it is executed.
        sys.modules["synthetic_store"] = module
        spec.loader.exec_module(module)
    return sys.modules["synthetic_store"]
