"""What the kernel counts for cores, what others did to them, and what it makes void."""

import dataclasses
import os
import random
import subprocess
import sys
import time

import psutil
import pytest
from hung import until
from loads import QUIET

from harness.machine import disturbance, machine_state
from harness.machine.disturbance import CpuClock
from harness.machine.machine_state import CoreClock, CoreTimes, ThreadTimes, Throttling

TICK_SEC = machine_state.TICK_SEC


def test_the_totals_of_the_trials_cores_are_summed(fake_root):
    fake_root.cores((100, 0, 9, 1), (200, 0, 9, 2), (400, 0, 9, 4))
    clock = machine_state.read_core_clock((0, 2), (), fake_root.path)

    assert clock.cores is not None
    assert 500 * TICK_SEC == pytest.approx(clock.cores.idle_sec)
    assert 5 * TICK_SEC == pytest.approx(clock.cores.stolen_sec)
    assert 0.0 == clock.cores.interrupt_sec
    assert 2 == clock.num_cores


def test_interrupts_are_read_where_the_kernel_counts_them_apart(fake_root):
    """Recognized by irq above 0; otherwise they are in the time of processes."""
    fake_root.cores((0, 3, 9, 0))
    clock = machine_state.read_core_clock((0,), (), fake_root.path)

    assert clock.cores is not None
    assert 12 * TICK_SEC == pytest.approx(clock.cores.interrupt_sec)


def test_a_system_without_these_files_has_no_counters(fake_root):
    """Nothing is claimed where the kernel does not count."""
    clock = machine_state.read_core_clock((0,), (7,), fake_root.path)

    assert clock.cores is None
    assert clock.run_sec is None
    assert {} == clock.threads == clock.process_sec
    assert machine_state.Throttling(
        num_quota=None, quota_sec=None, num_thermal=None
    ) == (clock.throttling)


def test_a_core_that_the_kernel_does_not_show_gives_no_totals(fake_root):
    """It was switched off since planning: half of the cores would be too little."""
    fake_root.cores((1, 0, 0, 0))

    assert machine_state.read_core_clock((0, 5), (), fake_root.path).cores is None


def test_threads_of_all_processes_are_read(fake_root):
    fake_root.thread(7, 7, 1.5, 0.25)
    fake_root.thread(7, 8, 0.5)
    fake_root.thread(9, 9, 2.0)
    fake_root.process(7, 120, 80)
    clock = machine_state.read_core_clock((0,), (7, 9, 11), fake_root.path)

    assert {(7, 7), (7, 8), (9, 9)} == set(clock.threads)
    assert machine_state.ThreadTimes(run_sec=1.5, delay_sec=0.25) == clock.threads[7, 7]
    assert {7: pytest.approx(200 * TICK_SEC)} == clock.process_sec
    assert "schedstat" == clock.process_source


def test_a_thread_that_ends_while_it_is_read_is_left_out(fake_root):
    """Its folder is listed, and its file no longer exists or is empty."""
    fake_root.thread(7, 7, 1.0)
    (fake_root.path / "proc/7/task/8").mkdir()
    fake_root.write("proc/7/task/9/schedstat", "")

    assert [(7, 7)] == [
        *machine_state.read_core_clock((0,), (7,), fake_root.path).threads
    ]


def test_without_schedstat_the_ticks_of_processes_are_used(fake_root):
    fake_root.process(7, 3, 4)
    (fake_root.path / "proc/7/task/7").mkdir(parents=True)
    clock = machine_state.read_core_clock((0,), (7,), fake_root.path)

    assert "stat" == clock.process_source
    assert {7: pytest.approx(7 * TICK_SEC)} == clock.process_sec


@pytest.mark.parametrize("folder", ["cpuacct", "cpu,cpuacct"])
def test_the_exact_run_time_of_cores_is_read(fake_root, folder):
    path = f"sys/fs/cgroup/{folder}/cpuacct.usage_percpu"
    fake_root.write(path, "1000000000 2500000000 7 \n")

    assert 2.5 == machine_state.read_core_clock((1,), (), fake_root.path).run_sec
    assert machine_state.read_core_clock((1, 3), (), fake_root.path).run_sec is None


@pytest.mark.parametrize(
    ("group", "path", "text"),
    [
        (
            "4:cpu:/a",
            "sys/fs/cgroup/cpu/a/cpu.stat",
            "nr_periods 9\nnr_throttled 3\nthrottled_time 250000000\n",
        ),
        (
            "0::/a",
            "sys/fs/cgroup/a/cpu.stat",
            "usage_usec 12\nnr_throttled 3\nthrottled_usec 250000\n",
        ),
    ],
)
def test_throttling_by_a_quota_is_read(fake_root, group, path, text):
    fake_root.write("proc/self/cgroup", group + "\n")
    fake_root.write(path, text)
    throttling = machine_state.read_core_clock((0,), (), fake_root.path).throttling

    assert 3 == throttling.num_quota
    assert 0.25 == pytest.approx(throttling.quota_sec)
    assert throttling.num_thermal is None


def test_a_folder_of_two_names_is_counted_once(fake_root):
    """``cpu`` is usually a link to ``cpu,cpuacct``."""
    fake_root.write("proc/self/cgroup", "4:cpu,cpuacct:/\n")
    fake_root.write("sys/fs/cgroup/cpu,cpuacct/cpu.stat", "nr_throttled 3\n")
    (fake_root.path / "sys/fs/cgroup/cpu").symlink_to("cpu,cpuacct")

    assert (
        3
        == machine_state.read_core_clock((0,), (), fake_root.path).throttling.num_quota
    )


def test_throttling_by_heat_is_read(fake_root):
    for cpu, count in ((0, 1), (1, 2), (2, 100)):
        folder = f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle"
        fake_root.write(f"{folder}/core_throttle_count", f"{count}\n")
        fake_root.write(f"{folder}/package_throttle_count", "10\n")

    throttling = machine_state.read_core_clock((0, 1), (), fake_root.path).throttling
    assert 23 == throttling.num_thermal


def test_this_kernel_has_what_a_reading_needs():
    core = min(os.sched_getaffinity(0))
    start = machine_state.read_core_clock((core,), (os.getpid(),))
    end_sec = time.process_time() + 0.05
    while time.process_time() < end_sec:
        pass
    end = machine_state.read_core_clock((core,), (os.getpid(),))

    assert end.cores is not None
    assert end.wall_sec - start.wall_sec >= 0.05
    grown_sec = sum(t.run_sec for t in end.threads.values()) - sum(
        t.run_sec for t in start.threads.values()
    )
    # The kernel updates the total of a running thread once per tick.
    assert grown_sec > 0.05 - TICK_SEC


def test_a_reading_while_threads_come_and_end_succeeds():
    code = (
        "import threading\nprint(flush=True)\nwhile True:\n  t ="
        " threading.Thread(target=int)\n  t.start()\n  t.join()\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            clocks = [
                machine_state.read_core_clock((0,), (child.pid,)) for _ in range(200)
            ]
            for _ in range(20_000):  # until it has run for a tick
                if clocks[-1].process_sec[child.pid] > 0:
                    break
                clocks.append(machine_state.read_core_clock((0,), (child.pid,)))
        finally:
            child.kill()

    assert all((child.pid, child.pid) in clock.threads for clock in clocks)
    assert clocks[-1].process_sec[child.pid] > 0


def _clock(wall_sec, **fields):
    """A reading of two cores; ``idle``, ``stolen`` and ``own`` in seconds."""
    cores = CoreTimes(
        idle_sec=fields.pop("idle", 0.0),
        stolen_sec=fields.pop("stolen", 0.0),
        interrupt_sec=fields.pop("interrupts", 0.0),
    )
    own_sec = fields.pop("own", 0.0)
    threads = {(7, 7): ThreadTimes(run_sec=own_sec, delay_sec=fields.pop("delay", 0.0))}
    defaults = {
        "num_cores": 2,
        "cores": cores,
        "run_sec": None,
        "threads": threads,
        "process_sec": {7: own_sec},
        "process_source": "schedstat",
        "throttling": Throttling(num_quota=0, quota_sec=0.0, num_thermal=0),
        "reading_sec": 0.0,
    }
    return CoreClock(wall_sec=wall_sec, **(defaults | fields))


def test_foreign_time_is_of_the_cores_of_the_trial():
    """10 s on 2 cores: 4 s idle, 1 s stolen, 12 s ours, so 3 of 20 s are foreign."""
    found = disturbance.between(
        _clock(100, idle=50, own=7), _clock(110, idle=54, stolen=1, own=19, delay=0.5)
    )

    assert 0.15 == pytest.approx(found.foreign_cpu_fraction)
    assert 0.05 == pytest.approx(found.stolen_cpu_fraction)
    assert 0.5 == pytest.approx(found.run_delay_sec)
    assert TICK_SEC / 10 == pytest.approx(found.foreign_resolution)
    assert TICK_SEC / 10 == pytest.approx(found.stolen_resolution)


def test_interrupts_and_the_reading_itself_are_not_foreign():
    """The trial's own traffic, where the kernel counts it apart, and our reading."""
    start = _clock(0, reading_sec=0.25)
    found = disturbance.between(start, _clock(1, own=1.25, interrupts=0.5))

    assert 0.0 == pytest.approx(found.foreign_cpu_fraction)


def test_the_exact_run_time_is_used_where_it_agrees_with_the_idle_time():
    """0.004 s of others in 0.3 s on 2 cores: seen without rounding."""
    start = _clock(0, run_sec=5.0)
    end = _clock(0.3, run_sec=5.604, own=0.6)
    found = disturbance.between(start, end)

    assert 0.004 / 0.6 == pytest.approx(found.foreign_cpu_fraction)
    assert 0.0 == found.foreign_resolution


def test_a_run_time_of_the_container_alone_is_not_used():
    """It lacks the 0.3 s that ran outside of the container, which the idle time has."""
    start = _clock(0, run_sec=5.0)
    found = disturbance.between(start, _clock(0.3, run_sec=5.3, own=0.3))

    assert 0.5 == pytest.approx(found.foreign_cpu_fraction)
    assert TICK_SEC / 0.3 == pytest.approx(found.foreign_resolution)


def test_rounding_is_not_negative_load():
    """More own time than busy time reads as no foreign load."""
    found = disturbance.between(_clock(0), _clock(1, idle=1.01, own=1))

    assert 0.0 == found.foreign_cpu_fraction


def test_a_new_thread_with_an_old_id_counts_from_zero():
    """And one that did not exist at the start as well."""
    new = {
        (7, 7): ThreadTimes(run_sec=0.5, delay_sec=0.0),
        (7, 8): ThreadTimes(run_sec=0.25, delay_sec=0.0),
    }
    found = disturbance.between(_clock(0, own=9), _clock(1, threads=new, idle=1))

    assert 0.125 == pytest.approx(found.foreign_cpu_fraction)


def test_time_of_a_thread_that_ended_is_ours():
    """Only the total of its process has it, in ticks."""
    start, end = _clock(0), _clock(1, threads={}, process_sec={7: 2.0})
    found = disturbance.between(start, end)

    assert 2 * TICK_SEC / 2 == pytest.approx(found.foreign_cpu_fraction)
    assert "" == disturbance.void_reason(found, 0)


def test_without_schedstat_its_ticks_add_to_the_rounding():
    """User and system time of each process are rounded; run delay is unknown."""
    start = _clock(0, threads={}, process_source="stat")
    end = _clock(1, own=1, threads={}, process_source="stat")
    found = disturbance.between(start, dataclasses.replace(end, process_sec={7: 1.0}))

    assert 0.5 == pytest.approx(found.foreign_cpu_fraction)
    assert 2 * TICK_SEC == pytest.approx(found.foreign_resolution)
    assert found.run_delay_sec is None


def test_what_the_kernel_does_not_count_is_none_and_voids_nothing():
    """Without counters nobody can say that a turn was disturbed."""
    unknown = Throttling(num_quota=None, quota_sec=None, num_thermal=None)
    start, end = (_clock(t, cores=None, throttling=unknown) for t in (0, 1))
    found = disturbance.between(start, end)

    assert found.foreign_cpu_fraction is found.stolen_cpu_fraction is None
    assert found.num_throttled is found.throttled_sec is None
    assert "" == disturbance.void_reason(found, 0)


def test_throttling_by_quota_and_by_heat_is_added():
    """Where only one of them is counted, it is that one."""
    start = Throttling(num_quota=1, quota_sec=0.5, num_thermal=None)
    end = Throttling(num_quota=3, quota_sec=0.75, num_thermal=None)
    found = disturbance.between(
        _clock(0, throttling=start), _clock(1, throttling=end, idle=2)
    )
    hot = disturbance.between(
        _clock(0, throttling=dataclasses.replace(start, num_thermal=5)),
        _clock(1, throttling=dataclasses.replace(end, num_thermal=6)),
    )

    assert (2, 0.25) == (found.num_throttled, found.throttled_sec)
    assert 3 == hot.num_throttled


@pytest.mark.parametrize(
    ("fields", "num_retraces", "reason"),
    [
        ({}, 0, ""),
        ({"foreign_cpu_fraction": 0.03, "stolen_cpu_fraction": 0.01}, 0, ""),
        (
            {"foreign_cpu_fraction": 0.07},
            0,
            "other processes used 7 % of its cores (limit 3 %)",
        ),
        ({"foreign_cpu_fraction": 0.06, "foreign_resolution": 0.033}, 0, ""),
        (
            {"foreign_cpu_fraction": 0.07, "foreign_resolution": 0.033},
            0,
            "other processes used 7 % of its cores (limit 3 %)",
        ),
        ({"foreign_cpu_fraction": 0.008, "num_cores": 16}, 0, ""),
        (
            {"foreign_cpu_fraction": 0.02, "num_cores": 16},
            0,
            (
                "other processes used 32 % of one core of its 16, if all on one"
                " (limit 13 %)"
            ),
        ),
        (
            {"stolen_cpu_fraction": 0.02},
            0,
            "the hypervisor gave 2 % of its cores to other guests (limit 1 %)",
        ),
        ({"stolen_cpu_fraction": 0.033, "stolen_resolution": 0.033}, 0, ""),
        ({"num_throttled": 1}, 0, "its cores were throttled once"),
        ({"num_throttled": 4}, 0, "its cores were throttled 4 times"),
        ({}, 1, "its step function was retraced once"),
        ({}, 2, "its step function was retraced 2 times"),
        # Waiting alone can be for threads of the trial itself.
        ({"run_delay_sec": 1e3}, 0, ""),
    ],
)
def test_the_reason_of_a_void_turn_is_one_phrase(fields, num_retraces, reason):
    """Each limit, at it and beyond it, with what can be rounding on top."""
    exact = {"foreign_resolution": 0.0, "stolen_resolution": 0.0}
    load = dataclasses.replace(QUIET, **exact | fields)
    assert reason == disturbance.void_reason(load, num_retraces)


@pytest.mark.parametrize(
    ("num_cores", "is_exact", "turn_sec"),
    [
        (4, True, 0.3),
        (16, True, 0.3),
        (48, True, 0.3),
        (4, False, 0.3),
        (16, False, 0.3),
        (48, False, 1.0),
    ],
)
def test_an_endless_process_on_one_of_many_cores_voids_every_turn(
    num_cores, *, is_exact, turn_sec
):
    """It gets half of that core beside the trial's thread; 40 turns.

    The mean over 16 cores is 3.1 %, which ticks could be. With 48 cores half a core is
    within the rounding of ticks at 0.3 s, and no longer at 1 s.
    """
    reasons = [
        disturbance.void_reason(found, 0)
        for found in _turns(num_cores, 0.5, is_exact=is_exact, turn_sec=turn_sec)
    ]

    assert all(reasons)
    if num_cores == 48:
        assert "of one core of its 48, if all on one (limit 20 %)" in reasons[0]


@pytest.mark.parametrize("num_cores", [1, 2, 4, 16, 48])
@pytest.mark.parametrize("is_exact", [True, False])
def test_services_of_a_quiet_machine_void_no_turn(num_cores, *, is_exact):
    """0.2 % of every core, and 2 % of one; 40 turns of 0.3 s at any tick."""
    load = 0.02 + 0.002 * num_cores
    turns = _turns(num_cores, load, is_exact=is_exact)

    assert not any(disturbance.void_reason(found, 0) for found in turns)


def _turns(num_cores, load, *, is_exact, turn_sec=0.3):
    generator = random.Random(num_cores)
    found = []
    for _ in range(40):
        idle_sec = turn_sec * 0.2  # of each core
        starts, ends = 0, 0
        for _ in range(num_cores):  # each counter in ticks of its own phase
            before_sec = generator.random()
            starts += int(before_sec / TICK_SEC)
            ends += int((before_sec + idle_sec) / TICK_SEC)
        own_sec = num_cores * (turn_sec - idle_sec) - turn_sec * load
        run_sec = own_sec + turn_sec * load if is_exact else None
        start = _clock(0, num_cores=num_cores, idle=starts * TICK_SEC)
        end = _clock(turn_sec, num_cores=num_cores, idle=ends * TICK_SEC, own=own_sec)
        if is_exact:
            start = dataclasses.replace(start, run_sec=0.0)
            end = dataclasses.replace(end, run_sec=run_sec)
        found.append(disturbance.between(start, end))
    return found


@pytest.mark.parametrize("offset", [0.0, 0.2, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("turn_sec", [0.3, 0.7, 3.0])
def test_rounding_alone_never_voids_a_turn(turn_sec, offset):
    """Quiet cores, wherever within a tick a turn begins."""

    def shown(idle_sec):
        return int((idle_sec + offset * TICK_SEC) / TICK_SEC) * TICK_SEC

    start = _clock(0, idle=2 * shown(0))
    end = _clock(turn_sec, idle=2 * shown(turn_sec / 3), own=2 * turn_sec * 2 / 3)
    found = disturbance.between(start, end)

    assert "" == disturbance.void_reason(found, 0)


@pytest.mark.processes
def test_a_hog_on_the_core_is_seen_within_three_percentage_points():
    """What it used is foreign if it is not of the trial, and not if it is.

    The same span is read twice, so that other load of the machine is in both.
    """
    core = min(os.sched_getaffinity(0))
    code = (
        f"import os, time\nos.sched_setaffinity(0, {{{core}}})\nprint(flush=True)\n"
        "while True:\n"
        "  end = time.process_time() + 0.02\n"
        "  while time.process_time() < end: pass\n"
        "  time.sleep(0.02)\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as hog:
        assert hog.stdout is not None
        hog.stdout.readline()
        try:
            trials = ((os.getpid(),), (os.getpid(), hog.pid))
            start = [machine_state.read_core_clock((core,), pids) for pids in trials]
            time.sleep(1.5)
            end = [machine_state.read_core_clock((core,), pids) for pids in trials]
        finally:
            hog.kill()
    with_hog, without = (
        disturbance.between(*pair).foreign_cpu_fraction
        for pair in zip(start, end, strict=True)
    )
    span_sec = end[1].wall_sec - start[1].wall_sec
    key = (hog.pid, hog.pid)
    used_sec = end[1].threads[key].run_sec - start[1].threads[key].run_sec

    assert with_hog is not None
    assert without is not None
    assert used_sec / span_sec > 0.05
    assert used_sec / span_sec == pytest.approx(with_hog - without, abs=0.03)


SPIN_SEC = 0.6
# Uses so many seconds of CPU time.
SPIN = (
    sys.executable,
    "-c",
    "import sys, time\nwhile time.process_time() < float(sys.argv[1]): pass",
)
# More than the machine has, so that no share is cut off at 1.
NUM_CPUS = 64


def cpu_clock(wall, busy, own, stolen=0.0):
    return CpuClock(wall_sec=wall, busy_sec=busy, stolen_sec=stolen, own_sec=own)


def test_foreign_time_is_what_is_busy_and_not_ours():
    """10 s on 2 CPUs with 12 s busy, 7 s of them ours: 5 of 20 s are foreign."""
    load = disturbance.foreign_between(
        cpu_clock(0, 100, 50), cpu_clock(10, 112, 57, 2), 2
    )

    assert 0.25 == pytest.approx(load.foreign_fraction)
    assert 0.1 == pytest.approx(load.stolen_fraction)


def test_tick_rounding_is_not_negative_load():
    """More own time than busy time reads as no foreign load."""
    load = disturbance.foreign_between(cpu_clock(0, 0, 0), cpu_clock(1, 0.5, 0.51), 2)

    assert 0.0 == load.foreign_fraction


def test_a_spinning_neighbour_is_seen_and_an_own_child_is_not():
    """A child that was waited for is ours; one that still runs is foreign."""
    start = disturbance.read_clock()
    subprocess.run([*SPIN, str(SPIN_SEC)], check=True, timeout=60)
    own_sec = disturbance.read_clock().own_sec - start.own_sec
    start = disturbance.read_clock()
    with psutil.Popen([*SPIN, "60"]) as neighbour:
        until(lambda: sum(neighbour.cpu_times()[:2]) >= SPIN_SEC)
        end = disturbance.read_clock()
        neighbour.kill()
    foreign = disturbance.foreign_between(start, end, NUM_CPUS)
    available_sec = NUM_CPUS * (end.wall_sec - start.wall_sec)

    assert own_sec > 0.9 * SPIN_SEC
    # Load of others only adds to it.
    assert foreign.foreign_fraction * available_sec > 0.5 * SPIN_SEC
    assert end.own_sec - start.own_sec < 0.5 * SPIN_SEC
