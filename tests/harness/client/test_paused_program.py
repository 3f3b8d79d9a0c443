"""A program without the client takes turns: it is stopped between them."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import pytest

from harness.errors import PlanError
from harness.planning.program_request import resolved
from harness.planning.request import SweepRequest
from harness.run import rounds
from harness.trial import process_tree
from reports.words import evidence
from results.records.models import Control, Program, TrialStatus
from results.verify import raw_trial

pytestmark = pytest.mark.processes
OPTIONS = {
    "command": f"{sys.executable} counting.py {{replicas}}",
    "metric": "step=^step ([0-9a-z]+)",
    "is_pausable": True,
}


@pytest.fixture
def program():
    """One that counts its steps."""
    return OPTIONS


@pytest.fixture
def paused_settings(client_settings, tmp_path):
    """Returns a function that makes settings, and variables for the program."""
    folder = tmp_path / "log"
    folder.mkdir()
    return lambda **variables: client_settings(LOG=folder, **variables)


def test_it_stands_while_others_have_a_turn(
    take_turns, paused_settings, client_store, logged_ns, monkeypatch
):
    """Not one step of the case within a turn of its twin, nor the other way round."""
    # Ten steps in a turn: two could be lost in the 10 ms of a tick at either end.
    monkeypatch.setattr(rounds, "MIN_TURN_SEC", 0.1)
    both = take_turns(paused_settings(), Control.NONE, Control.TWIN, num_replicas=2)
    steps = logged_ns(both)

    assert [(TrialStatus.OK, None)] * 2 == [
        (of.status.status, of.status.failure) for of in both
    ]
    for own, other in zip(both, reversed(both), strict=True):
        assert [0, 1] == [turn.round_index for turn in own.result.turns]
        used_sec = 0.0
        for turn in own.result.turns:
            span = range(turn.start_ns, turn.end_ns)
            assert [] == [ns for ns in steps[other.trial_id] if ns in span]
            num_own = sum(ns in span for ns in steps[own.trial_id])
            assert turn.num_steps - 2 <= num_own <= turn.num_steps + 1
            used_sec += turn.user_sec + turn.system_sec
        # A step computes for 10 ms, in a process that is not ours, counted in ticks.
        assert 0.05 <= used_sec
        (rank,) = own.result.ranks
        assert 2**20 < rank.peak_memory_bytes
        assert 0.01 * 0.8 <= sorted(rank.step_time_sec)[len(rank.step_time_sec) // 2]
        raw = raw_trial.read_trial(client_store.trial_dir(own.trial_id), 3)
        assert raw.result["window_sec"] == pytest.approx(own.result.window_sec)


BAD = {
    "ends": r"the command ended well after \d+ steps, before the harness had seen"
    r" enough; give it more steps .*; its last line: 'step 2'",
    "exits": r"the command exited with code 3 after \d+ steps, before the harness",
    "each tenth": r"the number of 'step=.*' went from 0 to 10: a line ends one step",
    "no number": r"the line 'step one' has 'one', which is not a number; put the",
    "other words": r"no line that it printed matches --metric 'step=.*'; its last line:"
    r" 'speed 2'",
    "bursts": r"(came in one piece|that can be timed).*: flush the output after each",
}


@pytest.mark.parametrize("behavior", BAD)
def test_a_bad_program_is_told_what_to_do(
    take_turns, paused_settings, client_store, behavior
):
    """In one line; no process of it is left, stopped or not."""
    trial = take_turns(paused_settings(BEHAVIOR=behavior))

    assert TrialStatus.FAILED is trial.status.status
    assert re.search(BAD[behavior], trial.status.failure.reason)
    assert "\n" not in trial.status.failure.reason
    marker = str(client_store.trial_dir(trial.trial_id).resolve())
    assert [] == process_tree.find_tree(marker)


@pytest.mark.parametrize(
    "program", [{**OPTIONS, "command": f"{sys.executable} start.py {{replicas}}"}]
)
def test_one_that_connects_is_told_what_to_give(take_turns, paused_settings, program):
    """Its lines are not read: the client is another process of the same rank."""
    trial = take_turns(paused_settings())

    assert re.search(
        r"with code 1: it connects by scaling_client, .*; give --metric client, with",
        trial.status.failure.reason,
    )


def test_alone_it_is_never_stopped(run_alone, paused_settings):
    """``--order sequential``: as many steps in a row as were asked for."""
    trial = run_alone(paused_settings())

    assert (TrialStatus.OK, None) == (trial.status.status, trial.status.failure)
    assert 12 == len(trial.result.ranks[0].step_time_sec)
    assert () == trial.result.turns


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"metric": "throughput=([0-9]+)"}, "the harness has the clock; name the line"),
        ({"metric": "throughput=([0-9]+)"}, "or give --metric client if it connects"),
        ({"is_pausable": False}, "without --pausable: steps are timed in turns"),
        ({"counts": ("a=([0-9])",)}, "has no effect with --pausable, which does not"),
        ({"controls": (Control.NOSYNC,)}, "--controls has no effect with --command"),
        ({"command": None}, "--pausable 'yes' has no effect without --command"),
    ],
)
def test_what_contradicts_itself_is_refused(tmp_path, more, message):
    """Before anything is written, with what to do."""
    fields = {**OPTIONS, "replicas": (1,), "per_replica_batch_size": 4, **more}
    if fields["command"] is None:
        fields["metric"] = None
    with pytest.raises(PlanError, match=re.escape(message)):
        resolved(SweepRequest(**fields), tmp_path)


def test_its_grade_says_what_a_step_is():
    """The harness has the clock, and the program says when a step ends."""
    study = SimpleNamespace(
        program=Program(command="a {replicas}", metric=OPTIONS["metric"], unit="rows"),
        planned=[SimpleNamespace(is_ok=True)],
    )
    (sentence,) = evidence.sentences(study)

    assert evidence.grade(study)[1].startswith("grade A of A to D: it is stopped")
    assert sentence.startswith("A step ends with a line that the program prints (step=")
