"""Clusters of workers that run named cases, started once and shared by tests."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from replicator.cluster.local_cluster import LocalCluster

FOLDER = Path(__file__).parent
TIMEOUT_SEC = 600.0


@dataclasses.dataclass(frozen=True)
class WorkerResults:
    """What the workers of a finished cluster reported, by case."""

    by_worker: list[dict[str, Any]]

    def of(self, case: str) -> list[Any]:
        """One result per worker; fails with the error of a case that raised."""
        results = []
        for worker, reported in enumerate(self.by_worker):
            assert case in reported, f"worker {worker} never came to {case}"
            assert "trace" not in reported[case], reported[case]["trace"]
            results.append(reported[case]["value"])
        return results


def run_script(folder: Path, script: str, *arguments: str, num_workers: int = 2) -> Any:
    """Runs a script of this folder on every worker; returns what they wrote."""
    argv = [sys.executable, str(FOLDER / script), str(folder), *arguments]
    with LocalCluster(argv, num_workers=num_workers, log_dir=folder) as cluster:
        cluster.check(TIMEOUT_SEC)
    return WorkerResults(
        [
            json.loads((folder / f"results_{worker}.json").read_text())
            for worker in range(num_workers)
        ]
    )


@pytest.fixture(scope="session")
def run_workers() -> Any:
    """Runs a script on two workers."""
    return run_script


@pytest.fixture(scope="session")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> WorkerResults:
    """Two workers of one replica, which ran all cases of ``worker_cases``."""
    return run_script(tmp_path_factory.mktemp("workers"), "worker_cases.py", "2")


@pytest.fixture(scope="session")
def two_workers_of_two(tmp_path_factory: pytest.TempPathFactory) -> WorkerResults:
    """Two workers of two replicas each, which ran the cases that this changes."""
    folder = tmp_path_factory.mktemp("workers")
    cases = ["topology", "every type", "accumulated"]
    cases += ["joined rows", "sparse training", "derivatives"]
    return run_script(folder, "worker_cases.py", "4", *cases)
