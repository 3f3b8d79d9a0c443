"""Trials on GPUs: which they get, what is recorded of them, what makes them void."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from fake_nvml import FakeGpu, FakeMig, make_gpus

from harness.cli import exit_codes
from results import frame, verify
from results.gpu_record import GpuUse
from results.records import Environment, TrialStatus, Turn
from results.store import Store

if TYPE_CHECKING:
    from pathlib import Path

SWEEP = (
    "sweep",
    "--workload=resnet50",
    "--preset=smoke",
    "--device=gpu",
    "--mode=weak",
    "--repeats=1",
    "--study=s",
)
STRANGERS = [1]


def _environments(folder: Path) -> dict[int, Environment]:
    """Returns the environment records by number of replicas."""
    return {
        trial.spec.num_replicas: trial.env
        for trial in Store.open(folder / "runs" / "s").trials()
        if trial.spec is not None and trial.env is not None
    }


@pytest.fixture
def sweep(harness: Any, gpu_overrides: Any, install_gpus: Any) -> Any:
    """Returns a function that sweeps over GPUs with the fake worker."""

    def run(machine: list[FakeGpu], *options: str, **overrides: Any) -> Any:
        install_gpus(machine)
        return harness(*SWEEP, *options, overrides=gpu_overrides | overrides)

    return run


def test_eight_gpus_are_measured_and_each_trial_lists_its_own(
    sweep: Any, tmp_path: Path
) -> None:
    """The record has the GPUs of the trial, not those of the machine."""
    code, _, err = sweep(make_gpus(8), "--backends=in_graph", "--replicas=1,2,8")
    environments = _environments(tmp_path)

    assert exit_codes.OK == code, err
    assert {n: n for n in (1, 2, 8)} == {
        n: len(e.gpus) for n, e in environments.items()
    }
    assert 1 == len({env.fingerprint for env in environments.values()})
    for num_replicas, env in environments.items():
        ids = ",".join(map(str, range(num_replicas)))
        assert ids == env.environment_variables["CUDA_VISIBLE_DEVICES"]
        assert "exclusive" == env.placement.device_sharing
        assert list(range(num_replicas)) == [use.index for use in env.gpu_uses]
        assert {120.0} == {use.power_watts for use in env.gpu_uses}
        assert env.machine_state is not None
        assert "570.86.15" == env.machine_state.gpu_driver


def test_energy_per_example_is_a_column(sweep: Any, tmp_path: Path) -> None:
    """Mean power of all GPUs over throughput."""
    sweep(make_gpus(2), "--backends=in_graph", "--replicas=1,2")
    store = Store.open(tmp_path / "runs" / "s")
    used = {"energy_joules": 600.0, "watched_sec": 2.0}
    for trial in store.trials():
        uses = tuple(use.model_copy(update=used) for use in trial.env.gpu_uses)
        env = trial.env.model_copy(update={"gpu_uses": uses})
        store.write_env(trial.trial_id, env)
    trials = frame.trials_frame(store).set_index("num_replicas")

    for num_replicas in (1, 2):
        row = trials.loc[num_replicas]
        expected = num_replicas * 300.0 / row.examples_per_sec
        assert expected == pytest.approx(row.joules_per_example)


def test_one_gpu_is_enough(sweep: Any, tmp_path: Path) -> None:
    """Default replica counts follow from the GPUs."""
    code, _, err = sweep(make_gpus(1), "--backends=single")

    assert exit_codes.OK == code, err
    assert [1] == list(_environments(tmp_path))


@pytest.mark.processes
def test_workers_of_a_cluster_share_the_gpus_of_their_trial(
    sweep: Any, tmp_path: Path
) -> None:
    """Each process of a replica has cores of its own, near its GPU where known."""
    code, _, err = sweep(make_gpus(2), "--backends=multi_worker", "--replicas=2")
    (env,) = _environments(tmp_path).values()

    assert exit_codes.OK == code, err
    assert 2 == len(env.placement.cpusets)
    assert [0, 1] == [use.index for use in env.gpu_uses]
    assert {0} == {use.num_foreign_processes for use in env.gpu_uses}


def test_one_mig_instance_is_enough(sweep: Any, tmp_path: Path) -> None:
    """It is named by its UUID, and only there."""
    mig = [FakeMig(uuid="MIG-1"), FakeMig(uuid="MIG-2")]
    code, _, err = sweep([FakeGpu(mig=mig)], "--backends=single", "--replicas=1")
    (env,) = _environments(tmp_path).values()

    assert exit_codes.OK == code, err
    assert (mig[0].name,) == env.gpus
    assert "MIG-1" == env.environment_variables["CUDA_VISIBLE_DEVICES"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"users": STRANGERS}, r"1 other process used GPU 1 while it was measured"),
        ({"reasons": 0x40}, r"the clock of GPU 1 was lowered by heat \(hardware\)"),
    ],
)
def test_a_trial_that_others_or_heat_disturbed_is_void(
    sweep: Any, tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    """GPU 1 is disturbed after the sweep has begun: trials without it are ok."""
    machine = make_gpus(2)

    def canary(_core: int | None) -> float:  # runs after the checks of the sweep
        for name, value in change.items():
            setattr(machine[1], name, value)
        return 0.2

    code, _, _ = sweep(machine, "--backends=in_graph", "--replicas=1,2", canary=canary)
    store = Store.open(tmp_path / "runs" / "s")
    statuses = {t.spec.num_replicas: t.status for t in store.trials()}

    assert exit_codes.SOME_TRIALS_FAILED == code
    assert TrialStatus.OK is statuses[1].status
    assert TrialStatus.VOID is statuses[2].status
    assert re.match(reason, statuses[2].failure.reason)
    assert "doctor --device gpu" in statuses[2].failure.reason
    differences = [d for d in verify.verify(store).differences if "status" in d.where]
    assert [] == differences


def test_a_gpu_at_its_power_limit_is_recorded_and_ok(
    sweep: Any, tmp_path: Path
) -> None:
    """Most GPUs run at theirs under full load."""
    code, _, err = sweep(make_gpus(1, reasons=0x4), "--backends=single", "--replicas=1")
    (env,) = _environments(tmp_path).values()

    assert exit_codes.OK == code, err
    assert ("power limit",) == env.gpu_uses[0].slowed_by


def test_a_record_without_gpus_is_as_it_was(finished: Any, tmp_path: Path) -> None:
    """Also sources of an older revision read it, which a gate measures."""
    store = Store.open(tmp_path / "runs" / "s")
    texts = [path.read_text() for path in store.root.rglob("*.json")]

    assert len(texts) > 8
    assert [] == [text for text in texts if '"gpu_uses"' in text]
    assert {()} == {trial.env.gpu_uses for trial in store.trials()}


def test_a_turn_without_gpus_is_as_it_was() -> None:
    """And one with GPUs is read again as it was written."""
    turn = Turn(round_index=0, attempt=0, start_ns=0, end_ns=5, num_steps=1)
    used = turn.model_copy(update={"gpus": (GpuUse(index=3, num_samples=2),)})

    assert "gpus" not in json.loads(turn.model_dump_json())
    assert used == Turn.model_validate_json(used.model_dump_json())
