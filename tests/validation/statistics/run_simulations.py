"""Simulates sweeps of every design and gates, thousands each: ``make statistics``.

Prints what the intervals of each design are worth. Exits with 1 if one of the designs
that the harness uses is not worth what the documents claim.

The log time of a step of a sweep is its case's, plus

* two Ornstein-Uhlenbeck processes (Uhlenbeck and Ornstein, Physical Review 36, 1930),
  which every process on the machine shares: noise that forgets itself within seconds,
  and drift over minutes. They are sampled without discretization error at the
  irregular moments of the steps (Gillespie, Physical Review E 54, 1996);
* noise of each step of its own;
* a constant of each process, which only fresh processes draw anew.

The figures were fitted to a shared machine with two cores, see docs/design.md. Many
sweeps run at once, one per element of the arrays, each on a clock of its own. Every
interval and rule is the one of ``results``.
"""

import argparse
import dataclasses
import functools
import itertools
import math
import random
import sys
import types
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import gate_claims
import noise_models
import numpy as np
import page_claims
from page_claims import BESIDE, BUSY, Row
from scipy import stats

from harness import Disturbance
from results import Block, TrialResult, figures, statistics

FAST_DEVIATION, FAST_SEC = 0.12, 3.0
SLOW_DEVIATION, SLOW_SEC = 0.04, 100.0
STEP_DEVIATION, PROCESS_DEVIATION = 0.045, 0.02
NUM_CASES, STEP_SEC = 6, 0.4
START_SEC = 8.0
"""Of each process, until all can take turns; they start side by side."""
SWEEP_SEC = 540.0
FEWEST_ROUNDS = 5
"""Of a run, however little time is left."""
FEWEST_TO_STOP, MOST_REPETITIONS = 5, 40
LOG_RATIO = math.log(1.5)
"""The true ratio of cases 1 and 0."""


class _Noise:
    """The shared noise of all sweeps, each at a moment of its own."""

    def __init__(self, num_sweeps, generator):
        self._generator = generator
        self._parts = ((FAST_DEVIATION, FAST_SEC), (SLOW_DEVIATION, SLOW_SEC))
        self._values = [
            generator.normal(0, deviation, num_sweeps) for deviation, _ in self._parts
        ]

    def after(self, elapsed_sec):
        """Returns the noise after more time has passed in each sweep."""
        for index, (deviation, constant) in enumerate(self._parts):
            kept = np.exp(-elapsed_sec / constant)
            fresh = self._generator.normal(0, deviation, elapsed_sec.size)
            self._values[index] = (
                kept * self._values[index] + np.sqrt(1 - kept**2) * fresh
            )
        return self._values[0] + self._values[1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Repetition:
    """What one repetition of all sweeps gave."""

    # Steps per second by round, case and sweep; NaN where a sweep had no time for it.
    rates: np.ndarray
    # By case and sweep, the log time that its process adds to each step.
    of_processes: np.ndarray
    end_sec: np.ndarray  # When it ended, by sweep.

    def log_ratios(self, sweep):
        """Returns the log ratios of cases 1 and 0, of the rounds that a sweep has."""
        first, second = (np.log(self.rates[:, case, sweep]) for case in (1, 0))
        ratios = first - second
        return ratios[~np.isnan(ratios)].tolist()


class Sweeps:
    """Many sweeps of one machine, whose case 0 is slower than all others."""

    def __init__(self, number, seed):
        self.number = number
        self.clock_sec = np.zeros(number)
        self._generator = np.random.default_rng(seed)
        self._noise = _Noise(number, self._generator)
        self._log_times = np.full(NUM_CASES, math.log(STEP_SEC))
        self._log_times[0] += LOG_RATIO
        self._elapsed_sec = np.zeros(number)

    def _pass_time(self, duration_sec):
        self.clock_sec += duration_sec
        self._elapsed_sec += duration_sec

    def _step(self, cases, of_processes, is_running):
        log_time = self._log_times[cases] + of_processes
        log_time += self._noise.after(self._elapsed_sec)
        log_time += self._generator.normal(0, STEP_DEVIATION, self.number)
        self._elapsed_sec = np.zeros(self.number)
        duration_sec = np.exp(log_time)
        self._pass_time(np.where(is_running, duration_sec, 0.0))
        return duration_sec

    def _repetition(self, deadline_sec):
        """Starts a process of every case, and has them take turns."""
        self._pass_time(NUM_CASES * START_SEC)
        shape = (NUM_CASES, self.number)
        of_processes = self._generator.normal(0, PROCESS_DEVIATION, shape)
        round_sec = NUM_CASES * STEP_SEC
        cases = np.tile(np.arange(NUM_CASES)[:, None], self.number)
        every = np.arange(self.number)
        rounds = []
        while (is_running := self.clock_sec + round_sec < deadline_sec).any():
            rates = np.full(shape, np.nan)
            for chosen in self._generator.permuted(cases, axis=0):
                block_sec = self._step(chosen, of_processes[chosen, every], is_running)
                rates[chosen, every] = np.where(is_running, 1 / block_sec, np.nan)
            rounds.append(rates)
        return Repetition(
            rates=np.stack(rounds),
            of_processes=of_processes,
            end_sec=self.clock_sec.copy(),
        )

    def measure(self, num_repetitions, duration_sec):
        """Measures repetitions that share the time evenly, start-up included."""
        end_sec = self.clock_sec + duration_sec
        found = []
        for num_left in range(num_repetitions, 0, -1):
            deadline_sec = self.clock_sec + (end_sec - self.clock_sec) / num_left
            found.append(self._repetition(deadline_sec))
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Coverage:
    """What the intervals of a design are worth."""

    design: str  # What was measured, in words.
    num_sweeps: int  # Simulated sweeps.
    num_covered: int  # Those whose interval held the truth.
    median_half_width: float  # As a logarithm.
    median_sec: float  # Time of a sweep.
    mean_repetitions: float  # Of a sweep.

    @property
    def share(self):
        return self.num_covered / self.num_sweeps

    @property
    def line(self):
        """A row of the table, with the exact interval of the coverage."""
        test = stats.binomtest(self.num_covered, self.num_sweeps)
        exact = test.proportion_ci(method="exact")
        return (
            f"{self.design:<46} {self.median_sec:>6.0f} {self.mean_repetitions:>6.1f} "
            f"{self.share:>9.3f} [{exact.low:.3f}, {exact.high:.3f}] "
            f"{self.median_half_width:>8.4f}"
        )


def _design_coverage(design, found, end_sec, num_repetitions, truths=LOG_RATIO):
    lows, highs = (
        np.log([getattr(of, end) for of in found]) for end in ("low", "high")
    )
    return Coverage(
        design=design,
        num_sweeps=len(found),
        num_covered=int(((lows <= truths) & (truths <= highs)).sum()),
        median_half_width=float(np.median(highs - lows) / 2),
        median_sec=float(np.median(end_sec)),
        mean_repetitions=float(np.mean(num_repetitions)),
    )


def one_repetition(num_sweeps, seed, *, is_truth_of_processes):
    """One repetition, whose interval is for its own processes."""
    sweeps = Sweeps(num_sweeps, seed)
    (measured,) = sweeps.measure(1, SWEEP_SEC)
    found = [
        statistics.these_processes_only(measured.log_ratios(sweep))
        for sweep in range(num_sweeps)
    ]
    truths = np.full(num_sweeps, LOG_RATIO)
    words = "the programs"
    if is_truth_of_processes:
        truths += measured.of_processes[0] - measured.of_processes[1]
        words = "its processes"
    design = f"one run, of {words}"
    return _design_coverage(design, found, sweeps.clock_sec, [1], truths)


def fixed(num_sweeps, seed, *, num_repetitions):
    """A fixed number of repetitions."""
    sweeps = Sweeps(num_sweeps, seed)
    measured = sweeps.measure(num_repetitions, SWEEP_SEC)
    found = [
        statistics.over_rounds([one.log_ratios(sweep) for one in measured])
        for sweep in range(num_sweeps)
    ]
    design = f"{num_repetitions} runs"
    return _design_coverage(design, found, sweeps.clock_sec, [num_repetitions])


def sequential(num_sweeps, seed, *, target):
    """Repetitions until the interval is short enough."""
    sweeps = Sweeps(num_sweeps, seed)
    repetition_sec = SWEEP_SEC / FEWEST_TO_STOP
    measured = []
    logs = [[] for _ in range(num_sweeps)]
    end_sec = np.full(num_sweeps, np.nan)
    while np.isnan(end_sec).any() and len(measured) < MOST_REPETITIONS:
        measured += sweeps.measure(1, repetition_sec)
        for sweep in np.flatnonzero(np.isnan(end_sec)):
            logs[sweep].append(measured[-1].log_ratios(sweep))
            if statistics.is_precise_enough(logs[sweep], target):
                end_sec[sweep] = measured[-1].end_sec[sweep]
    return _design_coverage(
        f"stops when within {100 * target:g} %",
        [statistics.over_rounds(found, is_stopped_on_width=True) for found in logs],
        np.where(np.isnan(end_sec), sweeps.clock_sec, end_sec),
        [len(found) for found in logs],
    )


LEAST_COVERAGE, MOST_COVERAGE = 0.93, 0.97
WIDEST_MEDIAN = 0.06

# What the harness does, and therefore has to be right.
USED = (
    lambda n, seed: fixed(n, seed, num_repetitions=5),
    lambda n, seed: sequential(n, seed, target=0.06),
    lambda n, seed: sequential(n, seed, target=0.03),
)
# What it does not do, and why.
OTHERS = (
    lambda n, seed: one_repetition(n, seed, is_truth_of_processes=False),
    lambda n, seed: one_repetition(n, seed, is_truth_of_processes=True),
    lambda n, seed: fixed(n, seed, num_repetitions=3),
    lambda n, seed: fixed(n, seed, num_repetitions=4),
)
PAGE_HEADS = (
    *("a reader sees", "the claim", "simulated"),
    *("lowest share", "highest share", "n"),
)


def write(line):
    """Prints a line at once: a run takes minutes."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def write_table(rows):
    """Prints the rows of a table."""
    for row in rows:
        write(" | ".join(row))


def run_designs(num_sweeps, seed):
    """Prints the table of designs; yields the claims that do not hold."""
    write(f"{num_sweeps} simulated sweeps of six cases; half widths are logarithms\n")
    write(
        f"{'design':<46} {'median':>6} {'mean':>6} {'coverage':>9} {'of 95 %':>14} "
        f"{'median half':>8}\n{'':<46} {'sec':>6} {'gens':>6} {'':>24} {'width':>8}"
    )
    for design in (*OTHERS, *USED):
        found = design(num_sweeps, seed)
        write(found.line)
        is_covered = LEAST_COVERAGE <= found.share <= MOST_COVERAGE
        is_right = is_covered and found.median_half_width <= WIDEST_MEDIAN
        if design in USED and not is_right:
            yield found.line


def run_truths(num_gates, seed, folder):
    """Prints how often gates err, by what is true; returns what errs too often."""
    write(f"\n{num_gates} simulated gates of each truth, of 1, 3 and 6 cases\n")
    table = gate_claims.truths_table(num_gates, seed)
    write_table(table)
    rows = list(gate_claims.worst(num_gates, seed))
    if folder is not None:
        page_claims.write(folder / "gates-by-truth.csv", table)
        gate_claims.write_rates(rows)
    return list(gate_claims.broken(rows, num_gates))


def run_claims(num_gates, seed, folder):
    """Prints what each sentence of a gate is worth; yields those that are broken."""
    write(f"\n{num_gates} simulated gates of {gate_claims.NUM_CASES} cases each\n")
    found = [
        gate_claims.rows_of_model(model, num_gates, seed)
        for model in noise_models.MODELS
    ]
    table = gate_claims.claims_table(found)
    write_table(table)
    if folder is not None:
        page_claims.write(folder / "gates-by-noise.csv", table)
    for row in (row for of_model in found for row in of_model):
        if row.is_broken:
            yield f"{row.claim.sentence}: {row.share:.3f} on noise {row.model!r}"


def run_pages(num, seed, folder):
    """Prints what sentences of pages are worth; yields those that are broken."""
    write(f"\n{num} simulated studies\n")
    found = []
    for rows in (page_claims.rows, busy_rows):
        for row in rows(num, seed):
            found.append(row)
            write_table([row.cells])
    if folder is not None:
        table = [PAGE_HEADS, *(row.cells for row in found)]
        page_claims.write(folder / "pages.csv", table)
    for row in found:
        if row.misses():
            yield f"{row.name}: {row.claimed}: {row.shares}"


# What figures are worth that were measured beside load. Two cases, of one replica and
# of two, on two cores. Others compute in bursts, on the core that both cases use, or
# on the one that only the second uses (a load that goes to whatever core is free is
# of this kind: its discards depend on the case). A block beside a burst runs at half
# speed on the core that it shares. Blocks are judged, repeated, compared and given
# intervals by the harness's own rules.
PARTS = (0.1, 0.3, 0.6)
BURSTS_SEC = (0.01, 0.05, 0.3, 2.0, 20.0)
ON_BOTH, ON_SECOND = "the core of both cases", "a core of the second case"
NUM_REPETITIONS, NUM_ROUNDS, MAX_ATTEMPTS = 5, 20, 3
BLOCK_SEC, OTHERS_SEC, WARM_SEC = 0.4, 1.6, 30.0
OF_PROCESS, OF_ROUND, OF_BLOCK = 0.02, 0.08, 0.045
"""Standard deviations of log time."""
LEAST_PART = 0.25
"""Of the studies of one load: fewer say little about their intervals."""


@dataclasses.dataclass(frozen=True)
class Load:
    """What else runs: a part of a core, in bursts; and where."""

    part: float  # Of one core.
    burst_sec: float  # Mean of a burst.
    where: str  # Which cases share its core.
    slows: float = 0.0  # By which part it slows a turn on another core.


class _Bursts:
    """Bursts of CPU time and pauses between them, both exponential."""

    def __init__(self, load, drawn):
        pause_sec = load.burst_sec * (1 - load.part) / load.part
        self._load = load
        self._drawn = drawn
        self._means = {True: load.burst_sec, False: pause_sec}
        self._is_on = drawn.random() < load.part
        self._begin()

    def _begin(self):
        self._left_sec = self._drawn.expovariate(1 / self._means[self._is_on])

    def pass_by(self, work_sec, *, is_shared):
        """Does so much work beside it; returns the time, and its CPU time."""
        time_sec = used_sec = 0.0
        while True:
            speed = speed_of_load = 1.0
            if self._is_on and is_shared:
                speed = speed_of_load = 0.5
            elif self._is_on:
                speed = 1 - self._load.slows
            span = min(work_sec / speed, self._left_sec / speed_of_load)
            time_sec += span
            work_sec -= span * speed
            self._left_sec -= span * speed_of_load
            used_sec += span * speed_of_load * self._is_on
            if work_sec <= 1e-12:
                return time_sec, used_sec
            self._is_on = not self._is_on
            self._begin()


def _block(bursts, load, work_sec, num_cores, name):
    is_shared = load.where == ON_BOTH or num_cores > 1
    time_sec, used_sec = bursts.pass_by(work_sec, is_shared=is_shared)
    foreign = used_sec / time_sec / num_cores if is_shared else 0.0
    found = Disturbance(
        foreign_cpu_fraction=foreign,
        foreign_resolution=0.0,
        stolen_cpu_fraction=None,
        stolen_resolution=0.0,
        run_delay_sec=None,
        num_throttled=None,
        num_cores=num_cores,
    )
    return Block.model_construct(
        round_index=name[0],
        attempt=name[1],
        start_ns=0,
        end_ns=round(1e9 * time_sec),
        num_steps=1,
        foreign_cpu_fraction=foreign,
        discard_reason=found.discard_reason(),
    )


def _repetition(load, bursts, drawn):
    """Returns the blocks of both cases; each is repeated as the harness does it."""
    blocks = [], []
    processes = [drawn.gauss(0, OF_PROCESS) for _ in blocks]
    bursts.pass_by(WARM_SEC, is_shared=False)
    round_sec = 2 * BLOCK_SEC + OTHERS_SEC
    left_sec = NUM_ROUNDS * round_sec
    for index in itertools.count():
        if index >= FEWEST_ROUNDS and left_sec < round_sec:
            return blocks
        of_round = drawn.gauss(0, OF_ROUND)
        for case in drawn.sample((0, 1), 2):
            for attempt in range(MAX_ATTEMPTS):
                log = processes[case] + of_round + drawn.gauss(0, OF_BLOCK)
                work_sec = BLOCK_SEC * math.exp(log)
                block = _block(bursts, load, work_sec, case + 1, (index, attempt))
                blocks[case].append(block)
                left_sec -= block.time_sec
                if block.is_valid:
                    break
        left_sec -= bursts.pass_by(OTHERS_SEC, is_shared=True)[0]
    raise AssertionError


def _case(repetitions, num_cores):
    """What the ratio of two cases needs of one, without the records around it."""
    entries = []
    for index, blocks in enumerate(repetitions):
        result = TrialResult.model_construct(blocks=tuple(blocks), global_batch_size=1)
        spec = types.SimpleNamespace(num_replicas=num_cores, cores_per_replica=1)
        entries.append(
            types.SimpleNamespace(key=index, result=result, spec=spec, env=None)
        )
    return types.SimpleNamespace(
        is_interleaved=True,
        is_stopped_on_width=False,
        measured_entries=entries,
        ok_entries=[entry for entry in entries if entry.result.rates],
    )


def study(load, seed):
    """Measures two cases whose ratio is 1 on a quiet machine."""
    drawn = random.Random(f"{load}/{seed}")
    bursts = _Bursts(load, drawn)
    found = [_repetition(load, bursts, drawn) for _ in range(NUM_REPETITIONS)]
    cases = [_case([of[side] for of in found], side + 1) for side in (0, 1)]
    ratio = figures.throughput_ratio(cases[1], cases[0])
    assert ratio is not None
    return ratio


@functools.cache
def _studies(load, num, seed):
    return tuple(study(load, seed + index) for index in range(num))


def _coverage(found):
    covered = [of.low is None or of.low <= 1 <= (of.high or 0) for of in found]
    return float(np.mean(covered))


def busy_rows(num, seed):
    """Simulates load of several sizes, lengths and places, and what is left of it."""
    num //= 2
    evidence, others = [], []
    for where, part, burst_sec in itertools.product(
        (ON_BOTH, ON_SECOND), PARTS, BURSTS_SEC
    ):
        found = _studies(Load(part, burst_sec, where), num, seed)
        usable = [of for of in found if of.is_conclusive]
        disturbed = [of for of in found if of.is_disturbed]
        if len(usable) >= LEAST_PART * num:
            evidence.append(_coverage(usable))
        if len(disturbed) >= LEAST_PART * num:
            others.append(_coverage(disturbed))
    lengths = f"bursts of {BURSTS_SEC[0]:g} to {BURSTS_SEC[-1]:g} s"
    load = "load of 10, 30 and 60 % of one of two cores"
    yield Row(
        name=BUSY,
        claimed="holds the ratio of the quiet machine in 93 % or more",
        simulated=f"equal programs on one and two cores; {load}, on {ON_BOTH} or"
        f" {ON_SECOND}; {lengths}; 10 to 93 % of the blocks are discarded",
        shares=(min(evidence), max(evidence)),
        least=0.93,
        n=num,
    )
    yield Row(
        name=BESIDE,
        claimed="nothing: it is the ratio beside this load",
        simulated=f"the same, where every block of a case is disturbed; {load}",
        shares=(min(others), max(others)),
        n=num,
        is_claimed=False,
    )
    slowed = [
        _coverage([of for of in _studies(load, num, seed) if of.is_conclusive])
        for burst_sec in BURSTS_SEC[2:]
        for load in [Load(0.3, burst_sec, ON_SECOND, slows=0.1)]
    ]
    yield Row(
        name=BUSY,
        claimed="nothing, of load that slows a case on cores that it does not use",
        simulated="load of 30 % of a core slows the case on the other one by 10 %;"
        f" bursts of {BURSTS_SEC[2]:g} to {BURSTS_SEC[-1]:g} s",
        shares=(min(slowed), max(slowed)),
        n=num,
        is_claimed=False,
    )


def main():
    """Runs everything, and lists what does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweeps", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--write", type=Path, help="folder whose tables of claims are written anew"
    )
    given = parser.parse_args()
    broken = [
        *run_designs(given.sweeps, given.seed),
        *run_truths(given.sweeps // 2, given.seed, given.write),
        *run_claims(given.sweeps // 4, given.seed, given.write),
        *run_pages(given.sweeps // 4, given.seed, given.write),
    ]
    write("\n".join(("", *(f"FAILED: {claim}" for claim in broken))))
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
