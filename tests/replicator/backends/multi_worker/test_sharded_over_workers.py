"""Replicas of several workers in one group, and sharded_update over their processes."""

import functools
import re
from pathlib import Path

import numpy as np
import pytest
from loading import load
from tiny_models import Training

import replicator

pytestmark = pytest.mark.processes

sharded_worker = load(Path(__file__).with_name("sharded_worker.py"))
flat_worker = load(Path(__file__).with_name("flat_worker.py"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sharded")


@pytest.fixture(scope="module")
def workers(folder, run_workers):
    return run_workers(folder, "sharded_worker")


@functools.cache
def _alone():
    return sharded_worker.train(replicator.create("single"))


def _check_close(expected, got):
    for want, value in zip(expected, got, strict=True):
        np.testing.assert_allclose(want, value, rtol=2e-4, atol=1e-5)


def test_twenty_steps_are_those_of_the_unsharded_update(workers):
    """Bit for bit on both workers, and to rounding those of one device.

    None is sent together with what it has to wait for; steps in a loop too.
    """
    first, second = workers.values("equal")
    alone = sharded_worker.train(replicator.create("single"), "clipped adamw")

    assert first[0] == first[1] == second[1]
    _check_close(alone, first[1])
    for unsharded, sharded in workers.values("in turn"):
        assert unsharded == sharded


def test_sharded_gradients_are_dropped_by_those_who_do_not_own_them(workers, folder):
    """Buckets of one owner each; weights of one device, also if updates are skipped.

    And if it continues where both workers had a part of unfinished sums.
    """
    first, second = workers.values("gradients")
    one = replicator.create("single")
    skipping = Training(one, "deep", **sharded_worker.SKIPPED)
    restored = skipping.make_manager(folder / "unfinished").restore()
    assert sharded_worker.UNFINISHED // 2 == restored.step
    skipping.run_between(sharded_worker.UNFINISHED, sharded_worker.NUM_STEPS)

    assert first["owners"] == second["owners"]
    assert 6 == sum(map(len, first["owners"][:2]))
    for result in (first, second):
        _check_close(sharded_worker.train(one, "clipped adamw"), result["clipped"])
        _check_close(skipping.weights(), result["skipped"])
    # The sums of calls are on their owners as well.
    assert first["sums"] == first["sums here"] + second["sums here"]
    assert max(first["sums here"], second["sums here"]) <= 0.6 * first["sums"]
    # A ring of two sends each sum twice, and the owner each new value once.
    size = first["sums"]
    text = f"moves {2 * size} bytes by reductions and {size} bytes of weights between w"
    assert text in first["explained"]


def test_replicas_with_copies_on_every_worker(workers):
    first, second = workers.values("copies")

    assert first["weights"] == second["weights"]
    _check_close(_alone(), first["weights"])
    for owner in ("device:CPU:0 ", "device:CPU:1 ", "worker 1, device 0, "):
        assert re.search(rf"{owner}updates \d variables", first["explained"])


def test_state_is_shared_out(workers):
    """Each process has its share, together there is all of it; explain() says so."""
    first, second = workers.values("saved")

    assert first["all"] == first["here"] + second["here"]
    assert max(first["here"], second["here"]) <= 0.6 * first["all"]
    text = f"keeps {first['here']} bytes of optimizer state"
    assert text in first["explained"]
    assert text in second["explained"]


def test_a_checkpoint_of_two_workers_continues_with_one(workers, folder):
    """The chief writes all state; after that each worker has its share again."""
    results = workers.values("saved")
    expected = results[0]["weights"]

    one = Training(replicator.create("single"), "deep")
    restored = one.make_manager(folder / "by_two").restore()

    assert sharded_worker.HALF == restored.step
    _check_close(expected, sharded_worker.second_half(one)["weights"])


def test_a_checkpoint_of_one_replica_continues_with_two_workers(workers):
    """Every worker keeps its share of what is restored."""
    results = workers.values("restored")

    for result in results:
        _check_close(_alone(), result["weights"])
    shares = [result["here"] for result in workers.values("saved")]
    assert shares == [result["here"] for result in results]


REFUSED = {
    "accumulation": (
        r"OptimizerOptionError: .* with MultiWorkerBetweenGraphReplicator: one "
    ),
    "norm of sums": (
        r"OptimizerOptionError: global_clipnorm=1.0 does not work with .*: no wo"
    ),
    "parameters": (
        r"sharded_update='parameters' does not work with .*: every worker keeps"
    ),
    "branch": r"OptimizerOptionError: .*one \w*If node of the step uses the",
    "read": r"OptimizerOptionError: .* on worker 0 only, but the step uses it",
    "files of Keras": r"OptimizerOptionError: .*sharded_update=True keeps .*_manager",
}


def test_what_cannot_be_shared_out_is_refused(workers):
    for found in workers.values("refused"):
        for name, message in REFUSED.items():
            assert re.search(message, found[name], re.DOTALL), found[name]


# A failure ends all workers within this time; it takes a second.
FAILURE_SEC = 30.0


@pytest.fixture(scope="module")
def flat_workers(tmp_path_factory, run_workers):
    return run_workers(tmp_path_factory.mktemp("flat"), "flat_worker")


@pytest.mark.parametrize("case", ["train", "started"])
def test_replicas_of_two_workers_meet_in_one_group(flat_workers, case):
    """Weights are those of one device, bit for bit the same on both workers.

    Integers, extremes and gathers go through one device of each worker, in order.
    """
    first, second = flat_workers.values(case)
    alone = Training(replicator.create("single"), "deep", "momentum")
    alone.run_between(0, flat_worker.NUM_STEPS)

    assert "algorithm ring" in first["plan"]
    assert "over all replicas of 2 workers" in first["plan"]
    assert first["weights"] == second["weights"]
    _check_close(alone.weights(), first["weights"])
    for found in (first, second):
        assert 6.0 + 3.0 == found["total"]
        assert 6 == found["count"]
        assert [0.0, 1.0, 2.0, 3.0] == found["rows"]
        assert [4.5, 4.5] == found["statistic"]


def test_a_replica_that_fails_ends_all_workers_with_its_error(flat_workers):
    """Its own worker raises what it raised; the other one says which worker failed."""
    other, own = flat_workers.values("fail")

    assert "InvalidArgumentError" == own["type"]
    assert "the last replica has no memory" in own["message"]
    assert "WorkerLostError" == other["type"]
    assert "worker 1" in other["message"]
    assert "the last replica has no memory" in other["message"]
    assert max(own["sec"], other["sec"]) < FAILURE_SEC
