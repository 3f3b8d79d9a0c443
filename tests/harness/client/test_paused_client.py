"""A program that connects, and computes while it waits: it is stopped between turns."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from harness.planning.program_request import resolved
from harness.planning.request import SweepRequest
from harness.run import rounds
from harness.trial import process_tree
from reports.words import evidence
from results.records.models import Control, TrialStatus

pytestmark = pytest.mark.processes
GONE_SEC = 30.0


@pytest.fixture
def program():
    """One with a thread that works all the time."""
    return {
        "command": f"{sys.executable} negotiating.py {{replicas}}",
        "metric": "client",
        "is_pausable": True,
    }


@pytest.fixture
def logging_settings(client_settings, tmp_path, monkeypatch):
    """Returns settings of programs that log when their threads work."""
    monkeypatch.setattr(rounds, "MIN_TURN_SEC", 0.1)
    folder = tmp_path / "log"
    folder.mkdir()
    return client_settings(LOG=folder)


def test_its_threads_work_in_its_own_turns_only(
    take_turns, logging_settings, logged_ns
):
    """Not one cycle of the case within a turn of its twin, nor the other way round."""
    both = take_turns(logging_settings, Control.NONE, Control.TWIN, num_replicas=2)
    cycles = logged_ns(both)

    assert [(TrialStatus.OK, None)] * 2 == [
        (of.status.status, of.status.failure) for of in both
    ]
    for own, other in zip(both, reversed(both), strict=True):
        for turn in own.result.turns:
            span = range(turn.start_ns, turn.end_ns)
            assert [] == [ns for ns in cycles[other.trial_id] if ns in span]
            assert any(ns in span for ns in cycles[own.trial_id])


def test_nothing_of_it_is_left_when_the_harness_is_killed_while_it_stands(
    take_turns, logging_settings, client_store, tmp_path
):
    """Who is stopped does not see that the harness has gone."""
    marker = str(
        client_store.trial_dir(client_store.read_plan().trials[0].trial_id).resolve()
    )
    stands = tmp_path / "stands"

    def wait(*_: object) -> str:
        stands.touch()
        time.sleep(GONE_SEC)
        return ""

    harness = os.fork()
    if not harness:
        take_turns(dataclasses.replace(logging_settings, void_reason=wait))
        os._exit(0)
    deadline = time.monotonic() + GONE_SEC
    while not stands.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    found = [one.status() for one in process_tree.find_tree(marker)]
    os.kill(harness, signal.SIGKILL)
    os.waitpid(harness, 0)

    assert psutil.STATUS_STOPPED in found
    while left := process_tree.find_tree(marker):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_its_record_and_its_grade_say_that_it_is_stopped(program, tmp_path):
    """As those of a program whose lines end its steps."""
    request = SweepRequest(**program, replicas=(1,), per_replica_batch_size=4)
    record = resolved(request, tmp_path).program.record
    study = SimpleNamespace(program=record, planned=[SimpleNamespace(is_ok=True)])

    assert record.polls
    assert evidence.grade(study)[1].startswith("grade A of A to D: it is stopped")
