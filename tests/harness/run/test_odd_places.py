"""What lies where the harness writes: links, pipes and plans that cannot be read."""

import errno
import json
import os
import re

import pytest

from harness.cli import arguments, exit_codes
from harness.errors import PlanError, StudyError
from harness.planning import plan_count
from harness.run import clearing
from harness.run.aggregate import conclude
from harness.run.trial_tree import TrialExit
from reports.charts.drawing import svg
from reports.page.sections import learning
from reports.words import formats
from results.records.limits import MAX_TRIALS
from results.records.models import TrialStatus

ENDED = TrialExit(
    exit_code=1, is_timed_out=False, timeout_sec=9, duration_sec=1, num_oom_kills=0
)


def test_a_link_in_the_place_of_a_trial_is_removed_alone(tmp_path):
    """What it leads to is not ours."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "status.json").write_text("kept")
    (tmp_path / "trial").symlink_to("precious")
    clearing.clear(tmp_path / "trial")

    assert ["precious"] == [path.name for path in tmp_path.iterdir()]
    assert "kept" == (tmp_path / "precious" / "status.json").read_text()


def test_a_log_without_end_is_read_at_its_end(tmp_path, make_spec):
    """A program may write more than there is memory."""
    with (tmp_path / "stderr.log").open("wb") as log:
        log.seek(2**40)
        log.write(b"the last words\n")
    failure = conclude("0" * 20, make_spec(), tmp_path, ENDED).failure

    assert failure is not None
    assert "the last words" in str(failure.traceback)


def test_what_is_no_trial_makes_room(tmp_path):
    """A file for the folder is removed; a folder for the status, with all, is moved."""
    trial_dir = tmp_path / "trials" / "a"
    (trial_dir / "status.json" / "x").mkdir(parents=True)
    clearing.clear(trial_dir)
    trial_dir.write_text("")
    clearing.clear(trial_dir)

    assert not trial_dir.exists()
    assert (tmp_path / "earlier" / "a-1" / "status.json" / "x").is_dir()


def test_what_cannot_be_removed_is_reported(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("shutil.rmtree", refuse)
    with pytest.raises(
        StudyError, match=r"cannot move '.*' .*: Permission denied; move"
    ):
        clearing.clear(tmp_path)


def test_status_without_a_plan_shows_what_ran(finished, harness, tmp_path):
    """The plan is named as what cannot be read; the trials are there."""
    (tmp_path / "runs" / "s" / "plan.json").write_text("{")
    code, out, err = harness("status", "s")
    _, data, _ = harness("status", "s", "--json")

    assert exit_codes.USAGE == code
    assert "s: 8 trials: 8 ok\n" == out
    assert err.startswith("error: corrupt record 'runs/s/plan.json': not JSON")
    assert 1 == err.count("\n")
    assert {"ok": 8} == json.loads(data)["counts"]


def test_a_report_replaces_nothing_but_files(finished, harness, tmp_path, monkeypatch):
    """As root it would put a page in the place of a device."""
    monkeypatch.setattr("reports.page.build.build_report", lambda *_: "a page\n")
    os.mkfifo(tmp_path / "pipe")
    code, _, err = harness("report", "s", "-o", "pipe")

    assert exit_codes.USAGE == code
    assert "cannot write report 'pipe': it is not a regular file" in err
    assert (tmp_path / "pipe").is_fifo()


def test_a_path_without_permission_is_one_line(harness, monkeypatch):
    """Wherever the file system refuses."""

    def refuse(_):
        raise PermissionError(errno.EACCES, "Permission denied", "runs")

    monkeypatch.setattr("results.store.atomic.check_reachable", refuse)
    code, out, err = harness("sweep", "--dry-run", "--workload=resnet50")

    assert (exit_codes.USAGE, "") == (code, out)
    assert "error: cannot use 'runs': Permission denied; choose another path, or" in err


def test_a_missing_file_of_ours_is_no_refusal():
    """An internal error is not blamed on a path."""
    assert arguments.refusal(FileNotFoundError(errno.ENOENT, "No such", "x")) is None
    assert arguments.refusal(OSError("no file in it")) is None


def test_too_many_trials_are_counted_not_made():
    plan_count.check(MAX_TRIALS)
    with pytest.raises(
        PlanError, match=rf"has {MAX_TRIALS + 1} trials, .*{MAX_TRIALS}:"
    ):
        plan_count.check(MAX_TRIALS + 1)


@pytest.mark.parametrize("reason", ["bad \ud800 \0 end", "", 7, None])
def test_a_failure_that_is_no_text_is_a_failure_all_the_same(
    tmp_path, make_spec, reason
):
    """What a library says of its fault can be anything."""
    lines = [{"kind": "failure", "phase": "build", "reason": reason, "traceback": "\0"}]
    (tmp_path / "rank_0.jsonl").write_text(f"{json.dumps(lines[0])}\n")
    found = conclude("0" * 20, make_spec(), tmp_path, ENDED)

    assert found.failure is not None
    assert TrialStatus.FAILED is found.status
    assert found.failure.reason.isprintable()


def test_a_failure_without_a_phase_is_reported(tmp_path, make_spec):
    """Then the record of the failure is what failed."""
    (tmp_path / "rank_0.jsonl").write_text('{"kind": "failure", "phase": "lunch"}\n')
    found = conclude("0" * 20, make_spec(), tmp_path, ENDED)

    assert found.failure is not None
    assert "rank 0 recorded a malformed failure" in found.failure.reason


def test_a_rank_file_that_is_a_folder_is_a_failure(tmp_path, make_spec):
    """Of reading what was observed."""
    (tmp_path / "rank_0.jsonl").mkdir()
    found = conclude("0" * 20, make_spec(), tmp_path, ENDED)

    assert found.failure is not None
    assert "rank_0.jsonl: it is not a regular file" == found.failure.reason


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1e100, "1.00e+100"),
        (1e-300, "1.00e-300"),
        (float("inf"), "inf"),
        (-1e99, "-1."),
    ],
)
def test_figures_of_any_size_are_written_in_few_signs(value, expected):
    """A hundred zeros leave no room for a figure."""
    assert formats.significant(value).startswith(expected)
    assert len(formats.percent(value)) < 20
    assert len(formats.times(value)) < 20


def test_long_ticks_are_cut():
    """The unit of a metric can be long."""
    assert "12 " + "x" * 16 + svg.CUT == svg.short("12 " + "x" * 90)


def test_figures_beyond_the_most_are_said_to_be_left_out(
    tmp_path, synthetic, monkeypatch
):
    """Names come from records, and each would be drawn."""
    shape = synthetic.Shape(modes=(synthetic.WEAK,), budget=synthetic.LEARNING)
    store = synthetic.make_store(tmp_path / "study", shape)
    from reports.page import build
    from reports.page.sections import quality
    from reports.words import axes

    monkeypatch.setattr(build, "SECTIONS", (learning, quality))
    for path in store.root.rglob("result.json"):
        result = json.loads(path.read_text())
        for part in (result, *result["curve"]):
            part["quality"] += [{**part["quality"][0], "name": "another"}]
        path.write_text(json.dumps(result))

    assert "omitted: the records" not in build.build_report(store)

    monkeypatch.setattr(axes, "MOST_FIGURES", 1)
    page = build.build_report(store)

    assert 2 == len(re.findall(r"more figures? with other names omitted", page))
