"""Programs of tutorials in a real cluster of two processes, against one device."""

from __future__ import annotations

from pathlib import Path

import case_cluster
import pytest
from tutorials import targets

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """Two workers that ran every program; one cluster runs them all."""
    return case_cluster.ran(
        "program_cases",
        tmp_path_factory.mktemp("programs"),
        path=Path(__file__).parent,
        num_workers=2,
    )


@pytest.mark.parametrize("name", targets.ON_WORKERS)
def test_a_program_trains_like_one_device(workers, name):
    """Each worker has one replica and half of each batch."""
    expected = targets.run_on(name, "single")

    for outcome in workers.values(name):
        targets.compare(name, expected, outcome)
