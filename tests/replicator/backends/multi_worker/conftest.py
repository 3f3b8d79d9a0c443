"""Clusters of workers that run named cases, started once and shared by tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import case_cluster
import pytest

FOLDER = Path(__file__).parent


def ran(folder: Path, module: str, *cases: str, **options: Any) -> Any:
    return case_cluster.ran(
        module, folder, path=FOLDER, cases=cases, options=options, num_workers=2
    )


@pytest.fixture(scope="session")
def run_workers() -> Any:
    return ran


@pytest.fixture(scope="session")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return ran(tmp_path_factory.mktemp("workers"), "worker_cases", num_replicas=2)
