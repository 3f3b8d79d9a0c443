"""One cluster of two workers; its client computes all cases while tests read them."""

from pathlib import Path

import case_cluster
import pytest

FOLDER = Path(__file__).parent


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("remote")
    with case_cluster.started(
        "client_cases", folder, path=FOLDER, runners=[("worker", 0)], num_workers=2
    ) as running:
        yield running, folder


@pytest.fixture(scope="session")
def client(served):
    return served[0]


@pytest.fixture
def stepping_client(served):
    """The client, once it has run all cases and runs steps until it is killed."""
    client, folder = served
    (folder / "continue").touch()
    client.wait_until((folder / "stepping").exists, "its endless steps")
    return client
