"""How often the intervals of each design hold the truth, in simulated sweeps.

The designs differ in what is measured when (``simulated_sweeps``); every interval, rule
and verdict is that of ``results``.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import stats
from simulated_sweeps import Sweeps, relay, sequence

from results.statistics import generations
from results.statistics.estimates import ratio

LOG_RATIO = math.log(1.5)
"""The true ratio of cases 1 and 0."""

SWEEP_SEC = 540.0
IDLE_SEC = 12.0
"""A trial of the former default sweep took 26 s: 13 to start, 6.5 for its window.
Side by side, a process starts in 8 s."""

MOST_GENERATIONS = 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class Coverage:
    """What the intervals of a design are worth."""

    design: str  # What was measured, in words.
    num_sweeps: int  # Simulated sweeps.
    num_covered: int  # Those whose interval held the truth.
    median_half_width: float  # As a logarithm.
    median_sec: float  # Time of a sweep.
    mean_generations: float  # Generations, or repetitions, of a sweep.

    @property
    def share(self):
        return self.num_covered / self.num_sweeps

    @property
    def interval(self):
        """95 % interval of the coverage (Clopper and Pearson, Biometrika 26, 1934)."""
        test = stats.binomtest(self.num_covered, self.num_sweeps)
        found = test.proportion_ci(confidence_level=0.95, method="exact")
        return float(found.low), float(found.high)


def _coverage(design, estimates, truths, end_sec, num_generations):
    lows = np.log([estimate.low for estimate in estimates])
    highs = np.log([estimate.high for estimate in estimates])
    return Coverage(
        design=design,
        num_sweeps=len(estimates),
        num_covered=int(((lows <= truths) & (truths <= highs)).sum()),
        median_half_width=float(np.median(highs - lows) / 2),
        median_sec=float(np.median(end_sec)),
        mean_generations=float(np.mean(num_generations)),
    )


def logs_of(measured, sweep):
    """Returns log ratios of cases 1 and 0 in one sweep, by generation and round."""
    logs = [
        generations.log_ratios(one.turns(1, sweep), one.turns(0, sweep))
        for one in measured
    ]
    return [of_rounds for of_rounds in logs if of_rounds]


def fresh_processes(num_sweeps, seed, *, num_repetitions, num_steps):
    """The design before the relay: each trial alone, pairs by repetition."""
    sweeps = Sweeps(num_sweeps, seed, log_slowdown=LOG_RATIO)
    measured = sequence(sweeps, num_repetitions, num_steps, idle_sec=IDLE_SEC)
    estimates = [
        ratio(
            {index: rates[1, sweep] for index, rates in enumerate(measured)},
            {index: rates[0, sweep] for index, rates in enumerate(measured)},
        )
        for sweep in range(num_sweeps)
    ]
    return _coverage(
        f"sequence of {num_repetitions} fresh processes x {num_steps} steps",
        estimates,
        np.full(num_sweeps, LOG_RATIO),
        sweeps.clock_sec,
        [num_repetitions],
    )


def one_generation(num_sweeps, seed, *, is_truth_of_processes):
    """A relay of one generation, whose interval is for its own processes."""
    sweeps = Sweeps(num_sweeps, seed, log_slowdown=LOG_RATIO)
    (measured,) = relay(sweeps, 1, SWEEP_SEC)
    estimates = [
        generations.these_processes_only(
            generations.log_ratios(measured.turns(1, sweep), measured.turns(0, sweep))
        )
        for sweep in range(num_sweeps)
    ]
    truths = np.full(num_sweeps, LOG_RATIO)
    words = "the programs"
    if is_truth_of_processes:
        truths += measured.of_processes[0] - measured.of_processes[1]
        words = "its processes"
    design = f"relay, one generation, of {words}"
    return _coverage(design, estimates, truths, sweeps.clock_sec, [1])


def fixed(
    num_sweeps, seed, *, num_generations, duration_sec=SWEEP_SEC, steps_per_turn=1
):
    """A relay of a fixed number of generations."""
    sweeps = Sweeps(num_sweeps, seed, log_slowdown=LOG_RATIO)
    measured = relay(
        sweeps, num_generations, duration_sec, steps_per_turn=steps_per_turn
    )
    estimates = [
        generations.over_rounds(logs_of(measured, sweep)) for sweep in range(num_sweeps)
    ]
    turns = "" if steps_per_turn == 1 else f", turns of {steps_per_turn} steps"
    return _coverage(
        f"relay, {num_generations} generations{turns}",
        estimates,
        np.full(num_sweeps, LOG_RATIO),
        sweeps.clock_sec,
        [num_generations],
    )


def sequential(
    num_sweeps, seed, *, target, generation_sec=SWEEP_SEC / generations.FEWEST_TO_STOP
):
    """A relay that stops when its interval is short enough."""
    sweeps = Sweeps(num_sweeps, seed, log_slowdown=LOG_RATIO)
    measured = []
    logs = [[] for _ in range(num_sweeps)]
    end_sec = np.full(num_sweeps, np.nan)
    while np.isnan(end_sec).any() and len(measured) < MOST_GENERATIONS:
        measured += relay(sweeps, 1, generation_sec)
        for sweep in np.flatnonzero(np.isnan(end_sec)):
            logs[sweep] += logs_of(measured[-1:], sweep)
            if generations.is_precise_enough(logs[sweep], target):
                end_sec[sweep] = measured[-1].end_sec[sweep]
    end_sec = np.where(np.isnan(end_sec), sweeps.clock_sec, end_sec)
    return _coverage(
        f"relay, stops when within {100 * target:g} %",
        [generations.over_rounds(found, is_stopped_on_width=True) for found in logs],
        np.full(num_sweeps, LOG_RATIO),
        end_sec,
        [len(found) for found in logs],
    )
