"""Trials of different code are never put into one study."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import DifferentStudyError
from harness.planning import cases, plan, resuming, study
from harness.planning.request import SweepRequest
from harness.sources import code_digest, same_code
from results.records.machines.machine_record import MachineState
from results.records.models import Order, Plan, ScalingMode

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MACHINE = cases.Machine(num_available_cores=4)
BASE = SweepRequest(
    workload="resnet50",
    preset="smoke",
    replicas=(1, 2),
    modes=(ScalingMode.WEAK,),
    order=Order.SEQUENTIAL,
)


def plan_of(**changes: Any) -> Plan:
    """Returns the plan record of a changed base request."""
    request = BASE.model_copy(update=changes)
    planned = plan.plan_sweep(request, MACHINE)
    return study.make_plan(planned, request, study="s", command=("harness",))


@pytest.fixture
def other_code(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns what changes the code from now on."""

    def change() -> None:
        monkeypatch.setattr(
            "harness.sources.code_digest.of_trial", lambda *_: "another"
        )

    return change


def test_other_code_is_refused(other_code: Any) -> None:
    """Numbers of different code must not mix, by sweep or by resume."""
    first = plan_of()
    other_code()

    message = (
        r"made with code of an unrecorded commit \(digest \w{16}\); of backend"
        r" 'in_graph' it is now that of commit \w{12}( with changes)? \(digest"
        r" another\), .*go back to the code of the study to resume it, or choose"
        r" another --study"
    )
    with pytest.raises(DifferentStudyError, match=message):
        resuming.reconcile(first, plan_of())
    with pytest.raises(DifferentStudyError, match=message):
        same_code.check_code(first)


def test_a_relay_of_other_code_is_refused_for_its_code(other_code: Any) -> None:
    """Its cases have other ids then, so they look like cases that are added."""
    first = plan_of(order=Order.RELAY)
    other_code()

    with pytest.raises(
        DifferentStudyError, match=r"made with code of .* is now that of"
    ):
        resuming.reconcile(first, plan_of(order=Order.RELAY))


def test_the_commits_of_the_trials_are_named(
    tmp_path: Path, synthetic: Any, other_code: Any
) -> None:
    """Those of the records, so that the code can be found again."""
    store = synthetic.make_store(tmp_path / "study")
    trial = next(iter(store.trials()))
    state = MachineState(git_commit="0123456789ab" + "0" * 28, is_source_modified=True)
    store.write_env(
        trial.trial_id, trial.env.model_copy(update={"machine_state": state})
    )
    planned = store.read_plan()
    other_code()

    with pytest.raises(
        DifferentStudyError, match=r"code of commit 0123456789ab with changes \(digest"
    ):
        same_code.check_code(planned, store=store)


def test_other_code_of_another_backend_is_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A study resumes when a backend changed that none of its trials runs on."""
    now = code_digest.of_trial
    first = plan_of(backends=("in_graph",))
    monkeypatch.setattr(
        "harness.sources.code_digest.of_trial",
        lambda workload, backend, _tree=None: (
            now(workload, backend) if backend == "in_graph" else "another"
        ),
    )

    same_code.check_code(first)
    extended = resuming.reconcile(first, plan_of(backends=("in_graph", "tf_mirrored")))
    assert {"in_graph": {now("resnet50", "in_graph")}, "tf_mirrored": {"another"}} == {
        backend: {
            trial.spec.code_digest
            for trial in extended.plan.trials
            if trial.spec.backend == backend
        }
        for backend in ("in_graph", "tf_mirrored")
    }


def test_no_backend_is_added_to_trials_of_other_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A ratio of two backends would compare two versions of the engine."""
    first = plan_of(backends=("in_graph",))
    monkeypatch.setattr("harness.sources.code_digest.of_trial", lambda *_: "another")

    with pytest.raises(
        DifferentStudyError, match=r"of backend 'in_graph' it is now that of"
    ):
        resuming.reconcile(first, plan_of(backends=("tf_mirrored",)))
