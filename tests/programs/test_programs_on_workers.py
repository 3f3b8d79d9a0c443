"""Programs of tutorials in a real cluster of two processes, against one device."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest
from tutorials import targets

from replicator.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.processes

NUM_WORKERS = 2
TIMEOUT_SEC = 400.0


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What every worker saw of every program; one cluster runs them all."""
    folder = tmp_path_factory.mktemp("programs")
    script = Path(__file__).with_name("program_worker.py")
    argv = [sys.executable, str(script), str(folder), *targets.ON_WORKERS]
    with LocalCluster(argv, num_workers=NUM_WORKERS, log_dir=folder) as cluster:
        cluster.check(TIMEOUT_SEC)
    return [
        pickle.loads((folder / f"outcomes_{worker}.pickle").read_bytes())
        for worker in range(NUM_WORKERS)
    ]


@pytest.mark.parametrize("name", targets.ON_WORKERS)
def test_a_program_trains_like_one_device(outcomes, name):
    """Each worker has one replica and half of each batch."""
    expected = targets.run_on(name, "single")

    for worker, outcome in enumerate(outcomes):
        assert not isinstance(outcome[name], str), f"worker {worker}: {outcome[name]}"
        targets.compare(name, expected, outcome[name])
