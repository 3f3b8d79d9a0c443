"""``status`` of a study that a sweep measures now says where it is."""

import contextlib
import json
import re
import shutil

import pytest
from click.testing import CliRunner

from harness.cli import main
from harness.cli.verbs import status_verb
from harness.errors import PlanError
from results.store import lock


@pytest.fixture
def relay(tmp_path, synthetic):
    """A relay of which one trial has begun: it has taken two turns and half a line."""
    shape = synthetic.Shape(num_rounds=4, repeats=2, backends=("in_graph",))
    store = synthetic.make_store(tmp_path / "s", shape)
    begun = store.read_plan().trials[-1].trial_id
    (store.trial_dir(begun) / "status.json").unlink()
    lines = "".join(json.dumps({"round_index": r}) + "\n" for r in (0, 1))
    (store.trial_dir(begun) / "turns.jsonl").write_text(f'{lines}{{"rou')
    return store


def _status(store, *more):
    arguments = ["status", "s", "--runs-dir", str(store.root.parent), *more]
    done = CliRunner().invoke(main.cli, arguments)
    assert 0 == done.exit_code, (done.output, done.exception)
    return done.output


def test_what_runs_now_is_not_missing(relay):
    """With its generation and its round, while the sweep holds the study."""
    with lock.lock_study(relay.root):
        text = _status(relay)

    assert "1 running" in text
    assert "missing" not in text
    assert text.rstrip().endswith("; generation 2 of 2, round 2")


def test_what_has_not_begun_waits(relay):
    """Nothing is missing of a sweep that has just started."""
    for trial in relay.read_plan().trials:
        if trial.spec.repetition_index == 1:
            shutil.rmtree(relay.trial_dir(trial.trial_id), ignore_errors=True)
    with lock.lock_study(relay.root):
        text = _status(relay)

    assert re.search(r"\d+ waiting", text)
    assert "missing" not in text


def test_a_relay_that_starts_or_ends_says_so(relay):
    """Before its first turn, and in the stretches of a gate."""
    begun = relay.trial_dir(relay.read_plan().trials[-1].trial_id) / "turns.jsonl"
    with lock.lock_study(relay.root):
        begun.write_text('{"round_index": 23, "is_sustained": true}\n')
        sustained = _status(relay)
        begun.unlink()
        starting = _status(relay)

    assert sustained.rstrip().endswith("; generation 2 of 2, sustained stretches")
    assert starting.rstrip().endswith("; generation 2 of 2, starting")


def test_watching_prints_what_changes_and_ends_with_the_sweep(relay, monkeypatch):
    """The same line is printed once, and the last one is of what is left."""
    begun = relay.trial_dir(relay.read_plan().trials[-1].trial_id) / "turns.jsonl"
    held = contextlib.ExitStack()
    held.enter_context(lock.lock_study(relay.root))
    steps = iter(
        (
            lambda: None,
            lambda: begun.write_text('{"round_index": 2}\n'),
            held.close,
        )
    )
    monkeypatch.setattr(status_verb.time, "sleep", lambda _: next(steps)())
    lines = _status(relay, "--watch").splitlines()

    assert [
        ("running", "generation 2 of 2, round 2"),
        ("running", "generation 2 of 2, round 3"),
        ("missing", ""),
    ] == [
        ("running" if "1 running" in line else "missing", line.partition("; ")[2])
        for line in lines
    ]


def test_watching_is_for_readers(relay):
    arguments = ["status", "s", "--runs-dir", str(relay.root.parent)]
    with pytest.raises(
        PlanError, match="--watch prints lines for a reader, and --json one object"
    ):
        CliRunner().invoke(
            main.cli, [*arguments, "--watch", "--json"], catch_exceptions=False
        )


def test_what_a_killed_sweep_left_is_missing(relay):
    """Its process is gone, although the file that names it is still there."""
    (relay.root / lock.HOLDER_NAME).write_text("4194304999\n")

    assert "1 missing" in _status(relay)
