"""Replicas that meet in collective ops of one process: no hang, and the right cause."""

import json
import os

import case_cluster
import covering
import fork_server
import programs
import pytest

pytestmark = pytest.mark.processes

NUM_STEPS = 1000 if covering.is_full() else 200
# A failure ends all replicas within this time; it takes milliseconds.
FAILURE_SEC = 30.0
PROGRAM_SEC = 400.0


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    code, text = fork_server.server(**case_cluster.ENV).run(
        [programs.__file__, "flat", str(NUM_STEPS)],
        env={**os.environ, **case_cluster.ENV},
        log=tmp_path_factory.mktemp("flat") / "log",
        timeout_sec=PROGRAM_SEC,
    )
    assert 0 == code, text[-3000:]
    (line,) = [line for line in text.splitlines() if line.startswith("{")]
    return json.loads(line)


@pytest.mark.parametrize("num_replicas", [2, 8])
def test_replicas_meet_many_times_with_one_thread(found, num_replicas):
    """Each on its own device, in one order everywhere; the full run has 1,000 steps."""
    trained = found["train"][str(num_replicas)]

    total = NUM_STEPS * sum(range(num_replicas))
    assert [total, total] == trained["weights"]
    assert trained["algorithm"]
    # Statistics cross devices once per replica and type: 16 of float32, 4 of float64.
    published = found["edges"][str(num_replicas)]
    least = num_replicas - 1
    assert {"float32": least, "float64": least} == published["edges"]
    assert [(num_replicas - 1) / 2] == published["means"]


def test_collectives_that_wait_for_skipped_ones_run(found):
    assert [0.5] * 4 == found["gated"]["means"]
    assert -1.0 == found["gated"]["weight"]


def test_a_replica_that_fails_ends_all_others_with_its_error(found):
    failed = found["fail"]

    assert "replica 1 has no memory" in failed["error"]
    assert failed["sec"] < FAILURE_SEC
    assert [6.0] * 4 == failed["after"]


def test_a_replica_that_never_comes_ends_the_step_in_time(found):
    waited = found["wait"]

    for name, message in waited["errors"]:
        assert "ReplicaTimeoutError" == name
        assert "step '_wait_too_long.<locals>.step' did not meet within 1 s" in message
        assert "start the program again, from its last checkpoint" in message
    assert 2 == len(waited["errors"])
    assert waited["sec"] < 1.0
