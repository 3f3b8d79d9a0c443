"""``status`` of a study that a sweep measures now says where it is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from harness.cli import main
from results.store import lock

if TYPE_CHECKING:
    import pathlib

    from results.store.study_store import Store


@pytest.fixture
def relay(tmp_path: pathlib.Path, synthetic: Any) -> Store:
    """A relay of which one trial has begun: it has taken two turns and half a line."""
    shape = synthetic.Shape(num_rounds=4, repeats=2, backends=("in_graph",))
    store = synthetic.make_store(tmp_path / "s", shape)
    begun = store.read_plan().trials[-1].trial_id
    (store.trial_dir(begun) / "status.json").unlink()
    lines = "".join(json.dumps({"round_index": r}) + "\n" for r in (0, 1))
    (store.trial_dir(begun) / "turns.jsonl").write_text(f'{lines}{{"rou')
    return store


def _status(store: Store) -> str:
    arguments = ["status", "s", "--runs-dir", str(store.root.parent)]
    done = CliRunner().invoke(main.cli, arguments)
    assert 0 == done.exit_code, (done.output, done.exception)
    return done.output


def test_what_runs_now_is_not_missing(relay: Store) -> None:
    """With its generation and its round, while the sweep holds the study."""
    with lock.lock_study(relay.root):
        text = _status(relay)

    assert "1 running" in text
    assert "missing" not in text
    assert text.rstrip().endswith("; generation 2, round 2")


def test_what_a_killed_sweep_left_is_missing(relay: Store) -> None:
    """Its process is gone, although the file that names it is still there."""
    (relay.root / lock.HOLDER_NAME).write_text("4194304999\n")

    assert "1 missing" in _status(relay)
