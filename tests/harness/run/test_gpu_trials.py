"""Trials on GPUs: which they get, what is recorded, what makes them discarded."""

import json
import os
import re

import pytest
from command_lines import overridden, smoke_sweep
from fake_machine import ANSWERS, make_gpus, without

from harness import ExitCode, main
from harness.machine import gpu_watch
from results import Phase, Store, TrialStatus, trials_frame

pytestmark = pytest.mark.usefixtures("forked_trials")

SWEEP = smoke_sweep(
    "--device=gpu --mode=weak --repeats=1 --budget=none --no-match --study=s"
)
STRANGERS = [1]


@pytest.fixture
def sweep(harness, gpu_overrides, install_gpus):
    def run(machine, *options, **overrides):
        install_gpus(machine)
        return harness(*SWEEP, *options, overrides=gpu_overrides | overrides)

    return run


@pytest.fixture
def measured(sweep, tmp_path):
    def run(machine, *options, **overrides):
        code, _, err = sweep(machine, *options, **overrides)
        assert ExitCode.OK == code, err
        return {
            trial.spec.num_replicas: trial.env
            for trial in Store.open(tmp_path / "runs" / "s").trials()
        }

    return run


def test_eight_gpus_are_measured_and_each_trial_lists_its_own(measured, tmp_path):
    environments = measured(make_gpus(8), "--backends=in_graph", "--replicas=1,2,8")

    assert {1: 1, 2: 2, 8: 8} == {n: len(env.gpus) for n, env in environments.items()}
    assert 1 == len({env.fingerprint for env in environments.values()})
    for num_replicas, env in environments.items():
        ids = ",".join(map(str, range(num_replicas)))
        assert ids == env.environment_variables["CUDA_VISIBLE_DEVICES"]
        assert "exclusive" == env.placement.device_sharing
        assert list(range(num_replicas)) == [use.index for use in env.gpu_uses]
        assert {120.0} == {use.power_watts for use in env.gpu_uses}
        assert {2619.0} == {use.memory_clock_mhz for use in env.gpu_uses}
        # A matrix product on each GPU: the last of several is slow.
        rates = [600.0] * max(1, num_replicas - 1) + [480.0] * (num_replicas > 1)
        assert rates == [use.product_tflops for use in env.gpu_uses]
        assert list(range(num_replicas)) == [of.index for of in env.gpu_settings]
        assert num_replicas == len(env.gpu_settings[0].paths)
        assert (None if num_replicas == 1 else "2.25.1") == env.nccl_version
        assert "4294967296" == env.environment_variables["CUDA_CACHE_MAXSIZE"]
        assert env.machine_state is not None
        assert "570.86.15" == env.machine_state.gpu_driver

    # Energy per example is the mean power of all GPUs over the throughput.
    store = Store.open(tmp_path / "runs" / "s")
    used = {"energy_joules": 600.0, "watched_sec": 2.0}
    for trial in store.trials():
        uses = tuple(use.model_copy(update=used) for use in trial.env.gpu_uses)
        env = trial.env.model_copy(update={"gpu_uses": uses})
        store.write_env(trial.trial_id, env)
    for row in trials_frame(store).itertuples():
        expected = row.num_replicas * 300.0 / row.examples_per_sec
        assert expected == pytest.approx(row.joules_per_example)


def test_one_gpu_is_enough(measured, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_NO_PRODUCT", "1")
    found = measured(make_gpus(1, reasons=0x4), "--backends=single")
    (rank,) = tmp_path.rglob("rank_0.jsonl")

    assert [1] == list(found)
    assert [None] == [use.product_tflops for use in found[1].gpu_uses]
    assert '"reason": "OOM when allocating tensor"' in rank.read_text()
    assert ("power limit",) == found[1].gpu_uses[0].slowed_by


@pytest.mark.processes
def test_workers_of_a_cluster_share_the_gpus_of_their_trial(measured):
    (env,) = measured(make_gpus(2), "--backends=multi_worker", "--replicas=2").values()

    assert 2 == len(env.placement.cpusets)
    assert [600.0, 600.0] == [use.product_tflops for use in env.gpu_uses]
    assert [0, 1] == [use.index for use in env.gpu_uses]
    assert {0} == {use.num_foreign_processes for use in env.gpu_uses}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        # The check before the trial finds nobody, the first reading within it does.
        (
            {"users_later": STRANGERS, "asked_before": 1},
            r"1 other process used GPU 1 while it was measured; .* doctor --device gpu",
        ),
        (
            {"users": STRANGERS},
            (
                r"1 other process used GPU 1 before it was started; end the others,"
                r" or reset .* \('nvidia-smi' says which\), then .* --retry failed"
            ),
        ),
        (
            {"is_lost": True},
            r"GPU 1 could not be read \(.*: unknown .* before it was started",
        ),
        (
            {"reasons": 0x40},
            r"the clock of GPU 1 was lowered by heat \(hardware\) .*doctor --device",
        ),
    ],
)
def test_a_trial_that_others_or_heat_disturbed_is_discarded(
    sweep, harness, tmp_path, monkeypatch, change, reason
):
    machine = make_gpus(2)
    started = tmp_path / "started"
    monkeypatch.setenv("FAKE_COUNT_FILE", str(started))
    num_calls = 0

    def canary(_core):
        nonlocal num_calls
        num_calls += 1
        if num_calls == 3:  # before the second trial, which has both GPUs
            for name, value in change.items():
                setattr(machine[1], name, value)
        return 0.2

    code, _, _ = sweep(machine, "--backends=in_graph", "--replicas=1,2", canary=canary)
    store = Store.open(tmp_path / "runs" / "s")
    trials = {trial.spec.num_replicas: trial for trial in store.trials()}
    failure = trials[2].status.failure
    is_started = "before it was started" not in reason

    assert ExitCode.SOME_TRIALS_FAILED == code
    assert TrialStatus.OK is trials[1].status.status
    assert TrialStatus.DISCARDED is trials[2].status.status
    assert re.match(reason, failure.reason)
    assert is_started == (Phase.LAUNCH is not failure.phase)
    assert is_started == (trials[2].result is not None)
    assert 1 + is_started == len(started.read_text().split())
    found = json.loads(harness("verify", "s", "--json")[1])["differences"]
    assert [] == [item for item in found if "status" in item["where"]]


def test_a_process_that_is_about_to_end_is_waited_for(sweep, monkeypatch):
    machine = make_gpus(1)
    answers = iter([[], STRANGERS, STRANGERS])  # before the sweep, before the trial
    monkeypatch.setattr(gpu_watch, "WAIT_SEC", 60.0)
    monkeypatch.setattr(gpu_watch, "_PERIOD_SEC", 0.01)
    listed = ANSWERS["ComputeRunningProcesses"]

    def leave(gpu):
        gpu.users = next(answers, [])
        return listed(gpu)

    monkeypatch.setitem(ANSWERS, "ComputeRunningProcesses", leave)
    code, _, err = sweep(machine, "--backends=single", "--replicas=1")

    assert ExitCode.OK == code, err
    assert next(answers, None) is None


def test_a_second_sweep_on_the_same_gpus_is_one_line(
    sweep, harness, gpu_overrides, tmp_path, written, monkeypatch
):
    found = []
    machine = make_gpus(4, unsupported=without("ComputeRunningProcesses"))

    def second(visible, backend="single", replicas=1):
        words = [part for part in SWEEP if part != "--study=s"]
        options = (f"--backends={backend}", f"--replicas={replicas}", "--study=second")
        with monkeypatch.context() as patch:
            patch.setenv("CUDA_VISIBLE_DEVICES", visible)
            return main((*words, *options), run_overrides=gpu_overrides)

    def canary(_core):  # no trial has a process now
        if not found:
            before = written()
            # An attempt that fails holds no lock, also of what was free.
            found.extend([second("0"), second("1,0", "in_graph", 2)])
            found.extend([before == written(), second("1")])
        return 0.2

    code, _, err = sweep(machine, "--backends=single", "--replicas=1", canary=canary)
    lines = [line for line in err.splitlines() if line.startswith("error: ")]

    assert ExitCode.OK == code, err
    assert [ExitCode.UNFIT, ExitCode.UNFIT, True, ExitCode.OK] == found
    assert [lines[0]] * 2 == lines
    assert re.fullmatch(
        r"error: GPU 0 \(NVIDIA H100 80GB HBM3\) is used by another sweep \(study 's',"
        rf" process {os.getpid()}\), but a trial needs its GPUs for itself; wait for"
        r" its end, or choose other GPUs with CUDA_VISIBLE_DEVICES",
        lines[0],
    )


def test_a_link_in_place_of_a_lock_is_not_followed(
    sweep, harness, gpu_overrides, tmp_path
):
    one = ("--backends=single", "--replicas=1")
    assert ExitCode.OK == sweep(make_gpus(1), *one)[0]
    (lock,) = gpu_watch.lock_folder().iterdir()
    lock.unlink()
    target = tmp_path / "precious"
    target.write_text("kept")
    lock.symlink_to(target)
    words = overridden(SWEEP, *one, "--study=t")
    code, _, err = harness(*words, overrides=gpu_overrides)

    assert ExitCode.UNFIT == code
    assert re.search(r"^error: cannot lock GPU 0 .*; remove that file", err)
    assert "kept" == target.read_text()
