"""``doctor`` checks load, settings and rates, and exits with 6 if one is bad."""

import dataclasses
import functools
import itertools
import json
import os
import re
from types import SimpleNamespace

import psutil
import pytest
from fake_machine import QUIET, TICK_SEC, with_cpus

from harness import CpuTopology, ExitCode, HarnessError, LogicalCpu
from harness.doctor import checks
from harness.doctor.checks import CurrentLoad, Finding

FINE = Finding("steal", "ok", "0.0 % of the cores")
CAUTION = Finding("boost", "caution", "on: [bold]x", "switch it off")
BAD = Finding("swap", "bad", "1.0 GiB in use", "end other programs")


@pytest.mark.parametrize(
    ("findings", "code", "last_line"),
    [
        ([FINE], ExitCode.OK, "fit for timings"),
        ([FINE, CAUTION], ExitCode.OK, "fit for timings, with 1 caution"),
        ([CAUTION, CAUTION], ExitCode.OK, "fit for timings, with 2 cautions"),
        ([FINE, BAD, CAUTION], ExitCode.UNFIT, "unfit for timings: swap"),
    ],
)
def test_the_table_and_the_exit_code(harness, monkeypatch, findings, code, last_line):
    monkeypatch.setattr(checks, "diagnose", lambda measures: findings)
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
    findings = checks.diagnose(
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
            "swapped_bytes": 0,
            "num_thermal": 0,
            "has_thread_times": True,
        }
        cpus = tuple(LogicalCpu(cpu=cpu, core=core) for cpu, core in enumerate(cores))
        topology = CpuTopology(cpus=cpus, quota_cores=quota)
        for name in ("virtual_memory", "swap_memory"):
            if name in load:
                found = load.pop(name)
                monkeypatch.setattr(psutil, name, lambda found=found: found)
        for name, text in (files or {}).items():
            fake_root.write(name, text)
        monkeypatch.setattr(checks, "read_topology", lambda _root: topology)
        monkeypatch.setattr(checks, "read_load", lambda *_: CurrentLoad(**facts | load))
        monkeypatch.setattr(checks, "check_canaries", lambda _cores: [])
        own = functools.partial(checks.diagnose, fake_root.path)
        monkeypatch.setattr(checks, "diagnose", own)
        code, out, _ = harness("doctor", "--aa-pair=0", "--json")
        report = json.loads(out)
        assert (code == ExitCode.OK) == report["is_fit"]
        return {finding.pop("check"): finding for finding in report["findings"]}

    return run


CPU = "sys/devices/system/cpu"
BOOST = f"{CPU}/cpufreq/boost"
HUGE = "sys/kernel/mm/transparent_hugepage/enabled"
MIB, GIB = 2**20, 2**30
HIDDEN = "not visible from here"
BUSY = (("cc1", 0.5), ("sshd", 0.02))
OTHERS = "others use 26.0 % of 2 cores"


def files(texts, **load):
    return {"files": texts, **load}


def governors(*names):
    folder = f"{CPU}/cpu{{}}/cpufreq/scaling_governor"
    return files({folder.format(cpu): name for cpu, name in enumerate(names)})


def memory(total, free):
    sizes = {"total": total * GIB, "available": int(free * GIB)}
    return {"virtual_memory": SimpleNamespace(**sizes)}


# Memory that the kernel can drop is free, else what has read files would not fit.
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = ("memory.max", "memory.current", "inactive_file")


def group(text, names, folders, free=8):
    """A container: limit, usage and droppable files in GiB, by folder."""
    texts = {"proc/self/cgroup": f"{text}\n"}
    for folder, (limit, usage, droppable) in folders.items():
        place, most = f"sys/fs/cgroup/{folder}", limit and f"{int(limit * GIB)}\n"
        texts[f"{place}/{names[0]}"] = most or "max\n"
        texts[f"{place}/{names[1]}"] = f"{int(usage * GIB)}\n"
        stat = f"anon 5\n{names[2]} {int(droppable * GIB)}\n"
        texts[f"{place}/memory.stat"] = stat
    return files(texts, **memory(16, free))


NESTED = {"job/step": (None, 0.5, 0), "job": (10, 4, 1.5)}
OF_V1, MOUNTED = "5:cpu,cpuacct:/x\n4:memory:/x", {"memory": (9, 2, 0.1)}


def swap(used, **load):
    return {"swap_memory": SimpleNamespace(used=used * GIB, sin=0, sout=0), **load}


def foreign(fraction, *neighbours):
    return {"foreign_cpu_fraction": fraction, "neighbours": neighbours}


FINDINGS = [
    ("neighbours", "ok", foreign(0.034), "others use 3.4 % of 2 cores"),
    ("neighbours", "caution", foreign(0.01, BUSY[1]), "2 cores: sshd 2 % of one core"),
    ("neighbours", "bad", foreign(0.26, *BUSY), f"{OTHERS}: cc1 50 %, sshd 2 % of one"),
    ("neighbours", "bad", foreign(0.26), f"{OTHERS}, by processes that are not vis"),
    ("neighbours", "caution", foreign(None), "the kernel hides the CPU time of cores"),
    ("load", "ok", {"load_average": 1.0}, "1.00 over the last minute"),
    ("load", "caution", {"load_average": 1.5}, "1.50 over the last minute"),
    ("steal", "ok", {"stolen_cpu_fraction": 0.0}, "0.0 % of the cores"),
    ("steal", "caution", {"stolen_cpu_fraction": 0.01}, "1.0 % of the cores"),
    ("steal", "bad", {"stolen_cpu_fraction": 0.02}, "2.0 % of the cores"),
    ("throttling", "ok", {}, "none"),
    ("throttling", "caution", {"num_thermal": 7}, "none now, 7 times by heat since"),
    ("throttling", "bad", {"num_throttled": 2}, "2 times within 3 s"),
    ("accounting", "ok", {}, "run time of threads in nanoseconds"),
    ("accounting", "caution", {"has_thread_times": False}, "run times in ticks, no ru"),
    ("CPU quota", "ok", {"quota": 2.0}, "2 cores"),
    ("CPU quota", "caution", {"quota": 1.5}, "1.5 cores for 2 CPUs: busy processes"),
    ("SMT", "ok", {}, "each of 2 CPUs is a core of its own"),
    ("SMT", "caution", {"cores": (0, 0, 1, 1)}, "4 CPUs are 2 cores: two threads sha"),
    ("governor", "ok", governors("performance", "performance"), "performance"),
    ("governor", "caution", governors("performance", "powersave"), ", powersave: the"),
    ("boost", "ok", {}, HIDDEN),
    ("boost", "caution", files({BOOST: "1"}), "on: one busy core has a higher clock"),
    ("huge pages", "ok", files({HUGE: "always madvise [never]"}), "never"),
    ("huge pages", "caution", files({HUGE: "[always] never"}), "always: the kernel m"),
    ("memory", "ok", memory(16, 8), "8.0 GiB of 16.0 available"),
    ("memory", "caution", memory(16, 3), "3.0 GiB of 16.0 available"),
    ("memory", "bad", memory(16, 0.5), "0.5 GiB of 16.0 available"),
    ("memory", "caution", group("0::/job", V2, {"job": (4, 2, 1)}), "3.0 GiB of 16.0 "),
    # The tightest of this group and those above it.
    (
        "memory",
        "ok",
        group("0::/job/step", V2, NESTED, free=12),
        "7.5 GiB of 16.0 avai",
    ),
    # Mounted at the top, as in a container.
    ("memory", "ok", group(OF_V1, V1, MOUNTED, free=12), "7.1 GiB of 16.0 available"),
    ("swap", "ok", swap(0), "none in use"),
    ("swap", "caution", swap(1), "1.0 GiB in use"),
    ("swap", "bad", swap(1, swapped_bytes=3 * MIB), "in use, 3.0 MiB moved just"),
]


@pytest.mark.parametrize(("check", "level", "facts", "found"), FINDINGS)
def test_each_fact_of_a_machine_has_its_finding(doctor, check, level, facts, found):
    finding = doctor(**facts)[check]

    assert level == finding["level"]
    assert found in finding["found"]
    assert (level == "ok") == (finding["advice"] == "")


def test_the_load_is_read_over_a_span(fake_root, monkeypatch):
    own = os.getpid()

    def write(sleep_sec, used):
        fake_root.cores((round(sleep_sec / TICK_SEC), 0, 0, 0))
        fake_root.thread(own, own, sleep_sec)
        fake_root.process(own, round(used / TICK_SEC), 0)
        processes = [
            SimpleNamespace(pid=pid, info={"name": name, "cpu_times": (*spent, 0, 0)})
            for pid, name, spent in (
                *((11, "make", (used, 0.1)), (12, "make", (used, 0.1))),
                *((13, "cc1 \x1b[31m", (0.0, used / 2)), (14, "idle", (0.0, 5.0))),
                (own, "own", (used, used)),
            )
        ]
        counts = SimpleNamespace(sin=int(100 * used), sout=int(100 * used))
        monkeypatch.setattr(psutil, "process_iter", lambda _facts: processes)
        monkeypatch.setattr(psutil, "swap_memory", lambda: counts)

    write(0.0, 0)
    monkeypatch.setattr("time.sleep", lambda _: write(checks.SPAN_SEC, 0.5))
    found = checks.read_load((0,), fake_root.path)

    # The wall clock is real, and no time passes.
    assert ["make", "cc1 \\x1b[31m"] == [name for name, _ in found.neighbours]
    most, least = (fraction for _, fraction in found.neighbours)
    assert 4 == pytest.approx(most / least)
    assert 100 == found.swapped_bytes
    assert found.has_thread_times
    assert found.num_thermal is None


class Cores:
    """Cores whose rate falls when several are busy; some are noisy."""

    def __init__(self, compute=1.0, memory=1.0, noise=0.0):
        self.calls = []
        self._together = {"compute": compute, "memory": memory}
        self._noise = noise

    def ask(self, cores, kind):
        self.calls.append((tuple(cores), kind))
        factor = self._together[kind] if len(cores) > 1 else 1.0
        if len(cores) == 1 and len(self.calls) % 4 < 2:
            factor *= 1 + self._noise
        return [1e9 * (core + 1) * factor for core in cores]


def test_the_ceiling_is_of_the_same_core():
    cores = Cores(compute=0.95, memory=0.6)
    found = checks.measure_ceilings((0, 3), cores.ask, 6)
    alone = [chosen for chosen, _ in cores.calls if len(chosen) == 1]
    sizes = [len(chosen) for chosen, kind in cores.calls if kind == "compute"]

    assert ["compute ceiling", "memory ceiling"] == [each.check for each in found]
    for each, ratio in zip(found, ("0.95", "0.60"), strict=True):
        text = f"{ratio} [{ratio}, {ratio}] of the rate alone on 2 cores at once, n = 6"
        assert each.found.startswith(text)
    assert 6 == alone.count((0,)) == alone.count((3,))
    assert [1, 2, 2, 1] * 3 == sizes


INDEPENDENT = ": compare efficiency with --controls independent, not with 1"
CEILINGS = [
    (
        Cores(compute=0.95, memory=0.6),
        "ok",
        (
            r"0\.95 \[0\.95, 0\.95\] of the rate alone on 2 cores at once, n = 6",
            r"0\.60 \[0\.60, 0\.60\] .*, n = 6; \d\.\d GB/s alone",
        ),
        ("", ""),
    ),
    (
        Cores(compute=0.8, memory=0.4),
        "caution",
        (r"0\.80 .*", r"0\.40 .*"),
        tuple(
            f"cores share {of}{INDEPENDENT}" for of in ("units or clock", "bandwidth")
        ),
    ),
    (
        Cores(noise=0.5),
        "caution",
        (r".*; the rate alone varied by \d+ %",) * 2,
        (r"find what disturbs it .* run doctor again",) * 2,
    ),
]


@pytest.mark.parametrize(("cores", "level", "found", "advice"), CEILINGS)
def test_a_ceiling_is_a_finding(cores, level, found, advice):
    findings = checks.measure_ceilings((0, 0), cores.ask, 6)

    assert {level} == {finding.level for finding in findings}
    for finding, text, what in zip(findings, found, advice, strict=True):
        assert re.fullmatch(text, finding.found)
        assert re.fullmatch(what, finding.advice)


@pytest.mark.parametrize(
    ("cache", "available_mib", "expected"),
    [
        ("512K", 2000, 32 * MIB),
        ("49152K", 2000, 64 * MIB),
        ("49152K", 1500, None),
        (None, 2000, 32 * MIB),
    ],
)
def test_arrays_are_larger_than_the_caches(
    fake_root, monkeypatch, cache, available_mib, expected
):
    if cache is not None:
        folder = "sys/devices/system/cpu/cpu0/cache"
        fake_root.write(f"{folder}/index0/size", "32K\n")
        fake_root.write(f"{folder}/index3/size", cache + "\n")
    memory = SimpleNamespace(available=available_mib * MIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)

    assert expected == checks.array_bytes((0, 1), fake_root.path)


@pytest.mark.processes
def test_canaries_answer_and_one_that_ends_early_is_an_error(monkeypatch):
    core = min(os.sched_getaffinity(0))
    monkeypatch.setattr(checks, "BLOCK_SEC", 0.02)
    with checks.canary_processes((core,), 32 * 1024) as ask:
        (products_per_sec,) = ask((core,), "compute")
        (bytes_per_sec,) = ask((core,), "memory")

    assert 1 < products_per_sec < 1e9
    assert bytes_per_sec > 1e6
    ended = pytest.raises(
        HarnessError, match=r"^a canary process ended before it .* again$"
    )
    with ended, checks.canary_processes((core,), -8):
        pass


SECONDS = 0.1
"""The fake worker starts at once; at least five rounds are taken."""


@pytest.fixture
def measure(overrides):
    one_core = with_cpus({min(os.sched_getaffinity(0))})

    def run(**changes):
        given = {**one_core, **overrides, **changes}
        (finding,) = checks.check_pair([0, 1], SECONDS, **given)
        return finding

    return run


@pytest.mark.usefixtures("forked_trials")
def test_a_quiet_pair_says_what_a_default_sweep_gives(measure, monkeypatch):
    finding = measure()

    assert ("A/A pair", "ok") == (finding.check, finding.level)
    assert re.fullmatch(
        r"ratio [01]\.\d{3} \[.*\] in 5 rounds, which vary by 0\.\d %; 0 of 10 blocks"
        r" discarded; in 12 min a ratio of 6 such cases would be known to \+-[345]\.\d "
        r"% \(5 runs of \d+ rounds, 2 % between processes assumed\)",
        finding.found,
    )
    monkeypatch.setattr(checks, "predict", lambda *_: (9, 0.2))
    finding = measure()

    assert "caution" == finding.level
    assert "+-22.1 %" in finding.found
    assert "--time-budget, --target" in finding.advice


@pytest.mark.usefixtures("forked_trials")
def test_a_disturbed_pair_is_bad(measure):
    reasons = itertools.cycle(["others were busy", ""])
    finding = measure(discard_reason=lambda *_: next(reasons))

    assert "bad" == finding.level
    assert re.fullmatch(
        r"\d+ of \d+ blocks are discarded: in \d+ of them others were busy",
        finding.found,
    )
    assert checks.is_unfit([finding])


@pytest.mark.usefixtures("forked_trials")
def test_a_pair_that_is_not_measured_says_why(measure, monkeypatch):
    monkeypatch.setenv("FAKE_BEHAVIOR", "*:*:fail")
    finding = measure()

    assert "caution" == finding.level
    assert "not measured: the reducer is out of paper" == finding.found
    assert "sweep --workload resnet50 --preset smoke" in finding.advice

    full = SimpleNamespace(available=1, total=GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: full)
    finding = measure()

    assert "caution" == finding.level
    does_not_fit = "not measured: 2 processes do not fit into memory at once: the first"
    assert finding.found.startswith(does_not_fit)
