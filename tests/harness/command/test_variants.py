"""Variants by ``--param``, which are compared as backends are, and whole commands."""

import json
import re

import pytest

from harness.cli import exit_codes
from results.store.study_store import Store

# A rate that is known before it is measured, so that a ratio is as well.
SOLVE = """
import sys
for _ in range(8):
    print("rate", 100 * int(sys.argv[1]) * {"fast": 2, "slow": 1}[sys.argv[2]])
"""
COMMAND = "--command=python3 solve.py {replicas} {kind}"
OWN = (
    "sweep",
    COMMAND,
    "--metric=throughput=rate ([0-9.]+)",
    "--mode=strong",
    "--replicas=1",
    "--per-replica-batch-size=8",
    "--repeats=2",
    "--study=s",
)


@pytest.mark.processes
@pytest.mark.usefixtures("with_pages")
def test_variants_are_cases_of_one_study_with_their_ratio(harness, tmp_path):
    (tmp_path / "solve.py").write_text(SOLVE)
    code, out, err = harness(*OWN, "--param=kind=fast,slow")

    assert exit_codes.OK == code, err
    assert "losses" not in out  # a program that prints numbers shows none
    store = Store.open(tmp_path / "runs" / "s")
    kinds = {trial.spec.options["kind"] for trial in store.read_plan().trials}
    assert {"fast", "slow"} == kinds
    summary = json.loads(harness("report", "s", "--format=json")[1])
    ratios = [
        (item["first"], item["second"], round(item["ratio"]["value"], 6))
        for item in summary["comparisons"]
    ]
    assert {("kind=fast", "kind=slow", 2.0)} == set(ratios)
    assert exit_codes.OK == harness("verify", "s")[0]
    assert exit_codes.OK == harness("sweep", "--study=s")[0]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (("kind",), "--param 'kind' is not NAME=A,B,...; write for example"),
        (("kind=a,a",), "--param 'kind=a,a' repeats a value"),
        (("kind=a", "kind=b"), "--param 'kind' is given twice; choose another name"),
        (("seed=1,2", "kind=a"), "--param 'seed' is a placeholder already"),
        (("kind=a", "other=1"), "--param other with --command 'python3 solve.py "),
        (("other=1",), "unknown placeholder of --command"),
        ((f"kind={','.join(map(str, range(21)))}",), "makes 21 variants; allowed are"),
        ((f"kind={'x' * 200}",), "has a name of more than"),
    ],
)
def test_params_that_make_no_variants_are_one_line(harness, params, message):
    code, _, err = harness(*OWN, *(f"--param={param}" for param in params))

    assert exit_codes.USAGE == code
    assert message in err
    assert 1 == err.count("\n")


SECONDS = 0.6
WALL = (
    *("sweep", "--command=python3 solve.py {replicas}", "--metric=wall"),
    *("--unit=cells", "--mode=strong", "--replicas=1,2", "--study=s"),
    *("--per-replica-batch-size=8", "--repeats=2"),
)


@pytest.mark.processes
@pytest.mark.usefixtures("with_pages")
def test_a_command_that_prints_nothing_is_timed_as_a_whole(harness, tmp_path):
    (tmp_path / "solve.py").write_text(
        f"import sys, time; time.sleep({SECONDS} / int(sys.argv[1]))"
    )
    code, out, err = harness(*WALL)

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
    code, _, err = harness(*WALL, "--steps=3+")

    assert exit_codes.USAGE == code
    assert "--steps has no effect with --metric wall, which times" in err
