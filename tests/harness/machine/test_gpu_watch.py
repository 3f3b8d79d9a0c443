"""GPUs of a trial are its own, and are watched while it runs: others, heat, energy."""

import dataclasses
import os
import subprocess
import sys
import time

import pytest
from fake_nvml import FakeGpu, FakeMig, make_gpus, without
from loads import QUIET

from harness.errors import UnfitMachineError
from harness.machine import disturbance, gpu_watch, gpus
from harness.machine.gpu_watch import (
    GpuReading,
    GpuWatch,
    num_foreign,
    summarize,
    within,
)
from results.records.machine_record import GpuUse, joules_per_example, void_reason

STRANGER = 2**22 + 1
"""A process id that this system never gives."""


def _reading(ns=0, **fields):
    defaults = {
        "clock_mhz": 1980,
        "power_watts": 600.0,
        "temperature_celsius": 60,
        "reasons": 0,
        "energy_joules": None,
        "num_foreign": 0,
    }
    return GpuReading(ns=ns, **(defaults | fields))


def test_trials_on_cpus_need_no_driver_and_no_lock(install_gpus, monkeypatch):
    install_gpus([], driver=None)
    monkeypatch.setattr(gpu_watch, "lock_folder", None)
    with GpuWatch(()) as watch, gpu_watch.hold_gpus((), study="ours"):
        pass

    assert () == watch.uses()
    assert "" == gpu_watch.wait_until_free(())


def test_a_trial_is_watched_from_its_start_to_its_end(install_gpus):
    nvml = install_gpus(make_gpus(8))
    with GpuWatch(gpus.read_gpus()[2:4], period_sec=0.01) as watch:
        time.sleep(0.1)
    first, second = watch.uses()

    assert (2, 3) == (first.index, second.index)
    assert first.num_samples >= 3
    assert (1980, 120.0, 31, ()) == (
        first.clock_mhz,
        first.power_watts,
        first.temperature_celsius,
        first.slowed_by,
    )
    # Each reading of the stand-in adds 5 J.
    assert 5.0 * (first.num_samples - 1) == first.energy_joules
    assert first.watched_sec >= 0.1
    assert 0 == first.num_foreign_processes
    assert "" == void_reason(watch.uses())
    assert 0 == nvml.num_open


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"])
print(child.pid, flush=True)
child.wait()
"""


def test_a_process_of_others_is_seen_and_those_of_a_trial_are_not(install_gpus):
    """The driver also lists what a worker has started."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        machine = make_gpus(2)
        machine[0].users = [os.getpid(), child.pid, int(child.stdout.readline())]
        machine[1].users = [os.getpid(), os.getppid()]
        install_gpus(machine)
        with GpuWatch(gpus.read_gpus()) as watch:
            pass
        child.stdin.close()

    assert [0, 1] == [use.num_foreign_processes for use in watch.uses()]
    assert "1 other process used GPU 1" == void_reason(watch.uses())


@pytest.mark.parametrize(
    ("users", "own", "expected"),
    [
        ((), (5,), 0),
        ((5,), (5,), 0),
        ((5, 9), (5,), 1),
        ((9,), (5,), 1),
        # Ids of another name space: one can be ours, the second cannot.
        ((STRANGER,), (5,), 0),
        ((STRANGER, STRANGER + 1), (5,), 1),
        # Two sweeps in one container: the harness has processes without a context.
        ((STRANGER, STRANGER + 1), (5, 6, 7), 1),
        # Ours are found by their ids, so an unknown one is of others.
        ((5, STRANGER), (5, 6), 1),
    ],
)
def test_ids_of_another_name_space_can_be_ours(users, own, expected):
    assert expected == num_foreign(users, own, lambda pid: pid < STRANGER)


def test_instances_of_a_gpu_are_watched_as_one(install_gpus):
    install_gpus([FakeGpu(mig=[FakeMig(uuid="MIG-1"), FakeMig(uuid="MIG-2")])])
    with GpuWatch(gpus.read_gpus()) as watch:
        pass

    assert [0] == [use.index for use in watch.uses()]


def test_what_a_gpu_does_not_support_is_none(install_gpus):
    unsupported = without(
        "ComputeRunningProcesses CurrentClocksThrottleReasons ClockInfo Temperature "
        "PowerUsage TotalEnergyConsumption TotalEccErrors"
    )
    install_gpus([FakeGpu(unsupported=unsupported)])
    with GpuWatch(gpus.read_gpus()) as watch:
        pass
    (use,) = watch.uses()

    unknown = GpuUse(index=0, num_samples=use.num_samples, watched_sec=use.watched_sec)
    assert unknown == use
    assert "" == void_reason([use])


def test_readings_of_a_window_are_chosen_by_time():
    readings = [_reading(ns) for ns in (0, 100, 200, 300)]

    assert readings == within(readings, None, None)
    assert readings[1:3] == within(readings, 100, 250)
    assert readings[3:] == within(readings, 260, 290)


def test_a_hot_gpu_is_void_and_one_at_its_power_limit_is_not():
    capped = summarize(4, [_reading(), _reading(reasons=0x4, clock_mhz=1700)])
    hot = summarize(5, [_reading(reasons=0x1), _reading(reasons=0x20 | 0x8)])

    assert (1840.0, 1700.0, ("power limit",)) == (
        capped.clock_mhz,
        capped.lowest_clock_mhz,
        capped.slowed_by,
    )
    assert "" == void_reason([capped])
    expected = "the clock of GPU 5 was lowered by hardware slowdown and heat"
    assert expected == void_reason([capped, hot])


def test_gpus_are_a_cause_of_void_turns_of_their_own():
    quiet = dataclasses.replace(QUIET, gpus=(summarize(3, [_reading(num_foreign=2)]),))

    assert "2 other processes used GPU 3" == disturbance.void_reason(quiet, 0)


def test_energy_is_per_example_of_all_gpus():
    ends = [
        _reading(0, energy_joules=100.0),
        _reading(2_000_000_000, energy_joules=1300.0),
    ]
    uses = [summarize(index, ends) for index in (0, 1)]

    assert 0.6 == joules_per_example(uses, 2000.0)
    assert joules_per_example([*uses, summarize(2, [_reading()])], 2000.0) is None
    assert joules_per_example([], 2000.0) is None


def test_a_gpu_that_is_lost_voids_what_follows(install_gpus):
    machine = make_gpus(2)
    install_gpus(machine)
    with GpuWatch(gpus.read_gpus(), period_sec=0.01) as watch:
        time.sleep(0.05)
        before_ns = time.monotonic_ns()
        machine[1].is_lost = True
        time.sleep(0.05)
    first, second = watch.uses()

    assert () == first.faults
    assert second.num_samples
    said = "GPU 1 could not be read (GPU is lost): unknown who used it"
    assert (said,) == second.faults
    assert said == void_reason(watch.uses())
    assert "" == void_reason(watch.uses(before_ns - 10_000_000, before_ns))


def test_a_gpu_that_was_never_read_is_neither_quiet_nor_free(install_gpus):
    machine = make_gpus(1)
    install_gpus(machine)
    chosen = gpus.read_gpus()
    machine[0].is_lost = True
    said = "GPU 0 could not be read (GPU is lost): unknown who used it"
    with GpuWatch(chosen) as watch:
        pass
    (use,) = watch.uses()

    assert 0 == use.num_samples
    assert said == void_reason([use])
    assert said == gpu_watch.wait_until_free(chosen)


def test_errors_of_the_memory_that_appear_void_a_trial(install_gpus):
    machine = make_gpus(2, uncorrected_errors=3)
    install_gpus(machine)
    with GpuWatch(gpus.read_gpus(), period_sec=0.01) as watch:
        time.sleep(0.03)
        machine[1].uncorrected_errors += 2
    first, second = watch.uses()

    assert () == first.faults
    assert ("2 uncorrected ECC errors appeared on GPU 1",) == second.faults
    assert "faults" not in first.model_dump()
    assert GpuUse.model_validate(second.model_dump()) == second


def test_an_attempt_that_fails_holds_no_lock(install_gpus):
    install_gpus(make_gpus(2))
    first, second = gpus.read_gpus()
    with gpu_watch.hold_gpus([first], study="theirs"):
        with (
            pytest.raises(UnfitMachineError, match=r"another sweep \(study 'theirs'"),
            gpu_watch.hold_gpus([second, first], study="ours"),
        ):
            pass
        with gpu_watch.hold_gpus([second], study="ours"):
            pass


def test_the_lock_of_another_user_can_be_read_only(install_gpus, monkeypatch):
    install_gpus(make_gpus(1))
    (gpu,) = gpus.read_gpus()
    with gpu_watch.hold_gpus([gpu], study="theirs"):
        pass
    opened = os.open

    def refuse(path, flags, *mode):
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied")
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "open", refuse)
    with (
        gpu_watch.hold_gpus([gpu], study="ours"),
        pytest.raises(
            UnfitMachineError, match=r"used by another sweep \(study 'theirs'"
        ),
        gpu_watch.hold_gpus([gpu], study="second"),
    ):
        pass


def test_a_link_in_place_of_a_lock_is_not_followed(install_gpus, tmp_path):
    install_gpus(make_gpus(1))
    (gpu,) = gpus.read_gpus()
    with gpu_watch.hold_gpus([gpu], study="ours"):
        (lock,) = gpu_watch.lock_folder().iterdir()
    lock.unlink()
    target = tmp_path / "precious"
    target.write_text("kept")
    lock.symlink_to(target)
    with (
        pytest.raises(
            UnfitMachineError, match=r"cannot lock GPU 0 .*; remove that file"
        ),
        gpu_watch.hold_gpus([gpu], study="ours"),
    ):
        pass

    assert "kept" == target.read_text()


NO_LIST = without("ComputeRunningProcesses")


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (FakeGpu(users=[1]), "1 other process used GPU 0"),
        # None of ours runs yet, so an id of another name space is of others too.
        (FakeGpu(users=[1, STRANGER]), "2 other processes used GPU 0"),
        (FakeGpu(users=[os.getpid()]), ""),
        (FakeGpu(users=[1], mig=[FakeMig(uuid="MIG-1")]), "1 other process used GPU 0"),
        (FakeGpu(unsupported=NO_LIST), ""),
    ],
)
def test_who_uses_a_gpu_before_a_trial_is_of_others(install_gpus, gpu, expected):
    install_gpus([gpu])

    assert expected == gpu_watch.wait_until_free(gpus.read_gpus())
