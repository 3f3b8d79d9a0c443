"""How often intervals of whole sweeps hold the truth, in simulated time.

The log time of a step is its case's, plus

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

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import stats

from results.statistics import estimates

FAST_DEVIATION, FAST_SEC = 0.12, 3.0
SLOW_DEVIATION, SLOW_SEC = 0.04, 100.0
STEP_DEVIATION, PROCESS_DEVIATION = 0.045, 0.02
NUM_CASES, STEP_SEC = 6, 0.4
START_SEC = 8.0
"""Of each process, until all can take turns; they start side by side."""
SWEEP_SEC = 540.0
MOST_REPETITIONS = 40
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
        first, second = (
            {
                index: float(value)
                for index, value in enumerate(self.rates[:, case, sweep])
                if not math.isnan(value)
            }
            for case in (1, 0)
        )
        return estimates.log_ratios(first, second)


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


def _coverage(design, found, end_sec, num_repetitions, truths=LOG_RATIO):
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
        estimates.these_processes_only(measured.log_ratios(sweep))
        for sweep in range(num_sweeps)
    ]
    truths = np.full(num_sweeps, LOG_RATIO)
    words = "the programs"
    if is_truth_of_processes:
        truths += measured.of_processes[0] - measured.of_processes[1]
        words = "its processes"
    design = f"one run, of {words}"
    return _coverage(design, found, sweeps.clock_sec, [1], truths)


def fixed(num_sweeps, seed, *, num_repetitions):
    """A fixed number of repetitions."""
    sweeps = Sweeps(num_sweeps, seed)
    measured = sweeps.measure(num_repetitions, SWEEP_SEC)
    found = [
        estimates.over_rounds([one.log_ratios(sweep) for one in measured])
        for sweep in range(num_sweeps)
    ]
    design = f"{num_repetitions} runs"
    return _coverage(design, found, sweeps.clock_sec, [num_repetitions])


def sequential(num_sweeps, seed, *, target):
    """Repetitions until the interval is short enough."""
    sweeps = Sweeps(num_sweeps, seed)
    repetition_sec = SWEEP_SEC / estimates.FEWEST_TO_STOP
    measured = []
    logs = [[] for _ in range(num_sweeps)]
    end_sec = np.full(num_sweeps, np.nan)
    while np.isnan(end_sec).any() and len(measured) < MOST_REPETITIONS:
        measured += sweeps.measure(1, repetition_sec)
        for sweep in np.flatnonzero(np.isnan(end_sec)):
            logs[sweep].append(measured[-1].log_ratios(sweep))
            if estimates.is_precise_enough(logs[sweep], target):
                end_sec[sweep] = measured[-1].end_sec[sweep]
    return _coverage(
        f"stops when within {100 * target:g} %",
        [estimates.over_rounds(found, is_stopped_on_width=True) for found in logs],
        np.where(np.isnan(end_sec), sweeps.clock_sec, end_sec),
        [len(found) for found in logs],
    )
