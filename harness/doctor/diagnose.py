"""Runs all checks of the machine, in the order in which they are shown."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics as standard
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness import SOURCE_ROOT
from harness.doctor import checks, gpu
from harness.doctor.canary_worker import COMPUTE, MEMORY
from harness.doctor.checks import Finding, judged
from harness.errors import DoctorError
from harness.machine import machine_state
from harness.machine.machine_state import read_topology
from results.statistics import estimates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from results.statistics.estimates import Estimate


# A canary runs on one core alone, then on all of them at once; the ratio of the rates
# of that core is the ceiling. No program whose replicas use the cores in the same way
# can be more efficient. The compute canary stays in the first cache: it shows shared
# clocks and shared units. The memory canary is a triad over arrays larger than all
# caches: it shows the shared bandwidth. Rounds alternate, so that drift of the machine
# cancels.

NUM_ROUNDS = 10
TURN_SEC = 0.2
_CACHES = 4
"""The three arrays together are so many times as large as the largest cache."""
_NUM_ARRAYS = 3
_LEAST_ARRAY_BYTES = 32 * 2**20
_MOST_OF_MEMORY = 0.25
_MOST_SPREAD = 0.1
_DISTURBED = "find what disturbs it (neighbours, steal, clock), and run doctor again"
# By kind: the unit of its rate, the ceiling that is good, and what a low one says.
_KINDS = {
    COMPUTE: ("products/s", 0.9, "units or clock"),
    MEMORY: ("bytes/s", 0.5, "bandwidth"),
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ceiling:
    """The result of one canary."""

    kind: str  # ``compute`` or ``memory``.
    num_cores: int  # Cores that ran at once.
    alone: Estimate  # Rate of one core alone, over rounds.
    ratio: Estimate  # Rate of a core when all are busy / alone, over rounds.
    spread: float  # Standard deviation of the logarithm of the rate alone, over rounds.


Ask = Callable[[Sequence[int], str], list[float]]
"""Runs a canary of a kind on some cores at once; returns the rate of each."""


def array_bytes(cores: Sequence[int], root: Path) -> int | None:
    """Returns the size of an array of the triad; None if memory is too small for it."""
    caches = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cache/index*/size")
    sizes = [machine_state.read_line(path).partition("K")[0] for path in caches]
    largest = max((int(size) * 1024 for size in sizes if size.isdigit()), default=0)
    wanted = max(_LEAST_ARRAY_BYTES, _CACHES * largest // _NUM_ARRAYS)
    free = checks.read_memory(root).get("MemAvailable", math.inf)
    fits = wanted * _NUM_ARRAYS * len(cores) <= _MOST_OF_MEMORY * free
    return wanted if fits else None


@contextlib.contextmanager
def canary_processes(cores: Sequence[int], num_bytes: int) -> Iterator[Ask]:
    """Starts a process on each core; yields the function that asks them."""
    with contextlib.ExitStack() as stack:
        command = [sys.executable, "-m", "harness.doctor.canary_worker", "core"]
        processes = {}
        for core in cores:
            process = subprocess.Popen(
                [*command, str(core), str(num_bytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=SOURCE_ROOT,
                # Ctrl-C reaches this process only; theirs end with their stdin.
                start_new_session=True,
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            processes[core] = process
        for process in processes.values():
            _answer(process)

        def ask(chosen: Sequence[int], kind: str) -> list[float]:
            for core in chosen:
                stdin = processes[core].stdin
                assert stdin is not None
                stdin.write(f"{kind} {TURN_SEC}\n")
                stdin.flush()
            return [float(_answer(processes[core])) for core in chosen]

        yield ask


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise DoctorError(
            f"a canary process ended with exit code {process.wait()} before it"
            " answered; see its message above, free memory, and run doctor again"
        )
    return line


def measure_ceilings(
    cores: Sequence[int], ask: Ask, num_rounds: int = NUM_ROUNDS
) -> list[Ceiling]:
    """Runs both canaries in rounds."""
    alone: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    ratios: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    for round_index in range(num_rounds):
        place = round_index % len(cores)
        turns = [[cores[place]], cores]
        for kind in _KINDS:
            # Both orders, since a core can be warmer after a turn of all.
            order = turns[::-1] if round_index % 2 else turns
            rates = {len(chosen): ask(chosen, kind) for chosen in order}
            alone[kind].append(rates[1][0])
            ratios[kind].append(rates[len(cores)][place] / rates[1][0])
    return [
        Ceiling(
            kind=kind,
            num_cores=len(cores),
            alone=estimates.geometric_mean(alone[kind], unit=unit),
            ratio=estimates.geometric_mean(ratios[kind], unit=""),
            spread=standard.stdev(math.log(value) for value in alone[kind]),
        )
        for kind, (unit, _, _) in _KINDS.items()
    ]


def check_ceiling(ceiling: Ceiling) -> Finding:
    """Says what a core does when all are busy, and how steady one is alone."""
    ratio = ceiling.ratio
    _, good, shared = _KINDS[ceiling.kind]
    found = (
        f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}] of the rate alone on"
        f" {ceiling.num_cores} cores at once, n = {ratio.n}"
    )
    if ceiling.kind == MEMORY:
        found += f"; {ceiling.alone.value / 1e9:.1f} GB/s alone"
    varies, is_low = ceiling.spread > _MOST_SPREAD, (ratio.high or good) < good
    if varies:
        found += f"; the rate alone varied by {100 * ceiling.spread:.0f} %"
    return judged(
        f"{ceiling.kind} ceiling",
        found,
        caution={
            _DISTURBED: varies,
            f"cores share {shared}: compare efficiency with a solo run, not 1": is_low,
        },
    )


def check_canaries(cores: Sequence[int], root: Path = Path("/")) -> list[Finding]:
    if len(cores) == 1:
        return [Finding("ceilings", "ok", "one core only: nothing to share")]
    num_bytes = array_bytes(cores, root)
    if num_bytes is None:
        return [
            Finding(
                "ceilings",
                "caution",
                "not measured: arrays larger than the caches need more memory",
                "free memory, or give doctor fewer cores with taskset",
            )
        ]
    with canary_processes(cores, num_bytes) as ask:
        return [check_ceiling(ceiling) for ceiling in measure_ceilings(cores, ask)]


DURATION_SEC = checks.SPAN_SEC + 4 * NUM_ROUNDS * TURN_SEC + 2.0
"""About how long it takes; waiting for the processes is the last part."""


def diagnose(
    root: Path = Path("/"),
    measures: Sequence[Callable[[Sequence[int]], Sequence[Finding]]] = (
        check_canaries,
    ),
) -> list[Finding]:
    """Returns the findings of every check."""
    cpus = read_topology(root)
    cores = [cpu.cpu for cpu in cpus.cpus]
    # Before anything of ours runs.
    now = checks.read_load(cores, root)
    findings = [
        *checks.check_machine(cpus, now, root),
        *gpu.check_gpus(gpu.read_gpu_states()),
    ]
    for measure in measures:
        findings += measure(cores)
    return findings


def is_unfit(findings: Sequence[Finding]) -> bool:
    """Whether something makes timings of this machine unusable."""
    return any(finding.level == "bad" for finding in findings)
