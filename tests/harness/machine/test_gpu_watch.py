"""GPUs of a trial are its own, and are watched while it runs: others, heat, energy."""

import dataclasses
import os
import re
import subprocess
import sys
import time
from pathlib import Path

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


def test_no_gpu_needs_no_driver(install_gpus):
    """Trials on CPUs are watched in the same way."""
    install_gpus([], driver=None)
    with GpuWatch(()) as watch:
        pass

    assert () == watch.uses()


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


def test_a_process_of_others_is_seen_and_one_of_ours_is_not(install_gpus):
    """Children of the harness are its trials."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    machine = make_gpus(2)
    machine[0].users = [os.getpid(), child.pid]
    machine[1].users = [os.getpid(), os.getppid()]
    install_gpus(machine)
    try:
        with GpuWatch(gpus.read_gpus()) as watch:
            pass
    finally:
        child.communicate()
    first, second = watch.uses()

    assert (0, 1) == (first.num_foreign_processes, second.num_foreign_processes)
    assert "1 other process used GPU 1" == void_reason(watch.uses())


def test_children_of_a_trial_are_ours(install_gpus):
    """A worker may start processes of its own, which the driver lists as well."""
    grandchild = "import sys; sys.stdin.read()"
    code = (
        "import subprocess, sys\n"
        f"made = subprocess.Popen([sys.executable, '-c', {grandchild!r}])\n"
        "print(made.pid, flush=True)\n"
        "made.wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        machine = make_gpus(1)
        machine[0].users = [int(child.stdout.readline()), os.getppid()]
        install_gpus(machine)
        with GpuWatch(gpus.read_gpus()) as watch:
            pass
        assert child.stdin is not None
        child.stdin.close()

    assert [1] == [use.num_foreign_processes for use in watch.uses()]


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
    """In a container the driver may name processes as the host does."""
    assert expected == num_foreign(users, own, lambda pid: pid < STRANGER)


def test_instances_of_a_gpu_are_watched_as_one(install_gpus):
    """They share its clock and its power."""
    install_gpus([FakeGpu(mig=[FakeMig(uuid="MIG-1"), FakeMig(uuid="MIG-2")])])
    with GpuWatch(gpus.read_gpus()) as watch:
        pass

    assert [0] == [use.index for use in watch.uses()]


def test_what_a_gpu_does_not_support_is_none(install_gpus):
    """Old and virtual GPUs answer a part of the questions."""
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
    """Of a window between two readings, the nearest one counts."""
    readings = [_reading(ns) for ns in (0, 100, 200, 300)]

    assert readings == within(readings, None, None)
    assert readings[1:3] == within(readings, 100, 250)
    assert readings[3:] == within(readings, 260, 290)


def test_a_hot_gpu_is_void_and_one_at_its_power_limit_is_not():
    """Under full load most GPUs run at their power limit."""
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
    """Beside the load of the cores."""
    quiet = dataclasses.replace(QUIET, gpus=(summarize(3, [_reading(num_foreign=2)]),))

    assert "2 other processes used GPU 3" == disturbance.void_reason(quiet, 0)


def test_energy_is_per_example_of_all_gpus():
    """Mean power over throughput; unknown where one GPU does not say."""
    ends = [
        _reading(0, energy_joules=100.0),
        _reading(2_000_000_000, energy_joules=1300.0),
    ]
    uses = [summarize(index, ends) for index in (0, 1)]

    assert 0.6 == joules_per_example(uses, 2000.0)
    assert joules_per_example([*uses, summarize(2, [_reading()])], 2000.0) is None
    assert joules_per_example([], 2000.0) is None


def test_a_gpu_that_is_lost_voids_what_follows(install_gpus):
    """Not what was measured before; nobody knows who uses it then."""
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
    said = "GPU 1 could not be read (GPU is lost): nobody knows who used it"
    assert (said,) == second.faults
    assert said == void_reason(watch.uses())
    assert "" == void_reason(watch.uses(before_ns - 10_000_000, before_ns))


def test_a_gpu_that_was_never_read_is_not_left_out(install_gpus):
    """Without a record of it, it would look free and quiet."""
    machine = make_gpus(1)
    install_gpus(machine)
    chosen = gpus.read_gpus()
    machine[0].is_lost = True
    with GpuWatch(chosen) as watch:
        pass
    (use,) = watch.uses()

    assert 0 == use.num_samples
    assert "GPU 0 could not be read" in void_reason([use])


def test_errors_of_the_memory_that_appear_void_a_trial(install_gpus):
    """Those from before it say nothing of it."""
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


HOLD = """
import pathlib, sys
from harness.machine import gpu_watch, gpus
gpu_watch.lock_folder = lambda: pathlib.Path(sys.argv[1])
gpu = gpus.Gpu(index=0, uuid=sys.argv[2], name="H100")
with gpu_watch.hold_gpus([gpu], study="theirs"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.processes
def test_a_lock_keeps_other_processes_out_until_its_own_has_ended(install_gpus):
    install_gpus(make_gpus(2))
    first, second = gpus.read_gpus()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(gpu_watch.lock_folder()), first.uuid],
        cwd=Path(__file__).resolve().parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert "held\n" == other.stdout.readline()
        with (
            pytest.raises(
                UnfitMachineError,
                match=rf"by another sweep \(study 'theirs', process {other.pid}",
            ),
            gpu_watch.hold_gpus([second, first], study="ours"),
        ):
            pass
        with gpu_watch.hold_gpus([second], study="ours"):
            pass  # it was released with the failed attempt
        other.kill()
    with gpu_watch.hold_gpus([first], study="ours"):
        pass


def test_no_gpu_needs_no_lock(monkeypatch):
    """Trials on CPUs take turns in a relay, and touch nothing here."""
    monkeypatch.setattr(gpu_watch, "lock_folder", None)
    with gpu_watch.hold_gpus((), study="ours"):
        pass
    assert "" == gpu_watch.wait_until_free(())


def test_the_lock_of_another_user_can_be_read_only(install_gpus, monkeypatch):
    """Then it says who holds it no better than that user wrote it."""
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
    """Its target is not ours to write."""
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


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (make_gpus(8), ""),
        ([FakeGpu(users=[1])], "1 other process used GPU 0"),
        ([FakeGpu(users=[1, 2**22 + 1])], "2 other processes used GPU 0"),
        # None of ours runs yet, so an id of another name space is of others too.
        ([FakeGpu(users=[2**22 + 1])], "1 other process used GPU 0"),
        ([FakeGpu(users=[os.getpid()])], ""),
        ([FakeGpu(users=[1], mig=[FakeMig(uuid="MIG-1")])], "1 other .* GPU 0"),
        (
            [FakeGpu(unsupported=without("ComputeRunningProcesses"))],
            "",
        ),
    ],
)
def test_who_uses_a_gpu_before_a_trial_is_of_others(install_gpus, machine, expected):
    """Where the driver lists nobody, nobody is known."""
    install_gpus(machine)

    assert re.fullmatch(expected, gpu_watch.wait_until_free(gpus.read_gpus()))


def test_a_gpu_that_cannot_be_read_is_not_free(install_gpus):
    """Nobody knows who uses it."""
    machine = make_gpus(1)
    install_gpus(machine)
    chosen = gpus.read_gpus()
    machine[0].is_lost = True

    assert (
        "GPU 0 could not be read (GPU is lost): nobody knows who used it"
        == gpu_watch.wait_until_free(chosen)
    )
