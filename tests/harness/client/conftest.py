"""A relay of one program that connects by the client, started as it is."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.planning import checked, plan
from harness.planning.request import SweepRequest, resolved
from harness.run import rounds, trial_runner
from harness.run.relay import run_generation
from harness.run.rounds import Generation
from results.records import identity
from results.records.models import Control, Order, Plan, ScalingMode
from results.store.study_store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.run.trial_runner import RunSettings

CLIENT = Path(__file__).resolve().parents[3] / "harness" / "client"
PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def quick_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns of 20 ms: what happens in them is looked at, not how long they take."""
    monkeypatch.setattr(rounds, "MIN_TURN_SEC", 0.02)


@pytest.fixture
def client_settings(
    settings: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., RunSettings]:
    """Returns a function that makes settings, and variables for the program."""
    monkeypatch.setenv("PYTHONPATH", str(CLIENT))

    def make(**variables: object) -> RunSettings:
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
        return dataclasses.replace(settings, folders={"": PROGRAMS})

    return make


@pytest.fixture
def program() -> dict[str, Any]:
    """Returns the options that say what is measured."""
    return {
        "command": f"{sys.executable} start.py {{replicas}}",
        "metric": "client",
    }


@pytest.fixture
def client_store(tmp_path: Path, program: dict[str, Any]) -> Store:
    """Returns a new study of a program at one and two replicas, with a twin."""
    request = resolved(
        SweepRequest(
            **program,
            unit="images",
            per_replica_batch_size=4,
            replicas=(1, 2),
            modes=(ScalingMode.WEAK,),
            repeats=1,
        ),
        PROGRAMS,
    )
    planned = plan.plan_sweep(request, checked.Machine(num_available_cores=2))
    made = Store.create(tmp_path / "runs" / "clients")
    made.write_plan(
        Plan(
            study="clients",
            created_at="2026-01-01T00:00:00+00:00",
            command=("python", "-m", "harness"),
            baseline_num_replicas=1,
            repeats=1,
            seed=0,
            timeout_sec=60.0,
            measuring=planned.measuring,
            trials=planned.trials,
        )
    )
    return made


@pytest.fixture
def make_control(client_store: Store) -> Any:
    """Returns a function that adds a control of the first case to the plan."""

    def make(control: Control) -> None:
        made = client_store.read_plan()
        spec = made.trials[0].spec.model_copy(update={"control": control})
        trial_id, case_id = identity.ids(spec)
        trial = made.trials[0].model_copy(
            update={"trial_id": trial_id, "case_id": case_id, "spec": spec}
        )
        client_store.write_plan(
            made.model_copy(update={"trials": (*made.trials, trial)})
        )

    return make


@pytest.fixture
def take_turns(client_store: Store, quick_turns: None) -> Any:
    """Returns a function that runs trials in turns, and what the store has of them."""

    def run(settings: RunSettings, *controls: Control, num_replicas: int = 1) -> Any:
        planned = client_store.read_plan().trials
        trials = [t for t in planned if t.spec.control in (controls or [Control.NONE])]
        trials = [t for t in trials if t.spec.num_replicas == num_replicas]
        generation = Generation(
            trials=trials[: max(len(controls), 1)],
            index=0,
            duration_sec=None,
            max_rounds=2,
            seed=7,
        )
        run_generation(client_store, generation, settings, lambda *_: None)
        found = [client_store.read_trial(t.trial_id) for t in generation.trials]
        return found[0] if len(found) == 1 else found

    return run


@pytest.fixture
def run_alone(client_store: Store, make_spec: Any) -> Any:
    """Returns a function that runs a trial alone, and what the store has of it."""

    def run(settings: RunSettings) -> Any:
        (planned, *_) = client_store.read_plan().trials
        spec = planned.spec.model_copy(
            update={"order": Order.SEQUENTIAL, "num_measured_steps": 12}
        )
        trial_id, case_id = identity.ids(spec)
        trial = planned.model_copy(
            update={"trial_id": trial_id, "case_id": case_id, "spec": spec}
        )
        trial_runner.run_trial(client_store, trial, settings)
        return client_store.read_trial(trial_id)

    return run
