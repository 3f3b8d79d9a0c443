"""What is measured again stays until it is, and afterwards, beside the new attempt."""

import errno
import json
import os

import pytest
from command_words import smoke_sweep
from ended import finished_in, observed_in
from loads import QUIET

from harness.cli import exit_codes
from harness.errors import Interrupted, StudyError
from harness.machine import disturbance
from harness.run import trial_tree
from harness.trial import rank_file
from results.errors import UnavailableRecordError
from results.store import study_store
from results.store.study_store import Store

SWEEP = smoke_sweep(
    "--replicas=1 --mode=weak --repeats=2 --no-match --budget=none --study=s "
    "--order=interleaved --rounds=2 --backends=single,in_graph"
)


def interrupt(*_):
    """Ends a sweep as Ctrl-C does."""
    raise Interrupted("SIGINT")


@pytest.mark.processes
def test_a_generation_that_is_measured_again_is_kept_until_it_is_complete(
    tmp_path, harness, overrides, forked_trials, monkeypatch
):
    monkeypatch.setattr(disturbance, "between", lambda *_: QUIET)
    root = tmp_path / "runs" / "s"
    assert exit_codes.OK == harness(*SWEEP, overrides=overrides)[0]
    planned = Store(root).read_plan().trials
    again = [of.trial_id for of in planned if of.spec.repetition_index == 1]
    # A kill between the two records of the second generation.
    (root / "trials" / again[0] / "status.json").unlink()
    observed, first = observed_in(root), finished_in(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.run.rounds.start_side_by_side", interrupt)
        code, _, _ = harness(*SWEEP, overrides=overrides)
    assert exit_codes.INTERRUPTED == code
    assert observed <= observed_in(root)
    code, out, _ = harness("verify", "s")
    assert exit_codes.SOME_TRIALS_FAILED == code
    assert f"trials/{again[1]} was to be measured again, and is not yet" in out
    assert "differs" not in out
    code, _, err = harness(*SWEEP, overrides=overrides)
    assert exit_codes.OK == code, err

    assert observed <= observed_in(root)
    assert first.items() <= finished_in(root).items()
    assert {f"{name}-1" for name in again} == {
        path.name for path in (root / "earlier").iterdir()
    }
    assert exit_codes.OK == harness("verify", "s")[0]
    assert (
        "  3 earlier attempts at trials that were measured again: "
        in (harness("status", "s")[1])
    )
    assert 3 == json.loads(harness("status", "s", "--json")[1])["num_earlier_attempts"]


def test_a_removed_trial_is_no_earlier_attempt(finished, tmp_path, harness):
    """Nor is one whose observations are others than those that were listed."""
    root = tmp_path / "runs" / "s"
    # The last one that ended would be taken for one that was stopped as it ended.
    ended = (root / "trials").glob("*/status.json")
    trial_dir = min(ended, key=lambda path: path.stat().st_mtime_ns).parent
    (trial_dir / "rank_0.jsonl").open("a").write("\n")
    kept = study_store.keep_earlier(trial_dir)

    assert root / "earlier" / f"{trial_dir.name}-1" == kept
    assert "it is not there" in harness("verify", "s")[1]


@pytest.fixture
def trial_dir(tmp_path):
    return tmp_path / "trials" / "a"


@pytest.mark.parametrize(
    ("name", "text", "is_measured"),
    [
        ("rank_0.jsonl", '{"kind": "phase", "phase": "launch", "ns": 1}\n', False),
        ("rank_0.jsonl", '{"kind": "step", "phase": "measure", "index": 0', True),
        ("rank_1.jsonl", '{"kind": "failure", "phase": "build"}\n', True),
        ("turns.jsonl", "", True),
        ("status.json", "{}", True),
        ("env.json", "{}", False),
    ],
)
def test_what_observed_nothing_is_removed(trial_dir, name, text, is_measured):
    root = trial_dir.parents[1]
    for number in (1, 2):
        (trial_dir / "checkpoint").mkdir(parents=True)
        (trial_dir / name).write_text(text)
        trial_tree.clear_trials(trial_dir)

        assert not trial_dir.exists()
        kept = study_store.attempts(root, "a")
        assert [f"a-{k + 1}" for k in range(number)] * is_measured == [
            folder.name for folder in kept
        ]
        # Large; that of a failure, which is complete, stays.
        for folder in kept:
            assert (name == "status.json") == (folder / "checkpoint").exists()
    assert [] == study_store.attempts(root, "b")


@pytest.mark.parametrize("name", [".", "status.json"])
def test_one_failed_look_removes_and_mixes_nothing(name, trial_dir, monkeypatch):
    """A trial that is not seen would run among the files of the attempt before.

    And the checkpoint of a failure would be that of an attempt that was cut off.
    """
    (trial_dir / rank_file.DIRECTORY).mkdir(parents=True)
    (trial_dir / rank_file.DIRECTORY / "weights").write_bytes(b"1")
    (trial_dir / "status.json").write_text("{}")
    before = sorted(trial_dir.rglob("*"))

    def failing(real):
        def look(path, *args, **options):
            if os.fspath(path) == str(trial_dir / name):
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
            return real(path, *args, **options)

        return look

    with monkeypatch.context() as patch:
        for call in ("stat", "lstat"):
            patch.setattr(os, call, failing(getattr(os, call)))
        with pytest.raises(UnavailableRecordError, match="Stale file handle"):
            trial_tree.clear_trials(trial_dir)
    assert before == sorted(trial_dir.rglob("*"))


def test_what_is_no_trial_makes_room_and_links_lead_to_what_is_not_ours(
    trial_dir, tmp_path
):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "status.json").write_text("kept")
    trial_dir.parent.mkdir()
    trial_dir.symlink_to(tmp_path / "precious")
    trial_tree.clear_trials(trial_dir)
    assert not trial_dir.is_symlink()
    assert "kept" == (tmp_path / "precious" / "status.json").read_text()

    (trial_dir / "status.json" / "x").mkdir(parents=True)
    trial_tree.clear_trials(trial_dir)
    trial_dir.write_text("")
    trial_tree.clear_trials(trial_dir)
    assert not trial_dir.exists()
    assert (tmp_path / "earlier" / "a-1" / "status.json" / "x").is_dir()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("link", r"cannot move '.*/a' .*: earlier is a symbolic link; move or"),
        ("refused", r"cannot move '.*' .*: Permission denied; move"),
    ],
)
def test_what_cannot_be_moved_or_removed_is_reported(
    trial_dir, tmp_path, monkeypatch, how, message
):
    trial_dir.mkdir(parents=True)
    if how == "link":
        (trial_dir / "status.json").write_text("{}")
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "earlier").symlink_to("elsewhere")
    else:

        def refuse(*_, **__):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("shutil.rmtree", refuse)
    with pytest.raises(StudyError, match=message):
        trial_tree.clear_trials(trial_dir)

    assert trial_dir.is_dir()
    assert (how == "link") == (trial_dir / "status.json").exists()
