"""Clusters with parameter servers; their chiefs compute cases while tests read them."""

from __future__ import annotations

from pathlib import Path

import case_cluster
import pytest

FOLDER = Path(__file__).parent
HOW = {"path": FOLDER, "has_chief": True, "num_cpu_devices": 2}


@pytest.fixture(scope="session")
def two_servers(tmp_path_factory):
    """Two workers with two virtual devices each, and two servers."""
    folder = tmp_path_factory.mktemp("two_servers")
    with case_cluster.started(
        "two_server_cases", folder, num_workers=2, num_ps=2, **HOW
    ) as chief:
        yield chief


@pytest.fixture(scope="session")
def one_worker(tmp_path_factory):
    """One worker and one server."""
    folder = tmp_path_factory.mktemp("one_worker")
    with case_cluster.started(
        "one_worker_cases", folder, num_workers=1, num_ps=1, **HOW
    ) as chief:
        yield chief
