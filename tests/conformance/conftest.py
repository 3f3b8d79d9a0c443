"""The conformance suite: where cases are found, and the table at the end of a run."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

# Cases are imported here and in the processes of clusters, by the same name.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from conformance_cases import matrix, runner
from conformance_cases.targets import NUM_VIRTUAL_DEVICES

from replicator import devices

# Virtual devices must exist before TensorFlow runs its first op, so at collection.
devices.split_cpu(NUM_VIRTUAL_DEVICES)

_RESULTS: dict[tuple[str, str], str] = {}
_STATES = {"passed": "pass", "failed": "FAIL"}


def pytest_runtest_logreport(report):
    """Collects what came of each case; the test says which it was."""
    if report.when == "call":
        for name, value in report.user_properties:
            if name == "conformance":
                _RESULTS[tuple(value)] = _STATES.get(report.outcome) or (
                    "-" if "not run here" in str(report.longrepr) else "lacks"
                )


def pytest_terminal_summary(terminalreporter):
    """Prints the table of backends and cases."""
    if _RESULTS:
        terminalreporter.section(matrix.TITLE)
        for line in matrix.render_run(_RESULTS):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session", autouse=True)
def _watchdog(request):
    """A case that hangs ends the run after showing where, past pytest's capture."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        runner.WATCHDOG["file"] = os.dup(2)
