"""One real relay with the control that only reads its input."""

import json

import pytest

from harness.cli import exit_codes
from results.records.models import Control
from results.store.study_store import Store

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("options", "controls", "fewest_flops"),
    [
        # Without actors, of which each trial would start its own.
        (("--workload=d4pg", "--data=synthetic"), "input_only", 10_000),
        pytest.param(
            ("--workload=d4pg", "--data=cartpole:balance"),
            "input_only,no_update",
            10_000,
            marks=pytest.mark.full,
        ),
        pytest.param(
            ("--workload=sngan",),
            "input_only,no_update",
            1_000_000,
            marks=pytest.mark.full,
        ),
    ],
    ids=["d4pg-synthetic", "d4pg", "sngan"],
)
def test_a_relay_measures_the_pipelines_without_the_step(
    options, controls, fewest_flops, sweep, tmp_path
):
    """They take turns with the case; the loss is 0, as there is none.

    The full run has actors and a network with images as well, whose pipelines
    ``tests/workloads/test_input_only.py`` reads, and in the same rounds the case and
    one replica without their update, as ``tests/workloads/test_no_update.py`` makes it.

    Other tests run meanwhile, so turns may be void.
    """
    done = sweep(
        *options,
        "--preset=smoke",
        "--backends=in_graph",
        "--replicas=1,2",
        "--mode=weak",
        "--order=relay",
        "--repeats=1",
        "--rounds=1",
        "--budget=none",
        f"--controls={controls}",
        "--json",
    )
    allowed = (
        exit_codes.OK,
        exit_codes.SOME_TRIALS_FAILED,
        exit_codes.NOTHING_MEASURED,
        exit_codes.UNFIT,
    )
    assert done.returncode in allowed, done.stderr
    store = Store.open(tmp_path / "runs" / "s")
    (trial,) = [t for t in store.trials() if t.spec.control is Control.INPUT_ONLY]
    (alone,) = [
        t
        for t in store.trials()
        if t.spec.num_replicas == 1 and t.spec.control is Control.NONE
    ]
    without_update = [
        t for t in store.trials() if t.spec.control is Control.NO_UPDATE and t.result
    ]
    result = trial.result

    assert result is not None, done.stderr
    assert ("in_graph", 2) == (trial.spec.backend, trial.spec.num_replicas)
    assert {0.0} == set(result.ranks[0].losses)
    assert result.flops_per_example is None
    assert alone.result is not None, done.stderr
    assert (alone.result.flops_per_example or 0) > fewest_flops
    assert [("input_only", True)] == [
        (check.name, check.is_passed)
        for check in result.sanity
        if check.name != "every_loss_is_finite"
    ]
    expected = [1, 2] if "no_update" in controls else []
    assert expected == sorted(t.spec.num_replicas for t in without_update), done.stderr
    named = controls.replace(",", ", ")
    assert f"controls {named}: of in_graph x2, weak sca" in done.stderr
    summary = json.loads(done.stdout)
    assert summary["coverage"]["planned"] == 4 + len(expected)
    assert ["matches"] == [match["outcome"] for match in summary["matches"]]
