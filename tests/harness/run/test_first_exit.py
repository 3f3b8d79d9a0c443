"""The rank that ended badly first is the one that a failure names."""

import json

import pytest

from harness.run import aggregate
from harness.run.trial_tree import TrialExit
from harness.trial import first_exit
from harness.trial.first_exit import FirstExit
from results.records.models import Phase, TrialStatus


@pytest.fixture
def conclude(tmp_path, make_spec):
    """Returns a function that concludes a trial whose two ranks were killed."""
    phases = [{"kind": "phase", "phase": name, "ns": 1} for name in ("launch", "build")]
    for rank, lines in enumerate((phases[:1], phases)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / f"rank_{rank}.jsonl").write_text(text)

    def run(first, exit_code=-11):
        if first is not None:
            first_exit.write(tmp_path, first)
        ended = TrialExit(
            exit_code=exit_code,
            is_timed_out=False,
            timeout_sec=9.0,
            duration_sec=1.0,
            num_oom_kills=0,
        )
        return aggregate.conclude("0" * 16, make_spec(), tmp_path, ended, num_ranks=2)

    return run


def test_the_first_one_is_named(conclude):
    """Although the other one was further behind."""
    failure = conclude(FirstExit(rank=1)).failure

    assert Phase.BUILD is failure.phase
    assert "signal SIGSEGV: rank 1 was in phase build" in failure.reason


def test_without_a_record_it_is_the_one_that_is_furthest_behind(conclude):
    """As before there were such records."""
    assert "rank 0 was in phase launch" in conclude(None).failure.reason


def test_a_known_reason_is_no_guess(conclude):
    """A lost host is not taken for the kernel's out-of-memory killer."""
    found = conclude(FirstExit(rank=1, reason="the connection was lost"), -9)

    assert TrialStatus.FAILED is found.status
    assert "the connection was lost: rank 1 was in phase build" == found.failure.reason


def test_where_nothing_was_started_no_rank_is_blamed(conclude):
    """The engine, or a host, refused."""
    failure = conclude(FirstExit(reason="host 'a' cannot read the trial"), 78).failure

    assert (Phase.LAUNCH, "LaunchError") == (failure.phase, failure.exception_type)
    assert "host 'a' cannot read the trial" == failure.reason


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rank": "x"', "\xff"])
def test_a_damaged_file_says_nothing(tmp_path, text):
    """It is written by a process that can be killed."""
    (tmp_path / "first_exit.json").write_text(text, encoding="latin-1")

    assert FirstExit() == first_exit.read(tmp_path)
