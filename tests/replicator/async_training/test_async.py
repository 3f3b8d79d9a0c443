"""Asynchronous training: no update is lost, and steps mean what they always do."""

import re
import sys
from pathlib import Path

import case_cluster
import numpy as np
import pytest

pytestmark = pytest.mark.processes


# two_server_cases.NUM_STEPS * NUM_CALLS
STEPS_PER_WORKER = 180


@pytest.mark.parametrize(("case", "rows"), [("dense", (1,)), ("sparse", (2, 1))])
def test_sums_of_whole_gradients_come_out_exactly(two_servers, case, rows):
    """Every update is counted on both servers; sparse ones name row 0 twice."""
    found = two_servers.value(case)

    assert [[-STEPS_PER_WORKER * 3.0 * times for times in rows]] * 4 == found["weights"]
    assert 2 * STEPS_PER_WORKER == found["num_updates"]
    assert 2 * 2 * STEPS_PER_WORKER == found["num_counted"]
    assert STEPS_PER_WORKER * (1 + 2) == found["counter"]
    assert 2 == found["num_servers"]
    assert found["is_fused"]
    assert found["max_staleness"] > 0


def test_state_beside_weights_loses_nothing_either(two_servers):
    """Rows of an embedding, slots, and counts from a checkpoint on."""
    table, num_servers = two_servers.value("sharded_embedding")
    *weights, count = two_servers.value("adam")

    assert [[-120.0 * times] * 2 for times in (2, 1, 0, 0, 1)] == table
    assert 2 == num_servers
    assert [-60.0 * (1 + 2)] == two_servers.value("linear_momentum")
    np.testing.assert_allclose(weights, [-0.1 * 12] * 2, rtol=1e-5)
    assert 12 == count


MISUSE = {
    "a weight elsewhere": (
        r"DeviceError: variable 'kernel:0' is on '/job:chief.*not a parameter "
        r"server; create models and optimizers inside `with repl.context\(\):`"
    ),
    "one pipeline": r"SINGLE distributes one pipeline to all workers.*PER_WORKER",
    "prefetching": r"InputModeError: prefetch_to_device=2 .*\.prefetch\(2\)",
    "a loop over inputs": (
        r"ReplicatorError: next\(\) and get_next\(\) cannot read in this "
        r"process.* on the workers; pass the iterator to run\(\)"
    ),
    "as a coordinator": (
        r"TypeError: schedule\(\) does not take args=; write repl.schedule\(step"
    ),
    "uneven replicas": r"DeviceError: num_replicas 3 of .* not divisible by its 2",
    "accumulation": (
        r"OptimizerOptionError: accumulation_steps=2 does not work with the "
        r"async backend: accumulated gradients of all workers would mix"
    ),
    "stock, a pipeline per replica": (
        r"PER_REPLICA does not work with ParameterServerStrategy.*PER_WORKER"
    ),
    "stock, a loop over inputs": (
        r"ReplicatorError: next\(\) and get_next\(\) cannot read in this process"
    ),
    "stock, replicas": r"DeviceError: num_replicas 4 does not work.*1 per work.*use 2",
}


def test_misuse_raises_an_actionable_error(two_servers):
    found = two_servers.value("misuse")

    assert found.keys() == MISUSE.keys()
    assert [] == [
        found[name]
        for name, message in MISUSE.items()
        if not re.search(message, found[name])
    ]


def test_run_returns_the_last_result_of_every_replica(two_servers):
    found = two_servers.value("results")
    ids, values, totals, sizes = found["outputs"]

    assert [0, 1, 2, 3] == ids
    assert [1.0, 2.0, 3.0, 4.0] == values
    assert [3.0, 3.0, 7.0, 7.0] == totals
    assert [[4, 2]] * 4 == sizes
    assert -(1.5 + 3.5) == found["weight"]  # of means within workers
    assert [0, 2, 4, 6] == found["fixed"]
    assert "2 workers with 2 replicas in sync each; variables" in found["explained"]


@pytest.mark.parametrize("name", ["in_graph", "async"])
def test_checkpoints_go_from_and_to_other_backends(two_servers, name):
    """Weights, slots, counters and statistics, number for number.

    Each of two workers has read four global batches, which are eight steps elsewhere.
    """
    step, position, is_same_there, is_same_back = two_servers.value("checkpoints")[name]

    assert 2 * 4 == step
    num_steps = 4 if name == "async" else 8
    assert position.startswith(f"by skipping the {num_steps} steps that were read")
    assert is_same_there
    assert is_same_back


def test_steps_that_end_or_fail(two_servers):
    """Copies of 2 and 4 read as 3, which is assigned: 4 and 5 follow."""
    assert [3.0, [4.0, 5.0], 3] == two_servers.value("failed_step")
    assert [-4.0, 4] == two_servers.value("end_of_data")


MEMBER = Path(__file__).parent / "one_core_member.py"


@pytest.mark.parametrize(
    ("threads", "exit_code", "printed"),
    [
        ("one thread", 0, "count 4.0"),
        ("too late", 1, "set_inter_op_parallelism_threads(4) at the start"),
    ],
)
def test_steps_end_on_one_core(tmp_path, threads, exit_code, printed):
    """Requests that wait for each other need more threads than TensorFlow makes."""
    with case_cluster.ForkedCluster(
        [sys.executable, str(MEMBER), threads],
        env=case_cluster.ENV,
        num_workers=2,
        num_ps=1,
        has_chief=True,
        log_dir=tmp_path,
    ) as cluster:
        codes = cluster.wait(600, ["chief"])
        output = cluster.output("chief", 0)

    assert exit_code == codes["chief", 0], output
    assert printed in output
