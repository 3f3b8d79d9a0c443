"""One cluster of two workers; its client computes all cases while tests read them."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path

import pytest

from replicator.cluster.local_cluster import LocalCluster

FOLDER = Path(__file__).parent
CASE_TIMEOUT_SEC = 600


class Client:
    """Results of the cases, as soon as they are there."""

    def __init__(self, cluster, folder):
        """Reads results from a folder while the cluster runs."""
        self.cluster = cluster
        self._folder = folder

    def make_it_step(self):
        """Waits until all cases have ended, and lets the client run steps from then."""
        self.result("all")
        (self._folder / "go_on").touch()
        self.result("stepping")

    def result(self, name):
        """What a case returned; waits for it, and raises what it raised."""
        path = self._folder / f"{name}.json"
        deadline = time.monotonic() + CASE_TIMEOUT_SEC
        while not path.exists():
            if not self.cluster.is_running("worker", 0):
                pytest.fail(f"the client ended early\n{self.cluster.tails()}")
            if time.monotonic() > deadline:
                pytest.fail(f"{name} took too long\n{self.cluster.tails()}")
            time.sleep(0.05)
        result = json.loads(path.read_text(encoding="utf-8"))
        if "error" in result:
            pytest.fail(result["traceback"])
        return result["value"]


@pytest.fixture(scope="session")
def cases():
    """The module that client and tests share."""
    spec = importlib.util.spec_from_file_location("remote_cases", FOLDER / "cases.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def client(tmp_path_factory):
    """The cluster's client."""
    folder = tmp_path_factory.mktemp("remote")
    argv = [sys.executable, str(FOLDER / "client.py"), str(folder)]
    env = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}
    with LocalCluster(argv, num_workers=2, env=env, log_dir=folder / "logs") as cluster:
        yield Client(cluster, folder)
