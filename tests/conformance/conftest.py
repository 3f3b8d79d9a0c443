"""The conformance suite: where cases are found, and what becomes of a hang."""

import os
import sys
from pathlib import Path

import pytest

# Cases are imported here and in the processes of clusters, by the same name.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from conformance_cases import cases
from conformance_cases.targets import NUM_VIRTUAL_DEVICES

from replicator.core import devices

# Virtual devices must exist before TensorFlow runs its first op, so at collection.
devices.split_cpu(NUM_VIRTUAL_DEVICES)


@pytest.fixture(scope="session", autouse=True)
def _watchdog(request):
    """A case that hangs ends the run after showing where, past pytest's capture."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        cases.WATCHDOG["file"] = os.dup(2)
