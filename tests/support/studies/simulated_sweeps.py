"""Sweeps in simulated time: what each way of measuring makes of a machine's noise.

The log time of a step is that of its case, plus

* two Ornstein-Uhlenbeck processes (Uhlenbeck and Ornstein, Physical Review 36, 1930),
  which every process on the machine shares: noise that forgets itself within seconds,
  and drift over minutes. They are sampled without discretization error at the
  irregular moments of the steps (Gillespie, Physical Review E 54, 1996);
* noise of each step of its own;
* a constant of each process, which only fresh processes draw anew.

The figures were fitted to a shared machine with two cores, see
docs/design.md. Many sweeps run at once, one per element of the arrays,
each on a clock of its own.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
    """The noise of a machine, and what runs on it; deviations are of log time."""

    fast_deviation: float = 0.12  # Of the noise that forgets itself within seconds.
    fast_time_constant_sec: float = 3.0  # After which its correlation is 1/e.
    slow_deviation: float = 0.04  # Of the drift.
    slow_time_constant_sec: float = 100.0  # After which its correlation is 1/e.
    step_deviation: float = 0.045  # Of the noise of each step.
    process_deviation: float = 0.02  # Of the constants of processes.
    num_cases: int = 6  # Cases of the sweep.
    step_sec: float = 0.4  # Time of a step without noise.
    # Of each process until all can take turns; they start side by side.
    start_sec: float = 8.0


MACHINE = Machine()


class _Noise:
    """The shared noise of all sweeps, each at a moment of its own."""

    def __init__(self, machine, num_sweeps, generator):
        self._generator = generator
        self._parts = (
            (machine.fast_deviation, machine.fast_time_constant_sec),
            (machine.slow_deviation, machine.slow_time_constant_sec),
        )
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
class Generation:
    """What one generation of all sweeps gave."""

    # Steps per second by round, case and sweep; NaN where a sweep had no time for the
    # round.
    rates: np.ndarray
    # By case and sweep, the log time that its process adds to each step.
    of_processes: np.ndarray
    end_sec: np.ndarray  # When it ended, by sweep.

    def turns(self, case, sweep):
        """Returns the values of a case's turns by round, as records have them."""
        values = self.rates[:, case, sweep]
        return {
            index: float(value)
            for index, value in enumerate(values)
            if not math.isnan(value)
        }


class Sweeps:
    """Many sweeps of one machine, advanced together."""

    def __init__(self, number, seed, *, log_slowdown=0.0, machine=MACHINE):
        """Starts sweeps whose case 0 may be slower than all others."""
        self.machine = machine
        self.number = number
        self.clock_sec = np.zeros(number)
        self._generator = np.random.default_rng(seed)
        self._noise = _Noise(machine, number, self._generator)
        self._log_times = np.full(machine.num_cases, math.log(machine.step_sec))
        self._log_times[0] += log_slowdown
        self._elapsed_sec = np.zeros(number)

    def pass_time(self, duration_sec):
        """Advances the clocks; nothing is measured."""
        self.clock_sec += duration_sec
        self._elapsed_sec += duration_sec

    def start_processes(self, number):
        """Starts processes one after the other."""
        self.pass_time(number * self.machine.start_sec)
        shape = (number, self.number)
        return self._generator.normal(0, self.machine.process_deviation, shape)

    def step(self, cases, of_processes, is_running=True):
        """Runs one step of a case in each sweep that is running."""
        log_time = self._log_times[cases] + of_processes
        log_time += self._noise.after(self._elapsed_sec)
        log_time += self._generator.normal(0, self.machine.step_deviation, self.number)
        self._elapsed_sec = np.zeros(self.number)
        duration_sec = np.exp(log_time)
        self.pass_time(np.where(is_running, duration_sec, 0.0))
        return duration_sec

    def generation(self, deadline_sec, steps_per_turn):
        """Starts a process of every case, and has them take turns."""
        num_cases = self.machine.num_cases
        of_processes = self.start_processes(num_cases)
        round_sec = num_cases * steps_per_turn * self.machine.step_sec
        cases = np.tile(np.arange(num_cases)[:, None], self.number)
        every = np.arange(self.number)
        rounds = []
        while (is_running := self.clock_sec + round_sec < deadline_sec).any():
            rates = np.full((num_cases, self.number), np.nan)
            for chosen in self._generator.permuted(cases, axis=0):
                added = of_processes[chosen, every]
                turn_sec = sum(
                    self.step(chosen, added, is_running) for _ in range(steps_per_turn)
                )
                rates[chosen, every] = np.where(
                    is_running, steps_per_turn / turn_sec, np.nan
                )
            rounds.append(rates)
        return Generation(
            rates=np.stack(rounds),
            of_processes=of_processes,
            end_sec=self.clock_sec.copy(),
        )


def relay(sweeps, num_generations, duration_sec, *, steps_per_turn=1):
    """Measures generations that share the time evenly, start-up included."""
    end_sec = sweeps.clock_sec + duration_sec
    found = []
    for num_left in range(num_generations, 0, -1):
        deadline_sec = sweeps.clock_sec + (end_sec - sweeps.clock_sec) / num_left
        found.append(sweeps.generation(deadline_sec, steps_per_turn))
    return found


def sequence(sweeps, num_repetitions, num_steps, *, idle_sec):
    """Measures fresh processes one after the other, each in a window of its own."""
    num_cases = sweeps.machine.num_cases
    found = []
    for repetition in range(num_repetitions):
        rates = np.empty((num_cases, sweeps.number))
        order = range(num_cases) if repetition % 2 == 0 else reversed(range(num_cases))
        for case in order:
            (added,) = sweeps.start_processes(1)
            sweeps.pass_time(idle_sec)
            cases = np.full(sweeps.number, case)
            window_sec = sum(sweeps.step(cases, added) for _ in range(num_steps))
            rates[case] = num_steps / window_sec
        found.append(rates)
    return found
