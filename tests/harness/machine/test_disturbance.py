"""What others did to the cores of a trial, and which blocks it makes discarded."""

import dataclasses
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from command_lines import smoke_sweep
from fake_machine import QUIET, TICK_SEC

from harness import read_core_clock
from results import Store

UNKNOWN = {"num_quota": None, "num_thermal": None}


def test_the_totals_of_the_trials_cores_are_summed(fake_root):
    fake_root.cores((100, 0, 9, 1), (200, 0, 9, 2), (400, 0, 9, 4))
    clock = read_core_clock((0, 2), (), fake_root.path)

    assert 500 * TICK_SEC == pytest.approx(clock.idle_sec)
    assert 5 * TICK_SEC == pytest.approx(clock.stolen_sec)
    assert 0.0 == clock.interrupt_sec
    assert 2 == clock.num_cores
    # Half of the cores would be too little where one was switched off.
    assert read_core_clock((0, 5), (), fake_root.path).idle_sec is None
    # Only a kernel that counts interrupts apart has an irq above 0.
    fake_root.cores((0, 3, 9, 0))
    clock = read_core_clock((0,), (), fake_root.path)
    assert 12 * TICK_SEC == pytest.approx(clock.interrupt_sec)


def test_threads_of_all_processes_are_read(fake_root):
    fake_root.thread(7, 7, 1.5, 0.25)
    fake_root.thread(7, 8, 0.5)
    fake_root.thread(9, 9, 2.0)
    fake_root.process(7, 120, 80)
    # A thread can end between the listing of its folder and the reading of its file.
    (fake_root.path / "proc/7/task/10").mkdir()
    fake_root.write("proc/7/task/11/schedstat", "")
    clock = read_core_clock((0,), (7, 9, 11), fake_root.path)

    assert {(7, 7), (7, 8), (9, 9)} == set(clock.threads)
    assert (1.5, 0.25) == clock.threads[7, 7]
    assert {7: pytest.approx(200 * TICK_SEC)} == clock.process_sec
    assert "schedstat" == clock.process_source


def test_without_schedstat_the_ticks_of_processes_are_used(fake_root):
    fake_root.process(7, 3, 4)
    (fake_root.path / "proc/7/task/7").mkdir(parents=True)
    clock = read_core_clock((0,), (7,), fake_root.path)

    assert "stat" == clock.process_source
    assert {7: pytest.approx(7 * TICK_SEC)} == clock.process_sec


@pytest.mark.parametrize("folder", ["cpuacct", "cpu,cpuacct"])
def test_the_exact_run_time_of_cores_is_read(fake_root, folder):
    path = f"sys/fs/cgroup/{folder}/cpuacct.usage_percpu"
    fake_root.write(path, "1000000000 2500000000 7 \n")

    assert 2.5 == read_core_clock((1,), (), fake_root.path).run_sec
    assert read_core_clock((1, 3), (), fake_root.path).run_sec is None


V1 = "nr_periods 9\nnr_throttled 3\nthrottled_time 250000000\n"
V2 = "usage_usec 12\nnr_throttled 3\nthrottled_usec 250000\n"


@pytest.mark.parametrize(
    ("group", "path", "text"),
    [
        ("4:cpu:/a", "cpu/a/cpu.stat", V1),
        ("4:cpu,cpuacct:/", "cpu,cpuacct/cpu.stat", V1),
        ("0::/a", "a/cpu.stat", V2),
    ],
)
def test_throttling_is_read(fake_root, group, path, text):
    for cpu, count in ((0, 1), (1, 2), (2, 100)):
        folder = f"sys/devices/system/cpu/cpu{cpu}/thermal_throttle"
        fake_root.write(f"{folder}/core_throttle_count", f"{count}\n")
        fake_root.write(f"{folder}/package_throttle_count", "10\n")
    fake_root.write("proc/self/cgroup", group + "\n")
    fake_root.write(f"sys/fs/cgroup/{path}", text)
    if "cpuacct" in path:  # what is counted once all the same
        (fake_root.path / "sys/fs/cgroup/cpu").symlink_to("cpu,cpuacct")
    found = read_core_clock((0, 1), (), fake_root.path)

    assert (3, 23) == (found.num_quota, found.num_thermal)


NOTHING = read_core_clock((), (), Path("/nowhere"))


def _clock(wall_sec, **fields):
    """A reading of two cores; ``idle``, ``stolen`` and ``own`` in seconds."""
    own_sec = fields.pop("own", 0.0)
    threads = {(7, 7): (own_sec, fields.pop("delay", 0.0))}
    defaults = {
        "num_cores": 2,
        "idle_sec": fields.pop("idle", 0.0),
        "stolen_sec": fields.pop("stolen", 0.0),
        "interrupt_sec": fields.pop("interrupts", 0.0),
        "run_sec": None,
        "threads": threads,
        "process_sec": {7: own_sec},
        "process_source": "schedstat",
        "num_quota": 0,
        "num_thermal": 0,
        "reading_sec": 0.0,
    }
    return dataclasses.replace(NOTHING, wall_sec=wall_sec, **(defaults | fields))


STAT = {"threads": {}, "process_source": "stat"}
NEW_THREADS = {(7, 7): (0.5, 0.0), (7, 8): (0.25, 0.0)}
SPANS = {
    "10 s on 2 cores: 4 s idle, 1 s stolen, 12 s ours": (
        _clock(100, idle=50, own=7),
        _clock(110, idle=54, stolen=1, own=19, delay=0.5),
        {
            "foreign_cpu_fraction": 0.15,
            "foreign_resolution": TICK_SEC / 10,
            "stolen_cpu_fraction": 0.05,
            "stolen_resolution": TICK_SEC / 10,
            "run_delay_sec": 0.5,
        },
    ),
    "interrupts and the reading itself are not foreign": (
        _clock(0, reading_sec=0.25),
        _clock(1, own=1.25, interrupts=0.5),
        {"foreign_cpu_fraction": 0.0},
    ),
    "an exact run time that agrees with the idle time has no rounding": (
        _clock(0, run_sec=5.0),
        _clock(0.3, run_sec=5.604, own=0.6),
        {"foreign_cpu_fraction": 0.004 / 0.6, "foreign_resolution": 0.0},
    ),
    "an exact run time of the container alone is too small": (
        _clock(0, run_sec=5.0),
        _clock(0.3, run_sec=5.3, own=0.3),
        {"foreign_cpu_fraction": 0.5, "foreign_resolution": TICK_SEC / 0.3},
    ),
    "a new thread counts from zero, with an old id or another": (
        _clock(0, own=9),
        _clock(1, threads=NEW_THREADS, idle=1),
        {"foreign_cpu_fraction": 0.125},
    ),
    "time of a thread that ended is ours, in ticks": (
        _clock(0),
        _clock(1, threads={}, process_sec={7: 2.0}),
        {"foreign_cpu_fraction": TICK_SEC},
    ),
    "without schedstat the ticks of each process add to the rounding": (
        _clock(0, **STAT),
        _clock(1, **STAT, process_sec={7: 1.0}),
        {
            "foreign_cpu_fraction": 0.5,
            "foreign_resolution": 2 * TICK_SEC,
            "run_delay_sec": None,
        },
    ),
    "what the kernel does not count is None": (
        _clock(0, idle=None, **UNKNOWN),
        _clock(1, idle=None, **UNKNOWN),
        {
            "foreign_cpu_fraction": None,
            "stolen_cpu_fraction": None,
            "num_throttled": None,
        },
    ),
    "throttling by quota and by heat is added": (
        _clock(0, num_quota=1, num_thermal=5),
        _clock(1, num_quota=3, num_thermal=6, idle=2),
        {"num_throttled": 3},
    ),
}


@pytest.mark.parametrize("span", SPANS)
def test_what_others_did_between_two_readings(span):
    start, end, expected = SPANS[span]
    found = dataclasses.asdict(start.load_until(end))

    assert expected == pytest.approx({name: found[name] for name in expected})


MANY = {"foreign_cpu_fraction": 0.02, "num_cores": 16}
DISCARDED = [
    ({}, ""),
    ({"foreign_cpu_fraction": 0.03, "stolen_cpu_fraction": 0.01}, ""),
    ({"foreign_cpu_fraction": 0.06, "foreign_resolution": 0.033}, ""),
    ({"foreign_cpu_fraction": None, "stolen_cpu_fraction": None}, ""),
    # Waiting alone can be for threads of the trial itself.
    ({"run_delay_sec": 1e3}, ""),
    ({"foreign_cpu_fraction": 0.07}, "other processes used 7 % of its cores (limit 3"),
    (
        {"foreign_cpu_fraction": 0.07, "foreign_resolution": 0.033},
        "other processes used 7 % of its cores (limit 3 %)",
    ),
    (MANY, "other processes used 32 % of one core of its 16, if all on one (limit 13"),
    ({"stolen_cpu_fraction": 0.02}, "the hypervisor gave 2 % of its cores to other gu"),
    ({"num_throttled": 4}, "its cores were throttled 4 times"),
    ({"num_retraces": 2}, "its step function was retraced 2 times"),
]


@pytest.mark.parametrize(("fields", "reason"), DISCARDED)
def test_a_block_is_discarded_beyond_a_limit_and_what_can_be_rounding(fields, reason):
    exact = {"foreign_resolution": 0.0, "stolen_resolution": 0.0} | fields
    num_retraces = exact.pop("num_retraces", 0)
    found = dataclasses.replace(QUIET, **exact).discard_reason(num_retraces)

    assert found.startswith(reason)
    assert bool(found) == bool(reason)


@pytest.mark.parametrize("num_cores", [1, 2, 4, 16, 48])
@pytest.mark.parametrize("is_exact", [True, False])
def test_an_endless_process_on_one_core_discards_blocks_and_services_do_not(
    num_cores, *, is_exact
):
    # It gets half of that core. Services take 0.2 % of every core, and 2 % of one. With
    # 48 cores half a core is within the rounding of ticks at 0.3 s, not at 1 s.
    block_sec = 1.0 if num_cores == 48 and not is_exact else 0.3
    endless = _blocks(num_cores, 0.5, is_exact=is_exact, block_sec=block_sec)
    services = _blocks(num_cores, 0.02 + 0.002 * num_cores, is_exact=is_exact)
    reasons = [found.discard_reason() for found in endless]

    assert all(reasons)
    assert not any(found.discard_reason() for found in services)
    if num_cores == 48:
        assert "of one core of its 48, if all on one (limit 20 %)" in reasons[0]


def _blocks(num_cores, load, *, is_exact, block_sec=0.3):
    generator = random.Random(num_cores)
    found = []
    for _ in range(40):
        idle_sec = block_sec * 0.2  # of each core
        starts, ends = 0, 0
        for _ in range(num_cores):  # each counter in ticks of its own phase
            before_sec = generator.random()
            starts += int(before_sec / TICK_SEC)
            ends += int((before_sec + idle_sec) / TICK_SEC)
        run_sec = num_cores * (block_sec - idle_sec)
        own_sec = run_sec - block_sec * load
        start = _clock(0, num_cores=num_cores, idle=starts * TICK_SEC)
        end = _clock(block_sec, num_cores=num_cores, idle=ends * TICK_SEC, own=own_sec)
        if is_exact:
            start = dataclasses.replace(start, run_sec=0.0)
            end = dataclasses.replace(end, run_sec=run_sec)
        found.append(start.load_until(end))
    return found


SPIN_SEC = 0.3
# Waits until a process has used so much more CPU time: by default, the program itself.
SPIN = """
import sys, psutil
process = psutil.Process(*map(int, sys.argv[2:-1]))
def used(): return sum(process.cpu_times()[:2])
end = used() + float(sys.argv[1])
while used() < end: pass
"""
SWEEP = smoke_sweep(
    "--backends=in_graph --replicas=1 --mode=weak --repeats=1 --order=sequential "
    "--no-match --budget=none"
)


def test_a_spinning_neighbour_is_seen_and_an_own_child_is_not(
    harness, overrides, tmp_path, monkeypatch
):
    def foreign_sec(study, *pids):
        """CPU time of others beside the process of a trial."""
        command = (sys.executable, "-c", SPIN, str(SPIN_SEC), *map(str, pids))
        own = overrides | {"worker_command": command}
        harness(*SWEEP, f"--study={study}", overrides=own)
        (trial,) = Store.open(tmp_path / "runs" / study).trials()
        available_sec = trial.env.num_logical_cores * trial.status.duration_sec
        return trial.env.foreign_cpu_fraction * available_sec

    with psutil.Popen([sys.executable, "-c", "while True: pass"]) as neighbour:
        assert foreign_sec("neighbour", neighbour.pid) > 0.5 * SPIN_SEC
        neighbour.kill()
    # Where nobody else runs: the counters of all processes are those of this one.
    alone = SimpleNamespace
    monkeypatch.setattr(psutil, "cpu_times", lambda: alone(user=sum(os.times()[:4])))
    assert foreign_sec("child") < 0.1 * SPIN_SEC
