"""A gate of a program that connects: both revisions of it take turns."""

import json
import subprocess
from pathlib import Path

import pytest

from harness.cli import exit_codes
from harness.run import rounds
from results.records.models import Order
from results.store.study_store import Store

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
    who = ("git", "-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_text("runs\n")
    for seconds in (0.004, 0.012):
        (tmp_path / "train.py").write_text(f"SECONDS = {seconds}\n{PROGRAM}")
        subprocess.run([*who, "add", "--all"], cwd=tmp_path, check=True)
        message = f"Take {seconds} s"
        subprocess.run(
            [*who, "commit", "--quiet", "-m", message], cwd=tmp_path, check=True
        )
    return tmp_path


@pytest.mark.processes
def test_a_slower_commit_of_a_client_regresses(harness, own, overrides):
    """In a relay of both revisions with a twin, as for a workload of this project."""
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


def test_a_workload_does_not_connect(harness):
    """For one of this project the word is no metric."""
    code, _, err = harness(
        "gate", "--workload=resnet50", "--baseline=HEAD", "--metric=client"
    )

    assert exit_codes.USAGE == code
    assert "unknown metric 'client'; allowed are throughput," in err
