"""Asynchronous training: no update is lost, and steps mean what they always do."""

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from replicator.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.processes


# two_server_cases.NUM_STEPS * NUM_CALLS
STEPS_PER_WORKER = 180


def test_sums_of_whole_gradients_come_out_exactly(two_servers):
    found = two_servers.value("sums")

    assert [[-STEPS_PER_WORKER * (1.0 + 2.0)]] * 4 == found["weights"]
    assert 2 * STEPS_PER_WORKER == found["num_updates"]
    assert STEPS_PER_WORKER * (1 + 2) == found["counter"]
    assert 2 == len(found["servers"])
    assert found["is_fused"]


def test_sums_of_sparse_gradients_come_out_exactly(two_servers):
    """Row 0 stands twice in every gradient."""
    found = two_servers.value("sparse_sums")
    expected = [-STEPS_PER_WORKER * 3.0 * times for times in (2, 1)]

    assert [expected] * 4 == found["weights"]
    assert 2 * STEPS_PER_WORKER == found["num_updates"]


def test_an_embedding_in_shards_loses_nothing(two_servers):
    found = two_servers.value("sharded_embedding")
    expected = [[-120.0 * times] * 2 for times in (2, 1, 0, 0, 1)]

    assert expected == found["table"]
    assert 2 == len(found["servers"])


def test_slots_lose_nothing_either(two_servers):
    """The slot is minus the sum of all gradients."""
    assert [-60.0 * (1 + 2)] == two_servers.value("linear_momentum")


def test_adam_counts_its_steps_on_every_server(two_servers):
    """Its update of a constant gradient is its rate, also from a checkpoint on."""
    *weights, count = two_servers.value("adam")

    np.testing.assert_allclose(weights, [-0.1 * 12] * 2, rtol=1e-5)
    assert 12 == count


def test_staleness_counts_every_update_once(two_servers):
    """And sees that a worker was behind."""
    found = [two_servers.value(case) for case in ("sums", "sparse_sums")]

    # On both servers.
    counts = [sum(result["staleness"].values()) for result in found]
    assert [2 * 2 * STEPS_PER_WORKER] * 2 == counts
    assert found[0]["max_staleness"] > 0


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (
            "weight_elsewhere",
            (
                r"DeviceError: variable 'kernel:0' is on '/job:chief.*not a parameter "
                r"server; create models and optimizers inside `with repl.context\(\):`"
            ),
        ),
        (
            "stock_pipeline_per_replica",
            r"PER_REPLICA does not work with ParameterServerStrategy.*PER_WORKER",
        ),
        (
            "stock_replicas",
            r"DeviceError: num_replicas 4 does not work.*1 per worker.*use 2",
        ),
        (
            "single_pipeline",
            r"SINGLE distributes one pipeline to all workers.*PER_WORKER",
        ),
        (
            "loop_over_inputs",
            (
                r"ReplicatorError: next\(\) and get_next\(\) cannot read in this "
                r"process.* on the workers; pass the iterator to run\(\)"
            ),
        ),
        (
            "stock_loop_over_inputs",
            r"ReplicatorError: next\(\) and get_next\(\) cannot read in this process",
        ),
        (
            "schedule_as_a_coordinator",
            r"TypeError: schedule\(\) does not take args=; write repl.schedule\(step",
        ),
        (
            "uneven_replicas",
            r"DeviceError: num_replicas 3 of .* not divisible by its 2",
        ),
        (
            "refused_option",
            (
                r"OptimizerOptionError: accumulation_steps=2 does not work with the "
                r"async backend: accumulated gradients of all workers would mix"
            ),
        ),
    ],
)
def test_misuse_raises_an_actionable_error(two_servers, case, message):
    assert re.search(message, two_servers.error(case))


def test_run_returns_the_last_result_of_every_replica(two_servers):
    found = two_servers.value("results")

    assert [0, 1, 2, 3] == found["ids"]
    assert [1.0, 2.0, 3.0, 4.0] == found["values"]
    assert [3.0, 3.0, 7.0, 7.0] == found["totals"]
    assert [[4, 2]] * 4 == found["sizes"]
    assert [0, 2, 4, 6] == found["fixed"]
    assert "2 workers with 2 replicas in sync each; variables" in found["explained"]


@pytest.mark.parametrize("name", ["single", "in_graph", "async"])
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


def test_a_step_function_is_not_kept(two_servers):
    """Its programs go with it, once nothing that was scheduled needs them."""
    assert [True, 1, 0, 4.0] == two_servers.value("dropped_step")


def test_what_a_failed_step_wrote_is_read_outside_and_can_be_reset(two_servers):
    """Copies of 2 and 4 read as 3, which is assigned: 4 and 5 follow; it counts."""
    assert [3.0, [4.0, 5.0], 3] == two_servers.value("failed_step")


def test_the_end_of_the_data_is_an_error_and_a_rewind_starts_again(two_servers):
    """Nothing of the failed step is applied."""
    assert [-4.0, 4] == two_servers.value("end_of_data")


def test_the_stock_strategy_trains_behind_the_same_contract(two_servers):
    """It takes every step, but may count fewer: its updates are not atomic."""
    found = two_servers.value("stock")

    assert [2, 2] == found["num_results"]
    assert 2 * (1 + 10 + 10 + 1) == found["num_steps"]
    assert 1 <= found["num_counted"] <= found["num_steps"]
    assert found["last"] < 0.1 * found["first"]
    assert [2, 3] == found["fixed"]
    assert "ParameterServerStrategy, 2 replicas" in found["explained"]


MEMBER = Path(__file__).parent / "one_core_member.py"


@pytest.mark.parametrize(
    ("threads", "exit_code", "printed"),
    [
        ("of TensorFlow", 0, "count 4.0"),
        ("one thread", 0, "count 4.0"),
        (
            "no end",
            1,
            "progress in its first steps for 2 s; this process has 4 inter-op",
        ),
        ("too late", 1, "set_inter_op_parallelism_threads(4) at the start"),
    ],
)
def test_steps_end_on_one_core(tmp_path, threads, exit_code, printed):
    core = {min(os.sched_getaffinity(0))}
    argv = [sys.executable, str(MEMBER), threads]
    with LocalCluster(
        argv,
        num_workers=2,
        num_ps=1,
        has_chief=True,
        cpusets=[core] * 4,
        log_dir=tmp_path,
    ) as cluster:
        codes = cluster.wait(600, ["chief"])
        output = cluster.output("chief", 0)

    assert exit_code == codes["chief", 0], output
    assert printed in output
