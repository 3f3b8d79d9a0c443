"""The verb ``trace``: which case it runs again, and what it says; no trial is run."""

from __future__ import annotations

import errno
import json
import re
from pathlib import Path
from typing import Any

import pytest
from failing_writes import FailingWrites

from harness.cli import exit_codes
from harness.cli.verbs import trace_verb
from harness.errors import HarnessError
from results.records.models import Failure, Phase, StatusRecord, TrialStatus
from results.store.study_store import Store
from results.study.cases import load_study

DOCUMENT = {
    "traceEvents": [
        {
            "ph": "M",
            "name": "thread_name",
            "pid": 0,
            "tid": 0,
            "args": {"name": "replica 0 on CPU:0"},
        },
        *(
            {"ph": "X", "pid": 0, "tid": 0, "ts": 0, "dur": 2000, "cat": cat}
            | {"name": "model/dense", "args": {"step": 1}}
            | (
                {"args": {"step": 1, "replica": "replica_0"}}
                if cat == "compute"
                else {}
            )
            for cat in ("step", "compute")
        ),
    ],
    "otherData": {"cost": [1.05], "clocks": [{"bound_sec": 0.0}]},
}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The trials that were run, by a stand-in that records or fails."""
    found: list[Any] = []

    def run_trial(store: Any, trial: Any, settings: Any) -> StatusRecord:
        found.append((trial.spec, settings.worker_command))
        path, steps = settings.worker_command[-2:]
        is_ok = steps != "7"
        if is_ok:
            Path(path).write_text(json.dumps(DOCUMENT))
        assert [trial.trial_id] == [t.trial_id for t in store.read_plan().trials]
        return StatusRecord(
            trial_id=trial.trial_id,
            status=TrialStatus.OK if is_ok else TrialStatus.FAILED,
            started_at="2026-01-01T00:00:00Z",
            ended_at="2026-01-01T00:00:01Z",
            duration_sec=1.0,
            exit_code=0,
            failure=None
            if is_ok
            else Failure(phase=Phase.BUILD, reason="no such thing"),
        )

    monkeypatch.setattr(trace_verb, "run_trial", run_trial)
    return found


def test_the_most_replicas_of_a_linked_graph_are_recorded(
    finished: None, ran: list[Any], harness: Any
) -> None:
    """Alone, without its evaluation; the study stays as it is."""
    before = sorted(Path("runs/s").rglob("*"))
    code, out, err = harness("trace", "s", "--steps=2")
    ((spec, command),) = ran
    (path,) = Path().glob("s-*.trace.json")

    assert exit_codes.OK == code, err
    assert ("in_graph", 2, False) == (
        spec.backend,
        spec.num_replicas,
        spec.is_evaluated,
    )
    assert "2" == command[-1]
    assert DOCUMENT == json.loads(path.read_text())
    assert "step 2.0 ms, of which communication that hides behind nothing 0 %" in (
        out.replace("0%", "0 %")
    )
    assert "marks: 1.05 x the step without them; clocks known to 0.00 ms" in out
    assert before == sorted(Path("runs/s").rglob("*"))


def test_a_case_is_named_by_its_backend_and_replicas(
    finished: None, ran: list[Any], harness: Any
) -> None:
    """Numbers as JSON, the file where it is wanted."""
    code, out, err = harness(
        "trace", "s", "--case=in_graph x1", "--output=here.json", "--json"
    )

    assert exit_codes.OK == code, err
    assert 1 == ran[0][0].num_replicas
    assert ("here.json", 0.002) == tuple(
        json.loads(out)[key] for key in ("path", "step_sec")
    )


def test_a_step_is_kept_in_the_study_and_drawn(
    finished: None, ran: list[Any], harness: Any
) -> None:
    """Under the case that was measured, though the trial was another one."""
    code, _, err = harness("trace", "s", "--steps=2", "--keep")
    study = load_study(Store.open(Path("runs/s")))
    (kept,) = study.timelines
    case = next(case for case in study.cases if case.entries[0].case_id == kept.case_id)

    assert exit_codes.OK == code, err
    assert "(`report s` draws it)" in err
    assert ("in_graph", 2) == (case.spec.backend, case.spec.num_replicas)
    assert ("replica 0 on CPU:0",) == kept.rows
    assert (0.002, "model/dense") == (kept.step_sec, kept.spans[0].name)
    assert 0 == harness("report", "s", "-o", "page.html")[0]
    assert "Timeline of a step" in Path("page.html").read_text()


def test_a_step_of_other_code_is_not_kept(
    finished: None, ran: list[Any], harness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page would show it beside numbers of the study's code."""

    def refuse(plan: Any) -> None:
        raise HarnessError("the code differs")

    monkeypatch.setattr(trace_verb.same_code, "check_code", refuse)
    code, _, err = harness("trace", "s", "--keep")

    assert exit_codes.USAGE == code
    assert (
        "--keep: the page of study 's' would show a step of other code than it "
        "measured: the code differs; leave --keep out"
    ) in err
    assert [] == ran
    assert not Path("runs/s/timelines").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--case=tpu x8",), r"has no case 'tpu x8' that can be recorded: on CPUs, of"),
        (("--steps=0",), r"--steps 0 must be between 1 and 100; 3 show whether"),
        (("--output=no/t.json",), r"--output 'no/t.json': there is no folder '.*no'"),
        (("--output=runs",), r"cannot write timeline 'runs': it is not a regular file"),
    ],
)
def test_what_cannot_be_recorded_is_refused(
    finished: None, ran: list[Any], harness: Any, arguments: Any, message: str
) -> None:
    """One line; nothing is run."""
    code, _, err = harness("trace", "s", *arguments)

    assert exit_codes.USAGE == code
    assert re.search(message, err), err
    assert [] == ran


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_timeline_that_cannot_be_written_names_its_file(
    finished: None,
    ran: list[Any],
    harness: Any,
    monkeypatch: pytest.MonkeyPatch,
    place: int,
) -> None:
    """It cannot be opened, written or synced; what was there stays as it was."""
    folder = Path("written").absolute()
    folder.mkdir()
    path = folder / "t.json"
    path.write_text("earlier")
    faults = FailingWrites(folder, place=place, number=errno.ENOSPC)
    faults.install(monkeypatch)
    code, out, err = harness("trace", "s", f"--output={path}")

    assert (exit_codes.USAGE, "") == (code, out)
    assert err.splitlines()[-1].startswith(
        f"error: cannot write timeline '{path}': No space left on device; choose"
    )
    assert "earlier" == path.read_text()
    assert [path] == list(folder.iterdir())


def test_a_trial_that_fails_says_why(
    finished: None, ran: list[Any], harness: Any
) -> None:
    """Its reason, and no file."""
    code, _, err = harness("trace", "s", "--steps=7")

    assert exit_codes.SOME_TRIALS_FAILED == code, err
    assert "nothing was recorded: no such thing" in err
    assert [] == [*Path().glob("*.trace.json")]
