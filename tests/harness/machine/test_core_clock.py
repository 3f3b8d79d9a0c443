"""What the kernel counts for cores and processes is read from its files."""

import os
import subprocess
import sys
import time

import pytest

from harness.machine import core_clock

TICK_SEC = core_clock.TICK_SEC


def test_the_totals_of_the_trials_cores_are_summed(fake_root):
    fake_root.cores((100, 0, 9, 1), (200, 0, 9, 2), (400, 0, 9, 4))
    clock = core_clock.read((0, 2), (), fake_root.path)

    assert clock.cores is not None
    assert 500 * TICK_SEC == pytest.approx(clock.cores.idle_sec)
    assert 5 * TICK_SEC == pytest.approx(clock.cores.stolen_sec)
    assert 0.0 == clock.cores.interrupt_sec
    assert 2 == clock.num_cores


def test_interrupts_are_read_where_the_kernel_counts_them_apart(fake_root):
    """Recognized by irq above 0; otherwise they are in the time of processes."""
    fake_root.cores((0, 3, 9, 0))
    clock = core_clock.read((0,), (), fake_root.path)

    assert clock.cores is not None
    assert 12 * TICK_SEC == pytest.approx(clock.cores.interrupt_sec)


def test_a_system_without_these_files_has_no_counters(fake_root):
    """Nothing is claimed where the kernel does not count."""
    clock = core_clock.read((0,), (7,), fake_root.path)

    assert clock.cores is None
    assert clock.run_sec is None
    assert {} == clock.threads == clock.process_sec
    assert core_clock.Throttling(num_quota=None, quota_sec=None, num_thermal=None) == (
        clock.throttling
    )


def test_a_core_that_the_kernel_does_not_show_gives_no_totals(fake_root):
    """It was switched off since planning: half of the cores would be too little."""
    fake_root.cores((1, 0, 0, 0))

    assert core_clock.read((0, 5), (), fake_root.path).cores is None


def test_threads_of_all_processes_are_read(fake_root):
    """Time on a core and time of waiting for one, in nanoseconds."""
    fake_root.thread(7, 7, 1.5, 0.25)
    fake_root.thread(7, 8, 0.5)
    fake_root.thread(9, 9, 2.0)
    fake_root.process(7, 120, 80)
    clock = core_clock.read((0,), (7, 9, 11), fake_root.path)

    assert {(7, 7), (7, 8), (9, 9)} == set(clock.threads)
    assert core_clock.ThreadTimes(run_sec=1.5, delay_sec=0.25) == clock.threads[7, 7]
    assert {7: pytest.approx(200 * TICK_SEC)} == clock.process_sec
    assert "schedstat" == clock.process_source


def test_a_thread_that_ends_while_it_is_read_is_left_out(fake_root):
    """Its folder is listed, and its file no longer exists or is empty."""
    fake_root.thread(7, 7, 1.0)
    (fake_root.path / "proc/7/task/8").mkdir()
    fake_root.write("proc/7/task/9/schedstat", "")

    assert [(7, 7)] == [*core_clock.read((0,), (7,), fake_root.path).threads]


def test_without_schedstat_the_ticks_of_processes_are_used(fake_root):
    """The reading says so."""
    fake_root.process(7, 3, 4)
    (fake_root.path / "proc/7/task/7").mkdir(parents=True)
    clock = core_clock.read((0,), (7,), fake_root.path)

    assert "stat" == clock.process_source
    assert {7: pytest.approx(7 * TICK_SEC)} == clock.process_sec


@pytest.mark.parametrize("folder", ["cpuacct", "cpu,cpuacct"])
def test_the_exact_run_time_of_cores_is_read(fake_root, folder):
    """Version 1 of the control groups, in both of its usual mounts."""
    path = f"sys/fs/cgroup/{folder}/cpuacct.usage_percpu"
    fake_root.write(path, "1000000000 2500000000 7 \n")

    assert 2.5 == core_clock.read((1,), (), fake_root.path).run_sec
    assert core_clock.read((1, 3), (), fake_root.path).run_sec is None


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
    throttling = core_clock.read((0,), (), fake_root.path).throttling

    assert 3 == throttling.num_quota
    assert 0.25 == pytest.approx(throttling.quota_sec)
    assert throttling.num_thermal is None


def test_a_folder_of_two_names_is_counted_once(fake_root):
    """``cpu`` is usually a link to ``cpu,cpuacct``."""
    fake_root.write("proc/self/cgroup", "4:cpu,cpuacct:/\n")
    fake_root.write("sys/fs/cgroup/cpu,cpuacct/cpu.stat", "nr_throttled 3\n")
    (fake_root.path / "sys/fs/cgroup/cpu").symlink_to("cpu,cpuacct")

    assert 3 == core_clock.read((0,), (), fake_root.path).throttling.num_quota


def test_throttling_by_heat_is_read(fake_root):
    for cpu, count in ((0, 1), (1, 2), (2, 100)):
        folder = f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle"
        fake_root.write(f"{folder}/core_throttle_count", f"{count}\n")
        fake_root.write(f"{folder}/package_throttle_count", "10\n")

    throttling = core_clock.read((0, 1), (), fake_root.path).throttling
    assert 23 == throttling.num_thermal


def test_this_kernel_has_what_a_reading_needs():
    """A real reading of this process, between two of which it computes for 50 ms."""
    core = min(os.sched_getaffinity(0))
    start = core_clock.read((core,), (os.getpid(),))
    end_sec = time.process_time() + 0.05
    while time.process_time() < end_sec:
        pass
    end = core_clock.read((core,), (os.getpid(),))

    assert end.cores is not None
    assert end.wall_sec - start.wall_sec >= 0.05
    grown_sec = sum(t.run_sec for t in end.threads.values()) - sum(
        t.run_sec for t in start.threads.values()
    )
    # The kernel updates the total of a running thread once per tick.
    assert grown_sec > 0.05 - TICK_SEC


def test_a_reading_while_threads_come_and_end_succeeds():
    """A child starts a thread that ends, again and again."""
    code = (
        "import threading\nprint(flush=True)\nwhile True:\n  t ="
        " threading.Thread(target=int)\n  t.start()\n  t.join()\n"
    )
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        try:
            clocks = [core_clock.read((0,), (child.pid,)) for _ in range(200)]
        finally:
            child.kill()

    assert all((child.pid, child.pid) in clock.threads for clock in clocks)
    assert clocks[-1].process_sec[child.pid] > 0
