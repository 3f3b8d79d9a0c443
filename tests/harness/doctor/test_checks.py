"""``doctor`` prints its checks of load and settings, and exits with 6 if one is bad."""

import dataclasses
import functools
import json
import os

import pytest
from loads import QUIET

from harness.cli import exit_codes
from harness.doctor import checks, diagnose
from harness.doctor.checks import CurrentLoad, Finding
from harness.machine.machine_state import TICK_SEC, CpuTopology, LogicalCpu

FINE = Finding("steal", "ok", "0.0 % of the cores")
CAUTION = Finding("boost", "caution", "on: [bold]x", "switch it off")
BAD = Finding("swap", "bad", "1.0 GiB in use", "end other programs")


@pytest.mark.parametrize(
    ("findings", "code", "last_line"),
    [
        ([FINE], exit_codes.OK, "fit for timings"),
        ([FINE, CAUTION], exit_codes.OK, "fit for timings, with 1 caution"),
        ([CAUTION, CAUTION], exit_codes.OK, "fit for timings, with 2 cautions"),
        ([FINE, BAD, CAUTION], exit_codes.UNFIT, "unfit for timings: swap"),
    ],
)
def test_the_table_and_the_exit_code(harness, monkeypatch, findings, code, last_line):
    monkeypatch.setattr(diagnose, "diagnose", lambda measures: findings)
    found_code, out, err = harness("doctor")

    assert code == found_code
    assert last_line == out.splitlines()[-1]
    for finding in findings:
        (row,) = {line for line in out.splitlines() if f" {finding.check} " in line}
        for text in (finding.level, finding.found, finding.advice):
            assert text in row
    assert err.startswith("checking for about ")


def test_every_check_has_its_row(monkeypatch):
    monkeypatch.setattr(checks, "SPAN_SEC", 0.1)
    findings = diagnose.diagnose(
        measures=(lambda cores: [Finding("x", "ok", str(len(cores)))],)
    )
    names = [finding.check for finding in findings]

    assert len(names) == len(set(names))
    assert {"neighbours", "steal", "throttling", "CPU quota", "memory"} <= set(names)
    assert "x" == names[-1]
    assert all((f.level == "ok") == (f.advice == "") for f in findings)
    assert all("\n" not in f.found + f.advice for f in findings)


@pytest.fixture
def doctor(harness, fake_root, monkeypatch):
    """Returns a function that runs ``doctor`` on a machine of some facts."""

    def run(files=None, cores=(0, 1), quota=None, **load):
        changes = {name: load.pop(name) for name in [*load] if hasattr(QUIET, name)}
        exact = {"foreign_resolution": 0.005, "stolen_resolution": 0.005}
        quiet = dataclasses.replace(QUIET, foreign_cpu_fraction=0.0, **exact)
        facts = {
            "disturbance": dataclasses.replace(quiet, **changes),
            "neighbours": (),
            "load_average": 0.1,
            "num_swapped_pages": 0,
            "num_thermal": 0,
            "has_thread_times": True,
        }
        cpus = tuple(LogicalCpu(cpu=cpu, core=core) for cpu, core in enumerate(cores))
        topology = CpuTopology(cpus=cpus, quota_cores=quota)
        for name, text in (files or {}).items():
            fake_root.write(name, text)
        monkeypatch.setattr(diagnose, "read_topology", lambda _root: topology)
        monkeypatch.setattr(checks, "read_load", lambda *_: CurrentLoad(**facts | load))
        monkeypatch.setattr(diagnose, "check_canaries", lambda _cores: [])
        own = functools.partial(diagnose.diagnose, fake_root.path)
        monkeypatch.setattr(diagnose, "diagnose", own)
        code, out, _ = harness("doctor", "--aa-pair=0", "--json")
        report = json.loads(out)
        assert (code == exit_codes.OK) == report["is_fit"]
        return {finding.pop("check"): finding for finding in report["findings"]}

    return run


CPU = "sys/devices/system/cpu"
BOOST = f"{CPU}/cpufreq/boost"
HUGE = "sys/kernel/mm/transparent_hugepage/enabled"
GIB = 2**20  # of /proc/meminfo, which counts in KiB
HIDDEN = "not visible from here"
UNCOUNTED = {"num_throttled": None, "num_thermal": None}
BUSY = (("cc1", 0.5), ("sshd", 0.02))
OTHERS = "others use 26.0 % of 2 cores"


def files(texts, **load):
    return {"files": texts, **load}


def governors(*names):
    folder = f"{CPU}/cpu{{}}/cpufreq/scaling_governor"
    return files({folder.format(cpu): name for cpu, name in enumerate(names)})


def memory(total, free, **load):
    text = f"MemTotal: {total * GIB} kB\nMemAvailable: {int(free * GIB)} kB\nx"
    return files({"proc/meminfo": text}, **load)


def swap(total, free, **load):
    text = f"SwapTotal: {total * GIB} kB\nSwapFree: {free * GIB} kB\n"
    return files({"proc/meminfo": text}, **load)


def foreign(fraction, *neighbours):
    return {"foreign_cpu_fraction": fraction, "neighbours": neighbours}


FINDINGS = [
    ("neighbours", "ok", foreign(0.034), "others use 3.4 % of 2 cores"),
    ("neighbours", "caution", foreign(0.01, BUSY[1]), "2 cores: sshd 2 % of one core"),
    ("neighbours", "bad", foreign(0.26, *BUSY), f"{OTHERS}: cc1 50 %, sshd 2 % of one"),
    ("neighbours", "bad", foreign(0.26), f"{OTHERS}, by processes that are not vis"),
    ("neighbours", "caution", foreign(None), "the kernel hides the CPU time of cores"),
    ("load", "ok", {"load_average": 1.0}, "1.00 over the last minute"),
    ("load", "ok", {"load_average": None}, HIDDEN),
    ("load", "caution", {"load_average": 1.5}, "1.50 over the last minute"),
    ("steal", "ok", {"stolen_cpu_fraction": 0.0}, "0.0 % of the cores"),
    ("steal", "ok", {"stolen_cpu_fraction": None}, "not counted here"),
    ("steal", "caution", {"stolen_cpu_fraction": 0.01}, "1.0 % of the cores"),
    ("steal", "bad", {"stolen_cpu_fraction": 0.02}, "2.0 % of the cores"),
    ("throttling", "ok", {}, "none"),
    ("throttling", "ok", UNCOUNTED, "not counted here"),
    ("throttling", "caution", {"num_thermal": 7}, "none now, 7 times by heat since"),
    ("throttling", "bad", {"num_throttled": 2}, "2 times within 3 s"),
    ("accounting", "ok", {}, "run time of threads in nanoseconds"),
    ("accounting", "caution", {"has_thread_times": False}, "run times in ticks, no ru"),
    ("CPU quota", "ok", {"quota": 2.0}, "2 cores"),
    ("CPU quota", "ok", {}, "none"),
    ("CPU quota", "caution", {"quota": 1.5}, "1.5 cores for 2 CPUs: busy processes"),
    ("SMT", "ok", {}, "each of 2 CPUs is a core of its own"),
    ("SMT", "caution", {"cores": (0, 0, 1, 1)}, "4 CPUs are 2 cores: two threads sha"),
    ("governor", "ok", {}, HIDDEN),
    ("governor", "ok", governors("performance", "performance"), "performance"),
    ("governor", "caution", governors("performance", "powersave"), ", powersave: the"),
    ("boost", "ok", {}, HIDDEN),
    ("boost", "ok", files({BOOST: "0"}), "off"),
    ("boost", "caution", files({BOOST: "1"}), "on: one busy core has a higher clock"),
    ("huge pages", "ok", {}, HIDDEN),
    ("huge pages", "ok", files({HUGE: "always madvise [never]"}), "never"),
    ("huge pages", "caution", files({HUGE: "[always] never"}), "always: the kernel m"),
    ("memory", "ok", {}, HIDDEN),
    ("memory", "ok", memory(16, 8), "8.0 GiB of 16.0 available"),
    ("memory", "caution", memory(16, 3), "3.0 GiB of 16.0 available"),
    ("memory", "bad", memory(16, 0.5), "0.5 GiB of 16.0 available"),
    ("swap", "ok", swap(4, 4), "none in use"),
    ("swap", "ok", swap(4, 4, num_swapped_pages=None), "none in use"),
    ("swap", "caution", swap(4, 3), "1.0 GiB in use"),
    ("swap", "bad", swap(4, 3, num_swapped_pages=12), "in use, 12 pages moved just no"),
]


@pytest.mark.parametrize(("check", "level", "facts", "found"), FINDINGS)
def test_each_fact_of_a_machine_has_its_finding(doctor, check, level, facts, found):
    finding = doctor(**facts)[check]

    assert level == finding["level"]
    assert found in finding["found"]
    assert (level == "ok") == (finding["advice"] == "")


def test_advice_names_the_cores_to_use(doctor):
    findings = doctor(cores=(0, 0, 1, 1), quota=2.5)

    assert "use one CPU of each core: taskset -c 0,2 ..." == findings["SMT"]["advice"]
    assert "it grants: taskset -c 0,1 ..." in findings["CPU quota"]["advice"]


def test_the_load_is_read_over_a_span(fake_root):
    """Names are summed and sorted; this process and idle ones are not neighbours."""
    ticks = round(0.5 / TICK_SEC)

    def write(sleep_sec, used):
        fake_root.cores((round(sleep_sec / TICK_SEC), 0, 0, 0))
        fake_root.thread(os.getpid(), os.getpid(), sleep_sec)
        fake_root.process(os.getpid(), used, 0)
        fake_root.process(11, used, 5, name="make")
        fake_root.process(12, used, 5, name="make")
        fake_root.process(13, used // 2, 5, name="cc1 \x1b[31m")
        fake_root.process(14, 0, 5, name="idle")
        fake_root.write("proc/loadavg", "0.25 0.1 0.1 1/100 7\n")
        fake_root.write("proc/vmstat", f"pgfault 9\npswpin {used}\npswpout {used}\n")

    write(0.0, 0)
    found = checks.read_load(
        (0,), fake_root.path, sleep=lambda _: write(checks.SPAN_SEC, ticks)
    )

    # The wall clock is real, and no time passes.
    assert ["make", "cc1 \\x1b[31m"] == [name for name, _ in found.neighbours]
    most, least = (fraction for _, fraction in found.neighbours)
    assert 4 == pytest.approx(most / least)
    assert 0.25 == found.load_average
    assert 2 * ticks == found.num_swapped_pages
    assert found.has_thread_times
    assert found.num_thermal is None
