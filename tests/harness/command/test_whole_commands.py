"""``--metric wall``: whole runs of a command are timed, and nothing that it prints."""

import re

import pytest

from harness.cli import exit_codes
from results.store.study_store import Store

SECONDS = 0.6
OWN = (
    "sweep",
    "--command=python3 solve.py {replicas}",
    "--metric=wall",
    "--unit=cells",
    "--mode=strong",
    "--replicas=1,2",
    "--per-replica-batch-size=8",
    "--repeats=2",
    "--study=s",
)


@pytest.mark.processes
@pytest.mark.usefixtures("with_pages")
def test_a_command_that_prints_nothing_is_timed_as_a_whole(harness, tmp_path):
    (tmp_path / "solve.py").write_text(
        f"import sys, time; time.sleep({SECONDS} / int(sys.argv[1]))"
    )
    code, out, err = harness(*OWN)

    assert exit_codes.OK == code, err
    assert "the batch over the time of the whole command" in re.sub(r"\s+", " ", out)
    store = Store.open(tmp_path / "runs" / "s")
    for planned in store.read_plan().trials:
        (rank,) = store.read_trial(planned.trial_id).result.ranks
        (step,) = rank.step_time_sec
        assert SECONDS / planned.spec.num_replicas < step
        assert () == rank.warmup_step_time_sec
        assert round(step * 1e9) == rank.window_end_ns - rank.window_start_ns
    assert exit_codes.OK == harness("verify", "s")[0]


def test_a_whole_run_has_no_steps(harness):
    code, _, err = harness(*OWN, "--steps=3+")

    assert exit_codes.USAGE == code
    assert "--steps has no effect with --metric wall, which times" in err
