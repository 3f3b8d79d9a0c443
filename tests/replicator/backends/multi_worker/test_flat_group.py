"""Two workers of two devices: all four replicas meet in one group, as GPUs do."""

from pathlib import Path

import numpy as np
import pytest
from loading import load
from tiny_models import Training

import replicator

pytestmark = pytest.mark.processes

flat_worker = load(Path(__file__).with_name("flat_worker.py"))
# A failure ends all workers within this time; it takes a second.
FAILURE_SEC = 30.0


@pytest.fixture(scope="module")
def workers(tmp_path_factory, run_workers):
    return run_workers(tmp_path_factory.mktemp("flat"), "flat_worker")


@pytest.mark.parametrize("case", ["train", "started"])
def test_replicas_of_two_workers_meet_in_one_group(workers, case):
    """Weights are those of one device, bit for bit the same on both workers."""
    first, second = workers.values(case)
    alone = Training(replicator.create("single"), "deep", "momentum")
    alone.run_between(0, flat_worker.NUM_STEPS)

    assert "algorithm ring" in first["plan"]
    assert "over all replicas of 2 workers" in first["plan"]
    assert first["weights"] == second["weights"]
    for expected, got in zip(alone.weights(), first["weights"], strict=True):
        np.testing.assert_allclose(expected, got, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["mixed", "started"])
def test_other_collectives_and_statistics_keep_their_order(workers, case):
    """Integers, extremes and gathers go through one device of each worker."""
    for found in workers.values(case):
        assert 6.0 + 3.0 == found["total"]
        assert 6 == found["count"]
        assert [0.0, 1.0, 2.0, 3.0] == found["rows"]
        assert [4.5, 4.5] == found["statistic"]


def test_a_replica_that_fails_ends_all_workers_with_its_error(workers):
    """Its own worker raises what it raised; the other one says which worker failed."""
    other, own = workers.values("fail")

    assert "InvalidArgumentError" == own["type"]
    assert "the last replica has no memory" in own["message"]
    assert "WorkerLostError" == other["type"]
    assert "worker 1" in other["message"]
    assert "the last replica has no memory" in other["message"]
    assert max(own["sec"], other["sec"]) < FAILURE_SEC
