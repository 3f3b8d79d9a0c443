"""A program that connects by the client takes turns, and is judged."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from command_lines import commit, git, overridden
from fake_machine import two_cores
from study_files import processes_of

import reports
from harness import ExitCode
from harness.client import scaling_client
from results import Control, Order, Store, TrialStatus

pytestmark = pytest.mark.processes
CLIENT = Path(scaling_client.__file__).parent
PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def client(monkeypatch, forked_trials, overrides):
    """Programs find the client; blocks take 20 ms, which nobody looks at."""
    monkeypatch.setenv("PYTHONPATH", str(CLIENT))
    quick = {"min_block_sec": 0.02, "min_stretch_sec": 0.1, "grace_sec": 0.5}
    return overrides | quick


@pytest.fixture
def sweep(client, harness, tmp_path, monkeypatch):
    """Returns a function that sweeps a program; it returns a trial and its folder."""
    shutil.copytree(PROGRAMS, tmp_path, dirs_exist_ok=True)
    command = f"{sys.executable} train.py {{replicas}}"

    def run(*words, command=command, replicas=1, control=Control.NONE, **variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
        usual = (
            *("--unit=images", "--per-replica-batch-size=4", "--mode=weak"),
            *("--repeats=1", "--study=s", f"--replicas={replicas}"),
        )
        blocks = () if "--order=sequential" in words else ("--set=rounds=2",)
        _, _, err = harness(
            *("sweep", f"--command={command}", "--metric=client"),
            *overridden((*usual, *blocks), *words),
            overrides=client,
        )
        assert (tmp_path / "runs" / "s").exists(), err
        store = Store.open(tmp_path / "runs" / "s")
        trial = next(of for of in store.trials() if of.spec.control is control)
        return trial, store.trial_dir(trial.trial_id)

    return run


def kinds_of(folder, rank=0):
    lines = (folder / f"rank_{rank}.jsonl").read_bytes().splitlines()
    return [json.loads(line)["kind"] for line in lines]


def reason_of(trial):
    assert TrialStatus.FAILED is trial.status.status
    assert "\n" not in trial.status.failure.reason
    return trial.status.failure.reason


def test_a_program_takes_turns(sweep):
    trial, folder = sweep()
    result, (rank,) = trial.result, trial.result.ranks

    assert (TrialStatus.OK, None) == (trial.status.status, trial.status.failure)
    assert {0, 1} == {block.round_index for block in result.blocks}
    weights = [0.9**k for k in range(1, 1 + len(rank.losses))]
    assert weights == pytest.approx(list(rank.losses))
    assert 3 + sum(block.num_steps for block in result.blocks) == len(rank.losses)
    assert 0.002 <= min(rank.step_time_sec)
    assert 2**20 < rank.peak_memory_bytes
    (metric,) = result.quality
    assert (0.6569, 0.8246) == pytest.approx((metric.low, metric.high), abs=1e-4)
    kinds = kinds_of(folder)
    assert ["trial", "phase", "client", "phase", "facts"] == kinds[:5]
    assert ["quality"] == kinds[-1:]


def test_ranks_take_each_block_together(sweep):
    trial, folder = sweep(replicas=2)

    assert (TrialStatus.OK, None) == (trial.status.status, trial.status.failure)
    assert [0, 1] == [rank.rank for rank in trial.result.ranks]
    assert trial.result.ranks[0].losses == trial.result.ranks[1].losses
    assert "clock" in kinds_of(folder, 1)


def test_a_trial_that_runs_alone_has_one_window(sweep, harness):
    trial, _ = sweep("--order=sequential", "--steps=3+12", BEHAVIOR="no_loss")

    assert (TrialStatus.OK, None) == (trial.status.status, trial.status.failure)
    assert 12 == len(trial.result.ranks[0].step_time_sec)
    assert () == trial.result.ranks[0].losses
    assert () == trial.result.blocks
    assert ExitCode.OK == harness("verify", "s")[0]


def test_a_loss_that_is_not_finite_gives_no_number(sweep):
    trial, _ = sweep(BEHAVIOR="nan")

    assert TrialStatus.FAILED_CHECKS is trial.status.status
    assert trial.status.failure.reason == "every_loss_is_finite: nan in step 4"


BAD = {
    "other_version": r"the harness speaks version 99 of the protocol, this file 3:"
    r" replace scaling_client.py by that of the harness",
    "says_other_version": r"rank 0 speaks version 99 of the protocol, this harness 3:"
    r" give the program the client of this harness \('python -m harness.client",
    "no_steps": r"the program connected, and never ended a step: loop over run.steps",
    "never_done": r"step 0 was not ended: call step.done\(\) once in each iteration",
    "other_batch": r"step 0 had 20 examples, the trial has a global batch of 4: let",
    "leaves": r"the loop over run.steps\(\) was left after 7 steps, before the harness",
    "leaves_a_pipe": r"^blocks\.jsonl: it is not a regular file, and a record of the"
    r" trial belongs there; let the program write into another folder",
    "raise": r"the reducer is out of paper$",
    "short": r"a step took \d+ us, less than the 100 us that can be timed: wait for"
    r" the device before step.done\(\), or do more work per step",
}


@pytest.mark.parametrize("behavior", BAD)
def test_a_bad_program_is_told_what_to_do(sweep, behavior):
    step_sec = 0.0 if behavior == "short" else 0.002
    trial, folder = sweep(BEHAVIOR=behavior, STEP_SEC=step_sec)

    assert re.search(BAD[behavior], reason_of(trial))
    assert [] == processes_of(folder)


NEVER = {
    "no-such-program": r"cannot be started: 'no-such-program': No such file .*; give a",
    f"{sys.executable} -c 'import no_such_module'": r"exited with code 1, before it had"
    r" connected; its last line: \"ModuleNotFoundError: No module named 'no_such_modul",
    "true": r"ended well, and no process of it had connected: call scaling_client\.con",
}


@pytest.mark.parametrize("command", NEVER)
def test_a_program_that_never_connects_is_told_why(sweep, command):
    trial, _ = sweep(command=f"{command} {{replicas}}")

    assert re.search(NEVER[command], reason_of(trial))


@pytest.mark.parametrize("lingers", [False, True])
def test_a_rank_that_dies_while_others_wait_is_named(sweep, lingers):
    variables = {"LINGER": 1} if lingers else {}
    trial, folder = sweep(replicas=2, BEHAVIOR="killed", BAD_RANK=1, **variables)
    how = "a process closed its connection, and the others" if lingers else "exit code"

    assert how in reason_of(trial)
    assert "rank 1 was in phase measure after" in reason_of(trial)
    assert [] == processes_of(folder)


def test_two_processes_that_are_the_same_rank_are_refused(sweep):
    """Otherwise each would be recorded as the whole program."""
    trial, _ = sweep(replicas=2, SAME_RANK=1)

    assert "rank 0" in reason_of(trial)


@two_cores
def test_a_control_that_the_program_never_reads_is_refused(sweep):
    """It would be the case itself under another name."""
    trial, _ = sweep("--controls=nosync", replicas="1,2", control=Control.NOSYNC)

    message = "this trial is the control 'nosync', which the program does not have"
    assert message in reason_of(trial)


PROGRAM = """
import time

import scaling_client

run = scaling_client.connect()
for step in run.steps():
    time.sleep(SECONDS)
    step.done(examples=4)
"""


def test_a_slower_commit_of_a_client_regresses(harness, tmp_path, client, monkeypatch):
    monkeypatch.setattr(reports, "write_report", lambda *_: None)
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".gitignore").write_text("runs\n")
    for seconds in (0.004, 0.012):
        (tmp_path / "train.py").write_text(f"SECONDS = {seconds}\n{PROGRAM}")
        commit(tmp_path, f"steps-of-{seconds}-s")
    code, out, err = harness(
        "gate",
        "--command=python3 train.py {replicas}",
        "--metric=client",
        *("--per-replica-batch-size=4", "--replicas=1", "--mode=weak"),
        *("--repeats=3", "--set=rounds=5", "--baseline=HEAD^", "--study=g"),
        "--format=json",
        overrides=client,
    )

    assert ExitCode.REGRESSION == code, err
    (case,) = json.loads(out)["cases"]
    assert 1 < case["slowdown"] < 3
    plan = Store.open(tmp_path / "runs" / "g").read_plan()
    assert Order.INTERLEAVED is plan.measuring.order
    assert 3 * 3 == len(plan.trials)
