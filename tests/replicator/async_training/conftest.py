"""Clusters with parameter servers; their chiefs compute cases while tests read them."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path

import pytest

from replicator.cluster.local_cluster import LocalCluster

FOLDER = Path(__file__).parent
CASE_TIMEOUT_SEC = 600
ENV = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}


class Chief:
    """Results of the cases, as soon as they are there."""

    def __init__(self, cluster, folder):
        """Reads results from a folder while the cluster runs."""
        self.cluster = cluster
        self.folder = folder

    def wait_for(self, path, timeout_sec=CASE_TIMEOUT_SEC):
        """Waits for a file that the chief writes; returns its text."""
        deadline = time.monotonic() + timeout_sec
        while not path.exists():
            if not self.cluster.is_running("chief", 0) and not path.exists():
                pytest.fail(f"the chief ended early\n{self.cluster.tails()}")
            if time.monotonic() > deadline:
                pytest.fail(f"{path.name} took too long\n{self.cluster.tails()}")
            time.sleep(0.02)
        return path.read_text(encoding="utf-8")

    def result(self, name):
        """What a case returned; waits for it, and raises what it raised."""
        result = self.outcome(name)
        if "error" in result:
            pytest.fail(result["traceback"])
        return result["value"]

    def error(self, name):
        """Type and message of the error that a case raised."""
        result = self.outcome(name)
        if "error" not in result:
            pytest.fail(f"{name} raised nothing, but returned {result['value']!r}")
        return result["error"]

    def outcome(self, name):
        """What is in a case's file."""
        return json.loads(self.wait_for(self.folder / f"{name}.json"))


@contextlib.contextmanager
def started(module, folder, **counts):
    """A cluster whose chief runs the cases of a module."""
    argv = [sys.executable, str(FOLDER / "member.py"), module, str(folder)]
    with LocalCluster(
        argv, has_chief=True, env=ENV, log_dir=folder / "logs", **counts
    ) as cluster:
        yield Chief(cluster, folder)


@pytest.fixture(scope="session")
def two_servers(tmp_path_factory):
    """Two workers with two virtual devices each, and two servers."""
    folder = tmp_path_factory.mktemp("two_servers")
    with started("two_server_cases", folder, num_workers=2, num_ps=2) as chief:
        yield chief


@pytest.fixture(scope="session")
def one_worker(tmp_path_factory):
    """One worker and one server."""
    folder = tmp_path_factory.mktemp("one_worker")
    with started("one_worker_cases", folder, num_workers=1, num_ps=1) as chief:
        yield chief


@pytest.fixture
def start():
    """Starts a cluster of a test's own."""
    return started
