"""What slows programs down by chance: models of noise, and how they are drawn.

No estimator assumes them: loads that last, tails, states of cores, neighbours. The
first eleven were at hand when the rule of the gate was chosen. ``JUDGED`` were written
after it, to judge it on what it was not chosen for.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import signal

CELL_SEC = 0.25


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
    """What slows programs down by chance; logarithms of times."""

    # Standard deviation and correlation time in seconds of the load that all share, a
    # sum of first-order autoregressions.
    machine: tuple[tuple[float, float], ...] = ((0.12, 3.0), (0.04, 100.0))
    # Student's degrees of freedom of the noise of turns and processes; None for normal
    # noise.
    tail_degrees: float | None = None
    of_step: float = 0.045  # Standard deviation of one step.
    of_process: float = 0.02  # Of a process, for its whole life.
    # By how much the slower of two states of a core slows a process, and its
    # probability.
    states: tuple[float, float] = (0.0, 0.0)
    # By how much one process in five is slower, on both sides.
    slow_process: float = 0.0
    spoilt: float = 0.0  # Extra deviation of the processes of one generation in ten.
    # By how much a neighbour that comes and goes slows one core of two: cases on both
    # cores, and every other one on one.
    neighbour: float = 0.0
    drift: float = 0.0  # Of the machine, from the start of a generation to its end.
    # Excess of the first half of a turn; of each process another one.
    drift_of_turn: float = 0.0
    # Mean of exponential bursts of load, which come as the neighbour does.
    bursts: float = 0.0
    # By how much a service that wakes every 20 s for 2 s slows everything.
    beat: float = 0.0
    unlike: float = 0.0  # Deviation of the logarithm of how noisy a generation is.
    # By how much a process gets faster or slower within its generation.
    settling: float = 0.0


UNEQUAL = "unequal spreads of cases"
FACTORS_OF_CASES = (0.5, 0.7, 0.9, 1.0, 1.2, 1.7)
CHOSEN = {
    "this machine": Noise(),
    "AR(1), 0.5 s": Noise(machine=((0.12, 0.5),)),
    "AR(1), 5 s": Noise(machine=((0.12, 5.0),)),
    "AR(1), 60 s": Noise(machine=((0.12, 60.0),)),
    "heavy tails": Noise(tail_degrees=3.0),
    "two states of a core": Noise(states=(0.06, 0.3)),
    "one slow process in five": Noise(slow_process=0.10),
    "one spoilt generation in ten": Noise(spoilt=0.15),
    "a neighbour on one core": Noise(neighbour=0.3),
    "drift within a turn": Noise(drift=0.10, drift_of_turn=0.06),
    UNEQUAL: Noise(),
}
JUDGED = {
    "AR(1), 20 s": Noise(machine=((0.12, 20.0),)),
    "tails, 4 degrees": Noise(tail_degrees=4.0),
    "three states of a core": Noise(states=(0.03, 0.5), slow_process=0.04),
    "bursts of load": Noise(bursts=0.25),
    "a service every 20 s": Noise(beat=0.3),
    "generations of unlike noise": Noise(unlike=0.4),
    "processes that settle": Noise(settling=0.03),
}
MODELS = {**CHOSEN, **JUDGED}


def draw(noise, generator, shape):
    """Returns noise of unit scale, with the tails of the model."""
    if noise.tail_degrees is None:
        return generator.standard_normal(shape)
    drawn = generator.standard_t(noise.tail_degrees, shape)
    return drawn / math.sqrt(3.0)


def machine_load(noise, generator, shape, num_cells):
    """Returns what everything that runs in a cell of a generation has."""
    total = np.linspace(0, noise.drift, num_cells) * np.ones((*shape, 1))
    for deviation, correlation_sec in noise.machine:
        kept = math.exp(-CELL_SEC / correlation_sec)
        drawn = draw(noise, generator, (*shape, num_cells))
        drawn *= math.sqrt(1 - kept**2)
        drawn[..., 0] /= math.sqrt(1 - kept**2)
        total += deviation * signal.lfilter([1.0], [1.0, -kept], drawn, axis=-1)
    if noise.bursts:
        height = generator.exponential(noise.bursts, (*shape, num_cells))
        total += height * telegraph(generator, shape, num_cells)
    if noise.beat:
        since_sec = CELL_SEC * np.arange(num_cells) + 20 * generator.random((*shape, 1))
        total += noise.beat * (since_sec % 20 < 2)
    return total


def telegraph(generator, shape, num_cells):
    """A neighbour that stays for 5 s on average, and away for 20 s."""
    is_there = generator.random(shape) < 0.2
    found = np.empty((*shape, num_cells))
    changes = generator.random((*shape, num_cells))
    for index in range(num_cells):
        rate = np.where(is_there, CELL_SEC / 5, CELL_SEC / 20)
        is_there = is_there ^ (changes[..., index] < rate)
        found[..., index] = is_there
    return found


def processes(noise, generator, shape):
    """Returns what each process has for its whole life."""
    total = noise.of_process * draw(noise, generator, shape)
    slower, probability = noise.states
    total += slower * (generator.random(shape) < probability)
    total += noise.slow_process * (generator.random(shape) < 0.2)
    if noise.spoilt:
        is_spoilt = generator.random((*shape[:2], 1, 1)) < 0.1
        total += noise.spoilt * is_spoilt * generator.standard_normal(shape)
    return total
