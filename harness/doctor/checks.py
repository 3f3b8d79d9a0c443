"""Checks of the machine: cores, clock, memory, other load, canaries, an A/A pair."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import math
import os
import signal
import statistics as standard
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

import psutil

from harness.errors import DoctorError, DoesNotFitError
from harness.machine import disturbance, machine_state, owned_folders
from harness.machine.machine_state import CpuTopology, read_topology
from harness.planning import checked, defaults, plan
from harness.planning.request import SweepRequest
from harness.run.rounds import Repetition
from harness.run.trial_runner import RunSettings
from harness.trial.process_tree import request_death_signal
from results.figures import conditions, scaling
from results.records.models import Order, Plan, ScalingMode
from results.records.texts import printable
from results.statistics import group_sequential
from results.store.study_store import Store
from results.study.cases import Study, load_study

Level = Literal["ok", "caution", "bad"]


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    check: str  # What was looked at.
    level: Level  # ``bad`` if timings are unusable, ``caution`` if they can be worse.
    found: str  # One line.
    advice: str = ""  # One line: what to do; empty if it is ok.


def judged(
    check: str,
    fact: str,
    *,
    bad: Mapping[str, object] = MappingProxyType({}),
    caution: Mapping[str, object] = MappingProxyType({}),
) -> Finding:
    """Returns the finding of the first problem, by its advice, whose value is true."""
    problems: dict[Level, Mapping[str, object]] = {"bad": bad, "caution": caution}
    for level, by_advice in problems.items():
        for advice, is_there in by_advice.items():
            if is_there:
                return Finding(check, level, fact, advice)
    return Finding(check, "ok", fact)


_GIB = 2**30
_LOW_MEMORY_BYTES = 4 * _GIB
"""Room for a few resident processes with TensorFlow, of about 1 GiB each."""
_HIDDEN = "not visible from here"
SPAN_SEC = 3.0
_MOST_NEIGHBOURS = 5
_NEIGHBOUR_FRACTION = 0.01
"""Of one core: less is not worth a name."""
_NOTABLE_STOLEN = 0.001
_MOST_LOAD_PER_CORE = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CurrentLoad:
    """What ran in a short span in which this process slept."""

    disturbance: disturbance.Disturbance  # Of all cores that this process may use.
    # The busiest other processes, in order: names, and fractions of one core.
    neighbours: tuple[tuple[str, float], ...]
    load_average: float  # Over the last minute.
    swapped_bytes: int  # Moved to or from swap within the span.
    num_thermal: int | None  # Times that heat lowered the clock since boot.
    has_thread_times: bool  # Whether run time and run delay of threads can be read.


def read_load(cores: Sequence[int], root: Path) -> CurrentLoad:
    start = disturbance.read_core_clock(cores, (os.getpid(),), root)
    swap, before = psutil.swap_memory(), _read_processes()
    time.sleep(SPAN_SEC)
    end = disturbance.read_core_clock(cores, (os.getpid(),), root)
    span_sec = max(end.wall_sec - start.wall_sec, 1e-9)
    used: dict[str, float] = collections.defaultdict(float)
    for pid, (name, total_sec) in _read_processes().items():
        used[name] += max(total_sec - before.get(pid, ("", 0.0))[1], 0.0) / span_sec
    busiest = sorted(used.items(), key=lambda each: -each[1])[:_MOST_NEIGHBOURS]
    now = psutil.swap_memory()
    return CurrentLoad(
        disturbance=start.load_until(end),
        neighbours=tuple(each for each in busiest if each[1] >= _NEIGHBOUR_FRACTION),
        load_average=os.getloadavg()[0],
        swapped_bytes=max(int(now.sin + now.sout - swap.sin - swap.sout), 0),
        num_thermal=end.num_thermal,
        has_thread_times=bool(end.threads),
    )


def _read_processes() -> dict[int, tuple[str, float]]:
    """Returns name and CPU time in seconds of all visible processes but this one."""
    return {
        process.pid: (printable(process.info["name"]), sum(times[:2]))
        for process in psutil.process_iter(["name", "cpu_times"])
        if (times := process.info["cpu_times"]) and process.pid != os.getpid()
    }


def _check_neighbours(load: CurrentLoad, num_cores: int) -> Finding:
    fraction = load.disturbance.foreign_cpu_fraction
    if fraction is None:
        fact = "the kernel hides the CPU time of cores (/proc/stat)"
        advice = "blocks disturbed by others cannot be recognized here: keep it quiet"
        return Finding("neighbours", "caution", fact, advice)
    names = ", ".join(f"{name} {part:.0%}" for name, part in load.neighbours)
    is_bad = load.disturbance.foreign_reason()
    fact = f"others use {fraction:.1%} of {num_cores} cores"
    if names:
        fact += f": {names} of one core"
    elif is_bad:
        fact += ", by processes that are not visible from here"
    end = "end them or wait: blocks above 3 % are discarded"
    caution = {"end them if they can become busy": names}
    fact = fact.replace("%", " %")
    return judged("neighbours", fact, bad={end: is_bad}, caution=caution)


def _check_load(load: CurrentLoad, num_cores: int) -> Iterator[Finding]:
    yield _check_neighbours(load, num_cores)
    fact = f"{load.load_average:.2f} over the last minute"
    is_loaded = load.load_average > _MOST_LOAD_PER_CORE * num_cores
    advice = "wait until it is low, or find what runs: top"
    yield judged("load", fact, caution={advice: is_loaded})
    stolen = load.disturbance.stolen_cpu_fraction
    above = (stolen or 0.0) - load.disturbance.stolen_resolution
    fact = (
        "not counted here" if stolen is None else f"{100 * stolen:.1f} % of the cores"
    )
    is_bad = above > disturbance.MAX_STOLEN_FRACTION
    bad = {"use a host without other guests: blocks above 1 % are discarded": is_bad}
    caution = {"prefer a host without other guests": above > _NOTABLE_STOLEN}
    yield judged("steal", fact, bad=bad, caution=caution)
    now = load.disturbance.num_throttled
    fact = "not counted here" if now is None else "none"
    if now:
        fact = f"{now} times within {SPAN_SEC:g} s"
    elif load.num_thermal:
        fact = f"none now, {load.num_thermal} times by heat since boot"
    advice = "raise the CPU quota, or cool the machine: throttled blocks are discarded"
    before = {"check the cooling before a long sweep": load.num_thermal}
    yield judged("throttling", fact, bad={advice: now}, caution=before)


def _check_cpus(cpus: CpuTopology, root: Path) -> Iterator[Finding]:
    quota, num_cpus = cpus.quota_cores, len(cpus.cpus)
    is_less = quota is not None and quota < num_cpus
    usable = max(1, math.floor(quota)) if quota is not None else num_cpus
    chosen = ",".join(str(cpu.cpu) for cpu in cpus.cpus[:usable])
    fact = "none" if quota is None else f"{quota:g} cores"
    fact += f" for {num_cpus} CPUs: busy processes are stopped in turns" * is_less
    advice = "raise the quota, or use no more CPUs than it grants: taskset"
    yield judged("CPU quota", fact, caution={f"{advice} -c {chosen} ...": is_less})
    first = {(cpu.package, cpu.core): cpu.cpu for cpu in reversed(cpus.cpus)}
    chosen = ",".join(map(str, sorted(first.values())))
    is_shared, fact = (
        len(first) < num_cpus,
        f"each of {num_cpus} CPUs is a core of its own",
    )
    if is_shared:
        fact = f"{num_cpus} CPUs are {len(first)} cores: two threads share a core"
    advice = f"use one CPU of each core: taskset -c {chosen} ..."
    yield judged("SMT", fact, caution={advice: is_shared})
    governors = machine_state.read_governors([cpu.cpu for cpu in cpus.cpus], root)
    is_varying = governors not in ([], ["performance"])
    fact = ", ".join(governors) or _HIDDEN
    fact += ": the clock depends on the load before" * is_varying
    advice = "sudo cpupower frequency-set -g performance"
    yield judged("governor", fact, caution={advice: is_varying})
    is_boosted = machine_state.read_boost(root)
    on = "on: one busy core has a higher clock than many, so efficiency looks lower"
    fact = {None: _HIDDEN, False: "off", True: on}[is_boosted]
    advice = "compare with the compute ceiling below, or switch it off in the firmware"
    yield judged("boost", fact, caution={advice: is_boosted})


def _check_memory(load: CurrentLoad, root: Path) -> Iterator[Finding]:
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    free = machine_state.read_free_memory(root)
    fact = f"{free / _GIB:.1f} GiB of {memory.total / _GIB:.1f} available"
    bad = {"end other programs: a single trial needs 1 GiB": free < _GIB}
    # All cases of an interleaved sweep are in memory at once.
    advice = "end other programs, or sweep fewer cases: each needs about 1 GiB"
    yield judged("memory", fact, bad=bad, caution={advice: free < _LOW_MEMORY_BYTES})
    moved = f", {load.swapped_bytes / 2**20:.1f} MiB moved just now"
    moved *= bool(load.swapped_bytes)
    is_used = swap.used or moved
    fact = f"{swap.used / _GIB:.1f} GiB in use{moved}" if is_used else "none in use"
    advice = "end other programs, then: sudo swapoff -a && sudo swapon -a"
    yield judged("swap", fact, bad={advice: moved}, caution={advice: swap.used})
    setting = machine_state.read_huge_pages(root)
    is_always = setting == "always"
    fact = setting or _HIDDEN
    fact += ": the kernel merges pages of memory while a trial runs" * is_always
    advice = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
    yield judged("huge pages", fact, caution={advice: is_always})
    ticks = "no /proc/<pid>/task/<tid>/schedstat: run times in ticks, no run delay"
    fact = "run time of threads in nanoseconds" if load.has_thread_times else ticks
    advice = "use longer blocks, or a kernel with CONFIG_SCHED_INFO"
    yield judged("accounting", fact, caution={advice: not load.has_thread_times})


# A canary runs on one core alone, then on all of them at once; the ratio of the rates
# of that core is the ceiling: replicas that use the cores in this way cannot be more
# efficient. The compute canary stays in the first cache and shows shared clocks and
# units, the memory canary (a triad over arrays larger than all caches) the bandwidth.

NUM_ROUNDS = 10
BLOCK_SEC = 0.2
_CACHES = 4
"""The three arrays together are so many times as large as the largest cache."""
_NUM_ARRAYS = 3
_TRIAD_PASSES = 5
"""Arrays read or written by ``a = s * c`` and ``a = a + b``."""
_BLOCK = 4
_LEAST_ARRAY_BYTES = 32 * 2**20
_MOST_OF_MEMORY = 0.25
_MOST_SPREAD = 0.1
_DISTURBED = "find what disturbs it (neighbours, steal, clock), and run doctor again"
COMPUTE: Final = "compute"
MEMORY: Final = "memory"
# By kind: the ceiling that is good, and what a low one says.
_KINDS = {COMPUTE: (0.9, "units or clock"), MEMORY: (0.5, "bandwidth")}
Ask = Callable[[Sequence[int], str], list[float]]
"""Runs a canary of a kind on some cores at once; returns the rate of each."""


def array_bytes(cores: Sequence[int], root: Path) -> int | None:
    """Returns the size of an array of the triad; None if memory is too small for it."""
    caches = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cache/index*/size")
    sizes = [machine_state.read_line(path).partition("K")[0] for path in caches]
    largest = max((int(size) * 1024 for size in sizes if size.isdigit()), default=0)
    wanted = max(_LEAST_ARRAY_BYTES, _CACHES * largest // _NUM_ARRAYS)
    free = machine_state.read_free_memory(root)
    fits = wanted * _NUM_ARRAYS * len(cores) <= _MOST_OF_MEMORY * free
    return wanted if fits else None


_kernels: dict[str, tuple[Callable[[], object], float]] = {}
"""In a process of canaries: each, and the work that a call does."""


def _begin(core: int, num_bytes: int) -> None:
    """Makes this a process of canaries, with arrays of so many bytes each."""
    import numpy as np

    request_death_signal()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for the process that asks only
    os.sched_setaffinity(0, {core})
    multiply = disturbance.make_product()
    first, second, third = (np.full(num_bytes // 8, x) for x in (1.0, 2.0, 3.0))

    def compute() -> None:
        for _ in range(_BLOCK):
            multiply()

    def triad() -> None:
        np.multiply(third, 0.5, out=first)
        np.add(first, second, out=first)

    _kernels[COMPUTE] = compute, _BLOCK
    _kernels[MEMORY] = triad, _TRIAD_PASSES * num_bytes
    for kernel, _ in _kernels.values():
        kernel()  # which touches all memory


def _run(kind: str, duration_sec: float) -> float:
    return disturbance.rate(*_kernels[kind], duration_sec)


@contextlib.contextmanager
def canary_processes(cores: Sequence[int], num_bytes: int) -> Iterator[Ask]:
    """Starts a process on each core; yields the function that asks them."""
    import multiprocessing  # sweeps need none

    spawn = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        pools = {}
        for core in cores:
            pool = futures.ProcessPoolExecutor(1, spawn, _begin, (core, num_bytes))
            pools[core] = stack.enter_context(pool)

        def ask(chosen: Sequence[int], kind: str) -> list[float]:
            runs = [pools[core].submit(_run, kind, BLOCK_SEC) for core in chosen]
            try:
                return [run.result() for run in runs]
            except futures.BrokenExecutor as error:
                raise DoctorError(
                    "a canary process ended before it answered; see its message above,"
                    " free memory, and run doctor again"
                ) from error

        ask(cores, COMPUTE)  # so that all have started
        yield ask


def measure_ceilings(
    cores: Sequence[int], ask: Ask, num_rounds: int = NUM_ROUNDS
) -> list[Finding]:
    """Runs both canaries in rounds; returns a finding for each."""
    from results.statistics import estimates  # sweeps need none

    alone: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    ratios: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    for round_index in range(num_rounds):
        index = round_index % len(cores)
        blocks = [[cores[index]], cores]
        for kind in _KINDS:
            # Both orders, since a core can be warmer after a block of all.
            order = blocks[::-1] if round_index % 2 else blocks
            rates = {len(chosen): ask(chosen, kind) for chosen in order}
            alone[kind].append(rates[1][0])
            ratios[kind].append(rates[len(cores)][index] / rates[1][0])
    findings = []
    for kind, (good, shared) in _KINDS.items():
        ratio = estimates.geometric_mean(ratios[kind], unit="")
        fact = (
            f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] of the rate alone"
            f" on {len(cores)} cores at once, n = {ratio.n}"
        )
        if kind == MEMORY:
            fact += f"; {standard.geometric_mean(alone[kind]) / 1e9:.1f} GB/s alone"
        spread = standard.stdev(map(math.log, alone[kind]))
        if spread > _MOST_SPREAD:
            fact += f"; the rate alone varied by {100 * spread:.0f} %"
        caution = {
            _DISTURBED: spread > _MOST_SPREAD,
            f"cores share {shared}: compare efficiency with --controls independent, not"
            " with 1": (ratio.high or good) < good,
        }
        findings.append(judged(f"{kind} ceiling", fact, caution=caution))
    return findings


def check_canaries(cores: Sequence[int], root: Path = Path("/")) -> list[Finding]:
    if len(cores) == 1:
        return [Finding("ceilings", "ok", "one core only: nothing to share")]
    num_bytes = array_bytes(cores, root)
    if num_bytes is None:
        fact = "not measured: arrays larger than the caches need more memory"
        advice = "free memory, or give doctor fewer cores with taskset"
        return [Finding("ceilings", "caution", fact, advice)]
    with canary_processes(cores, num_bytes) as ask:
        return measure_ceilings(cores, ask)


# An A/A pair, interleaved: what an interval of this machine would be worth. The same
# small case runs twice, for a minute. Their ratio is 1, so the rounds show the noise
# that is left after pairing, and from it follows the interval of a default sweep. The
# spread between processes cannot be seen in one repetition, and is assumed.

PAIR: Final = "A/A pair"
LEAST_SEC: Final = 30.0
"""Starting the two processes alone takes 15 s or more."""
NUM_CASES: Final = 6
"""Cases of the sweep that is predicted: the default one has so many on two cores."""
PROCESS_SPREAD: Final = 0.02
"""Assumed deviation between processes of one case."""
WIDEST_GOOD: Final = 0.06
"""Half width that the primary ratio of a default sweep should not exceed."""

_MOST_ROUNDS = 10_000
_SEED = 0
_TIMEOUT_SEC = 300.0
_ADVICE = "end other programs, or measure longer: --time-budget, --target"


def predict(deviation: float, block_sec: float, start_sec: float) -> tuple[int, float]:
    """Predicts rounds of a default run, and half the width of log(ratio)'s interval."""
    repetition_sec = defaults.MINUTES * 60 / defaults.REPETITIONS
    left_sec = repetition_sec - NUM_CASES * start_sec
    num_rounds = int(left_sec / (NUM_CASES * block_sec))
    num_rounds = min(max(num_rounds, 1), defaults.MAX_ROUNDS)
    spread = math.sqrt(2 * PROCESS_SPREAD**2 + deviation**2 / num_rounds)
    return num_rounds, group_sequential.median_half_width(spread, defaults.REPETITIONS)


def make_plan(num_cores: int) -> Plan:
    """Returns the plan of one small case and its A/A control, on at most two cores."""
    request = SweepRequest(
        workload="resnet50",
        preset="smoke",
        backends=("in_graph",),
        replicas=(min(num_cores, 2),),
        modes=(ScalingMode.WEAK,),
        repeats=1,
        order=Order.INTERLEAVED,
        budget="none",
        is_matched=False,
        seed=_SEED,
        timeout_sec=_TIMEOUT_SEC,
    )
    machine = checked.Machine(num_available_cores=num_cores)
    command = ("python", "-m", "harness", "doctor")
    sweep = checked.check(request, machine)
    return plan.arrange(sweep, study="doctor", command=command)[0]


def check_pair(
    cores: Sequence[int], duration_sec: float, **overrides: Any
) -> list[Finding]:
    settings = RunSettings(timeout_sec=_TIMEOUT_SEC, **overrides)
    with owned_folders.made(owned_folders.DOCTOR) as folder:
        store = Store.create(folder.path / "doctor")
        store.write_plan(make_plan(len(cores)))
        first_round: list[float] = []

        def notice(text: str, _left_sec: float | None) -> None:
            if text.startswith("round ") and not first_round:
                first_round.append(time.monotonic())

        started = time.monotonic()
        repetition = Repetition(
            trials=store.read_plan().trials,
            index=0,
            duration_sec=duration_sec,
            max_rounds=_MOST_ROUNDS,
            seed=_SEED,
            stage=notice,
        )
        try:
            repetition.run(store, settings)
        except DoesNotFitError as error:
            advice = "free memory: both processes are needed at once"
            return [Finding(PAIR, "caution", f"not measured: {error}", advice)]
        start_sec = (first_round[0] - started) if first_round else math.nan
        study = load_study(store)
        return [judge(study, start_sec / len(repetition.trials))]


def judge(study: Study, start_sec: float) -> Finding:
    counts = conditions.count_blocks(study)
    if counts.is_unfit:
        predicted = (
            f"{counts.num_discarded} of {counts.num_blocks} blocks are discarded: in"
            f" {counts.reasons[0][1]} of them {counts.reasons[0][0]}"
        )
        advice = "find what disturbs the cores: nothing would be judged"
        return Finding(PAIR, "bad", predicted, advice)
    failed = [entry for entry in study.planned if not entry.is_ok]
    aa_control = conditions.aa_control_of(study)
    if failed or aa_control is None:
        reason = failed[0].reason if failed else "no round has a valid block of both"
        advice = "run 'sweep --workload resnet50 --preset smoke' to see more"
        return Finding(PAIR, "caution", f"not measured: {reason}", advice)
    (logs,) = scaling.block_logs(study.controls[0], aa_control.case)
    if len(logs) < 2:  # noqa: PLR2004 - a deviation needs two
        reason = "not measured: only one round has valid blocks of both"
        return Finding(PAIR, "caution", reason, _ADVICE)
    deviation = standard.stdev(logs)
    starts = sorted(block.start_ns for entry in study.planned for block in entry.blocks)
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    block_sec = standard.median(gaps) / 1e9  # from one to the next
    num_rounds, half_width = predict(deviation, block_sec, start_sec)
    ratio = aa_control.ratio
    interval = ""
    if ratio.low is not None and ratio.high is not None:
        interval = f" [{ratio.low:.3f}, {ratio.high:.3f}]"
    width = math.expm1(half_width)
    text = (
        f"ratio {ratio.value:.3f}{interval} in {len(logs)} rounds, which vary by"
        f" {deviation:.1%}; {counts.num_discarded} of {counts.num_blocks} blocks "
        f"discarded; in {defaults.MINUTES:g} min a ratio of {NUM_CASES} such cases "
        f"would be known to +-{width:.1%} ({defaults.REPETITIONS} runs of "
        f"{num_rounds} rounds, {PROCESS_SPREAD:.0%} between processes assumed)"
    ).replace("%", " %")
    return judged(PAIR, text, caution={_ADVICE: width > WIDEST_GOOD})


DURATION_SEC = SPAN_SEC + 4 * NUM_ROUNDS * BLOCK_SEC + 2.0
"""About how long it takes; waiting for the processes is the last part."""


def diagnose(
    root: Path = Path("/"),
    *,
    measures: Sequence[Callable[[Sequence[int]], Sequence[Finding]]],
) -> list[Finding]:
    cpus = read_topology(root)
    cores = [cpu.cpu for cpu in cpus.cpus]
    load = read_load(cores, root)  # before anything of ours runs
    findings = [*_check_load(load, len(cores)), *_check_cpus(cpus, root)]
    findings += _check_memory(load, root)
    for measure in measures:
        findings += measure(cores)
    return findings


def is_unfit(findings: Sequence[Finding]) -> bool:
    """Whether something makes timings of this machine unusable."""
    return any(finding.level == "bad" for finding in findings)
