"""A relay whose processes do not fit into memory: trials in sequence, or an error."""

import pytest

from harness.cli import exit_codes
from harness.errors import DoesNotFitError
from harness.run import starting
from results.records.models import Order, TrialStatus
from results.store.study_store import Store

pytestmark = pytest.mark.usefixtures("forked_trials")

SWEEP = (
    "sweep", "--workload=resnet50", "--preset=smoke", "--backends=in_graph",
    "--replicas=1,2", "--mode=weak", "--repeats=1", "--budget=none", "--no-match",
    "--study=s",
)  # fmt: skip


@pytest.fixture(autouse=True)
def full(monkeypatch):
    """No process fits."""

    def check(*_):
        raise DoesNotFitError("3 processes do not fit into memory at once")

    monkeypatch.setattr(starting, "_check_memory", check)


@pytest.mark.processes
def test_trials_run_in_sequence_and_a_note_says_why(harness, overrides, tmp_path):
    """Nothing of the command needs a relay."""
    code, _, err = harness(*SWEEP, overrides=overrides)

    assert exit_codes.OK == code
    assert "do not fit into memory at once: the trials run in sequence instead" in err
    store = Store.open(tmp_path / "runs" / "s")
    assert Order.SEQUENTIAL is store.read_plan().measuring.order
    assert {TrialStatus.OK} == {trial.status.status for trial in store.trials()}


@pytest.mark.parametrize(
    ("option", "fewer"),
    [
        ("--controls=all", "fewer --controls, --mode,"),
        ("--minutes=3", "fewer --mode,"),
        ("--rounds=4", "fewer --mode,"),
        ("--order=relay", "fewer --mode,"),
    ],
)
def test_what_needs_a_relay_is_an_error(harness, overrides, option, fewer):
    """The trials in sequence could not give what was requested."""
    code, _, err = harness(*SWEEP, option, overrides=overrides)

    assert exit_codes.USAGE == code
    assert (
        "error: 3 processes do not fit into memory at once; free some memory, or use"
        f" --order sequential, or {fewer} --backends or --replicas\n"
    ) in err
    assert "in sequence" not in err
