"""A program with five lines of the client takes turns, is recorded, and is judged."""

import dataclasses
import io
import json
import re
import sys
from pathlib import Path
from unittest import mock

import pytest
from repositories import commit, git

from harness.cli import exit_codes, running
from harness.planning import estimate
from harness.planning import plan as plan_lib
from harness.run import rounds, sweep
from harness.run.resident import Resident
from harness.trial import process_tree
from results.records.client import protocol as client_protocol
from results.records.models import Control, Order, TrialStatus
from results.store.study_store import Store
from results.verify import trials

pytestmark = pytest.mark.processes


def lines_of(store, trial, rank=0):
    path = store.trial_dir(trial.trial_id) / f"rank_{rank}.jsonl"
    return [client_protocol.read_line(line) for line in path.open("rb")]


def test_a_program_takes_turns(take_turns, client_settings, client_store):
    trial = take_turns(client_settings())
    result, (rank,) = trial.result, trial.result.ranks
    raw = trials.read_trial(client_store.trial_dir(trial.trial_id), 3)

    assert (TrialStatus.OK, None) == (trial.status.status, trial.status.failure)
    assert [0, 1] == [turn.round_index for turn in result.turns]
    weights = [0.9**k for k in range(1, 1 + len(rank.losses))]
    assert weights == pytest.approx(list(rank.losses))
    assert 3 + sum(turn.num_steps for turn in result.turns) == len(rank.losses)
    assert 0.002 <= min(rank.step_time_sec)
    assert 2**20 < rank.peak_memory_bytes
    (metric,) = result.quality
    assert (0.6569, 0.8246) == pytest.approx((metric.low, metric.high), abs=1e-4)
    assert raw.is_complete
    assert raw.result["window_sec"] == pytest.approx(result.window_sec)
    assert list(rank.losses) == raw.result["ranks"][0]["losses"]
    kinds = [line.kind for line in lines_of(client_store, trial)]
    assert ["trial", "phase", "client", "phase", "facts"] == kinds[:5]
    assert ["quality"] == kinds[-1:]


def test_ranks_take_each_turn_together(take_turns, client_settings, client_store):
    """They say themselves how many they are; the plan knows of one process."""
    trial = take_turns(client_settings(), num_replicas=2)

    assert (TrialStatus.OK, None) == (trial.status.status, trial.status.failure)
    assert [0, 1] == [rank.rank for rank in trial.result.ranks]
    assert trial.result.ranks[0].losses == trial.result.ranks[1].losses
    assert "clock" in [line.kind for line in lines_of(client_store, trial, 1)]


def test_a_trial_that_runs_alone_has_one_window(run_alone, client_settings):
    trial = run_alone(client_settings(BEHAVIOR="no_loss"))

    assert (TrialStatus.OK, None) == (trial.status.status, trial.status.failure)
    assert 12 == len(trial.result.ranks[0].step_time_sec)
    assert () == trial.result.ranks[0].losses
    assert () == trial.result.turns


def test_a_loss_that_is_not_finite_gives_no_number(take_turns, client_settings):
    """The trial is insane, as one of the harness's own."""
    trial = take_turns(client_settings(BEHAVIOR="nan"))

    assert TrialStatus.INSANE is trial.status.status
    assert trial.status.failure.reason == "every_loss_is_finite: nan in step 4"


BAD = {
    "other_version": r"the harness speaks version 99 of the protocol, this file 3:"
    r" replace scaling_client.py by that of the harness",
    "says_other_version": r"rank 0 speaks version 99 of the protocol, this harness 3:"
    r" give the program the client of this harness \('python -m harness.client",
    "no_steps": r"the program connected, and never ended a step: loop over run.steps",
    "never_done": r"step 0 was not ended: call step.done\(\) once in each iteration",
    "twice": r"step 0 was ended twice: call done\(\) once",
    "other_batch": r"step 0 had 20 examples, the trial has a global batch of 4: let",
    "leaves": r"the loop over run.steps\(\) was left after 7 steps, before the harness",
    "raise": r"the reducer is out of paper$",
    "exit": r"the process exited before it completed, with exit code 3: rank 0 was in"
    r" phase measure after",
    "short": r"a step took \d+ us, less than the 100000 us that can be timed: wait for"
    r" the device before step.done\(\), or do more work per step",
}


@pytest.mark.parametrize("behavior", BAD)
def test_a_bad_program_is_told_what_to_do(
    take_turns, client_settings, client_store, monkeypatch, behavior
):
    if behavior == "short":  # Its steps of 2 ms are, on a busy machine too.
        monkeypatch.setattr(rounds, "MIN_STEP_SEC", 0.1)
    trial = take_turns(client_settings(BEHAVIOR=behavior))

    assert TrialStatus.FAILED is trial.status.status
    assert re.search(BAD[behavior], trial.status.failure.reason)
    assert "\n" not in trial.status.failure.reason
    marker = str(client_store.trial_dir(trial.trial_id).resolve())
    assert [] == process_tree.find_tree(marker)


@pytest.mark.parametrize(("step_sec", "is_short"), [(0.99e-4, True), (1e-4, False)])
def test_a_step_is_short_below_100_us(step_sec, is_short):
    resident = mock.create_autospec(Resident, instance=True)
    resident.prepared = mock.Mock(is_client=True)
    rounds.check_resolution(resident, step_sec)

    said = [call.args[0] for call in resident.fail.call_args_list]
    assert is_short == any("took 99 us, less than the 100 us" in line for line in said)
    assert is_short == bool(said)


NEVER = {
    "no-such-program": r"cannot be started: 'no-such-program': No such file .*; give a",
    f"{sys.executable} -c 'import no_such_module'": r"exited with code 1, before it had"
    r" connected; its last line: \"ModuleNotFoundError: No module named 'no_such_modul",
    "true": r"ended well, and no process of it had connected: call scaling_client\.con",
}


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ({"command": f"{command} {{replicas}}", "metric": "client"}, message)
        for command, message in NEVER.items()
    ],
)
def test_a_program_that_never_connects_is_told_why(
    take_turns, client_settings, program, message
):
    """Its last line comes first where it failed before."""
    trial = take_turns(client_settings())

    assert program["command"] == trial.spec.program.command
    assert TrialStatus.FAILED is trial.status.status
    assert re.search(message, trial.status.failure.reason)


@pytest.mark.parametrize("lingers", [False, True])
def test_a_rank_that_dies_while_others_wait_is_named(
    take_turns, client_settings, client_store, monkeypatch, lingers
):
    """Whether its launcher ends the others, or they would wait for ever."""
    from harness.run import resident

    monkeypatch.setattr(resident, "_GRACE_SEC", 0.5)
    variables = {"LINGER": 1} if lingers else {}
    settings = client_settings(BEHAVIOR="killed", BAD_RANK=1, **variables)
    trial = take_turns(settings, num_replicas=2)
    how = "a process closed its connection, and the others" if lingers else "exit code"

    assert TrialStatus.FAILED is trial.status.status
    assert how in trial.status.failure.reason
    assert "rank 1 was in phase measure after" in trial.status.failure.reason
    marker = str(client_store.trial_dir(trial.trial_id).resolve())
    assert [] == process_tree.find_tree(marker)


def test_two_processes_that_are_the_same_rank_are_refused(take_turns, client_settings):
    """Otherwise each would be recorded as the whole program."""
    trial = take_turns(client_settings(SAME_RANK=1), num_replicas=2)

    assert TrialStatus.FAILED is trial.status.status
    assert re.search(r"rank 0", trial.status.failure.reason)


def test_a_control_that_the_program_never_reads_is_refused(
    take_turns, client_settings, client_store, make_control
):
    """It would be the case itself under another name; one that it reads is run."""
    make_control(Control.NOSYNC)
    trial = take_turns(client_settings(), Control.NOSYNC)

    assert TrialStatus.FAILED is trial.status.status
    assert re.search(
        "this trial is the control 'nosync', which the program does not have",
        trial.status.failure.reason,
    )


def test_a_relay_whose_turns_are_all_void_goes_on(
    client_settings, client_store, quick_turns
):
    """To its last generation, as one of our own workloads does: it is shown."""
    planned = plan_lib.with_next_generation(client_store.read_plan())
    client_store.write_plan(planned)
    settings = dataclasses.replace(
        client_settings(),
        void_reason=lambda *_: "busy",
        measuring=planned.measuring.model_copy(update={"max_rounds": 1}),
    )
    stream = io.StringIO()
    sweep.run_trials(
        client_store,
        planned.trials,
        settings,
        running.PlainProgress(stream),
        estimate.Durations(),
    )

    ended = [of for of in client_store.trials() if of.status is not None]
    assert {0, 1} == {of.spec.repetition_index for of in ended}
    assert {TrialStatus.VOID} == {of.status.status for of in ended}
    assert "stopped" not in stream.getvalue()


CLIENT = Path(__file__).resolve().parents[3] / "harness" / "client"
PROGRAM = """
import time

import scaling_client

run = scaling_client.connect()
for step in run.steps():
    time.sleep(SECONDS)
    step.done(examples=4)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A repository whose last commit made each step take three times as long."""
    monkeypatch.setenv("PYTHONPATH", str(CLIENT))
    monkeypatch.setattr("reports.page.build.write_report", lambda *_: None)
    monkeypatch.setattr(rounds, "MIN_TURN_SEC", 0.02)
    monkeypatch.setattr(rounds, "SUSTAINED_SEC", 0.1)
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".gitignore").write_text("runs\n")
    for seconds in (0.004, 0.012):
        (tmp_path / "train.py").write_text(f"SECONDS = {seconds}\n{PROGRAM}")
        commit(tmp_path, f"steps-of-{seconds}-s")
    return tmp_path


def test_a_slower_commit_of_a_client_regresses(harness, own, overrides):
    code, out, err = harness(
        "gate",
        "--command=python3 train.py {replicas}",
        "--metric=client",
        *("--per-replica-batch-size=4", "--replicas=1", "--mode=weak"),
        *("--repeats=3", "--rounds=5", "--baseline=HEAD^", "--study=g"),
        "--format=json",
        overrides=overrides,
    )

    assert exit_codes.REGRESSION == code, err
    (case,) = json.loads(out)["cases"]
    assert 2 < case["slowdown"]["value"] < 4
    plan = Store.open(own / "runs" / "g").read_plan()
    assert Order.RELAY is plan.measuring.order
    assert 3 * 3 == len(plan.trials)


def test_a_workload_does_not_connect(refuse):
    """For one of this project the word is no metric."""
    err = refuse("gate", "--workload=resnet50", "--baseline=HEAD", "--metric=client")

    assert "unknown metric 'client'; allowed are throughput," in err
