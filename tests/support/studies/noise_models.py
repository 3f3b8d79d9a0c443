"""Gates on noise that is not the one their estimator assumes; all gates at once.

A generation is a line of cells of 0.25 s. Its turns, two cells each, and then its
stretches, eight cells each, come in pairs of head and base of one case, in an order
drawn anew in every round. A model says what slows a cell down: the machine, for
whatever runs in it, and the process that has it. Every model is scaled so that the
standard deviation over generations of the log ratio of turns is ``SPREAD``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING

import numpy as np
from scipy import signal

if TYPE_CHECKING:
    from collections.abc import Mapping

CELL_SEC = 0.25
CELLS_OF_TURN = 2
CELLS_OF_STRETCH = 8
NUM_ROUNDS = 10
NUM_STRETCHES = 4
STEPS_OF_STRETCH = 13
SPREAD = 0.03


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
    """What slows programs down by chance; logarithms of times.

    Attributes:
      machine: Standard deviation and correlation time in seconds of the load that all
        share, a sum of first-order autoregressions.
      tail_degrees: Student's degrees of freedom of the noise of turns and processes;
        None for normal noise.
      of_step: Standard deviation of one step.
      of_process: Of a process, for its whole life.
      states: By how much the slower of two states of a core slows a process, and its
        probability.
      slow_process: By how much one process in five is slower, on both sides.
      spoilt: Extra deviation of the processes of one generation in ten.
      neighbour: By how much a neighbour that comes and goes slows one core of two:
        cases on both cores, and every other one on one.
      drift: Of the machine, from the start of a generation to its end.
      drift_of_turn: Excess of the first half of a turn.
    """

    machine: tuple[tuple[float, float], ...] = ((0.12, 3.0), (0.04, 100.0))
    tail_degrees: float | None = None
    of_step: float = 0.045
    of_process: float = 0.02
    states: tuple[float, float] = (0.0, 0.0)
    slow_process: float = 0.0
    spoilt: float = 0.0
    neighbour: float = 0.0
    drift: float = 0.0
    drift_of_turn: float = 0.0


MODELS: Mapping[str, Noise] = {
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
    "unequal spreads of cases": Noise(),
}
UNEQUAL = "unequal spreads of cases"
_FACTORS_OF_CASES = (0.5, 0.7, 0.9, 1.0, 1.2, 1.7)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """What the head does more than the base; true, and known.

    Attributes:
      every_step: Log slowdown of every step of the changed cases.
      every_50th: Steps that one step in 50 takes more: 10 makes the mean 20 % longer.
      process_in_five: Log slowdown of one process in five.
      num_cases: How many cases are changed, the last ones; None for all.
    """

    every_step: float = 0.0
    every_50th: float = 0.0
    process_in_five: float = 0.0
    num_cases: int | None = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Logs:
    """Log slowdowns of gates, as arrays over gates, generations and cases.

    Attributes:
      turns: Mean over rounds of ln(head / base).
      sustained: ln of the ratio of arithmetic mean step times over all stretches.
      tail: The same of the 99th percentile of steps.
    """

    turns: np.ndarray
    sustained: np.ndarray
    tail: np.ndarray


def simulate(
    model: str,
    change: Change,
    *,
    num_gates: int,
    num_generations: int,
    num_cases: int,
    seed: int,
    spread: float = SPREAD,
) -> Logs:
    """Returns what gates measure on one model of noise."""
    scale = spread / _spread(model, num_cases)
    return _draw(model, change, num_gates, num_generations, num_cases, seed, scale)


@functools.lru_cache(maxsize=64)
def _spread(model: str, num_cases: int) -> float:
    """Returns the spread of a model before it is scaled: from quartiles."""
    found = _draw(model, Change(), 150, 8, num_cases, 99, 1.0)
    low, high = np.quantile(found.turns, [0.25, 0.75])
    return float((high - low) / 1.349)


def _draw(
    model: str,
    change: Change,
    num_gates: int,
    num_generations: int,
    num_cases: int,
    seed: int,
    scale: float,
) -> Logs:
    noise = MODELS[model]
    generator = np.random.default_rng([seed, num_cases])
    shape = (num_gates, num_generations)
    per_round, sides = 2 * num_cases, (num_cases, 2)
    num_turn_cells = NUM_ROUNDS * per_round * CELLS_OF_TURN
    num_cells = num_turn_cells + NUM_STRETCHES * per_round * CELLS_OF_STRETCH
    load = _machine(noise, generator, shape, num_cells) * scale
    of_one_core = np.zeros(1)
    if noise.neighbour:
        of_one_core = scale * noise.neighbour * _telegraph(generator, shape, num_cells)
    process = scale * _processes(noise, generator, (*shape, *sides))
    if model == UNEQUAL:
        factors = np.resize(_FACTORS_OF_CASES, num_cases)
        process = process * factors[:, None] * 1.5
    process[..., 0] += _changed(change, generator, (*shape, num_cases))

    def levels(start: int, num_rounds: int, cells: int) -> np.ndarray:
        """Mean load of each turn: gates, generations, rounds, cases, sides."""
        end = start + num_rounds * per_round * cells
        blocks = (*shape, num_rounds, num_cases, 2, cells)
        # Pairs are adjacent; which case has which pair, and who is first, is drawn.
        order = np.argsort(generator.random((*shape, num_rounds, num_cases)), axis=-1)
        first = generator.random((*shape, num_rounds, num_cases)) < 0.5

        def arranged(cells_of: np.ndarray) -> np.ndarray:
            found = cells_of[..., start:end].reshape(blocks).mean(axis=-1)
            found = np.where(first[..., None], found, found[..., ::-1])
            return np.take_along_axis(found, order[..., None], axis=-2)

        found = arranged(load)
        if noise.neighbour:
            is_hit = np.arange(num_cases) % 2 == 0
            found = found + is_hit[:, None] * arranged(of_one_core)
        return found

    turns = levels(0, NUM_ROUNDS, CELLS_OF_TURN) + process[:, :, None]
    steps_of_turn = max(1, round(CELLS_OF_TURN * STEPS_OF_STRETCH / CELLS_OF_STRETCH))
    turns += (
        scale
        * _noise(noise, generator, turns.shape)
        * (noise.of_step / math.sqrt(steps_of_turn))
    )
    turns += scale * noise.drift_of_turn * 0.5
    extra = _slow_steps(
        change, generator, (*shape, NUM_ROUNDS, num_cases), steps_of_turn
    )
    turns[..., 0] += np.log1p(extra.mean(axis=-1))
    logs = (turns[..., 0] - turns[..., 1]).mean(axis=2)

    stretches = levels(num_turn_cells, NUM_STRETCHES, CELLS_OF_STRETCH)
    stretches = stretches + process[:, :, None]
    steps = np.exp(
        stretches[..., None]
        + scale
        * noise.of_step
        * _noise(noise, generator, (*stretches.shape, STEPS_OF_STRETCH))
    )
    extra = _slow_steps(
        change, generator, (*shape, NUM_STRETCHES, num_cases), STEPS_OF_STRETCH
    )
    steps[..., 0, :] *= 1 + extra
    together = np.moveaxis(steps, 2, -2).reshape(*shape, *sides, -1)
    means = np.log(together.mean(axis=-1))
    tails = np.log(np.quantile(together, 0.99, axis=-1))
    return Logs(
        turns=logs,
        sustained=means[..., 0] - means[..., 1],
        tail=tails[..., 0] - tails[..., 1],
    )


def _noise(
    noise: Noise, generator: np.random.Generator, shape: tuple[int, ...]
) -> np.ndarray:
    if noise.tail_degrees is None:
        return generator.standard_normal(shape)
    drawn = generator.standard_t(noise.tail_degrees, shape)
    return drawn / math.sqrt(3.0)


def _machine(
    noise: Noise,
    generator: np.random.Generator,
    shape: tuple[int, ...],
    num_cells: int,
) -> np.ndarray:
    total = np.linspace(0, noise.drift, num_cells) * np.ones((*shape, 1))
    for deviation, correlation_sec in noise.machine:
        kept = math.exp(-CELL_SEC / correlation_sec)
        drawn = _noise(noise, generator, (*shape, num_cells))
        drawn *= math.sqrt(1 - kept**2)
        drawn[..., 0] /= math.sqrt(1 - kept**2)
        total += deviation * signal.lfilter([1.0], [1.0, -kept], drawn, axis=-1)
    return total


def _telegraph(
    generator: np.random.Generator, shape: tuple[int, ...], num_cells: int
) -> np.ndarray:
    """A neighbour that stays for 5 s on average, and away for 20 s."""
    is_there = generator.random(shape) < 0.2
    found = np.empty((*shape, num_cells))
    changes = generator.random((*shape, num_cells))
    for index in range(num_cells):
        rate = np.where(is_there, CELL_SEC / 5, CELL_SEC / 20)
        is_there = is_there ^ (changes[..., index] < rate)
        found[..., index] = is_there
    return found


def _processes(
    noise: Noise, generator: np.random.Generator, shape: tuple[int, ...]
) -> np.ndarray:
    total = noise.of_process * _noise(noise, generator, shape)
    slower, probability = noise.states
    total += slower * (generator.random(shape) < probability)
    total += noise.slow_process * (generator.random(shape) < 0.2)
    if noise.spoilt:
        is_spoilt = generator.random((*shape[:2], 1, 1)) < 0.1
        total += noise.spoilt * is_spoilt * generator.standard_normal(shape)
    return total


def _changed(
    change: Change, generator: np.random.Generator, shape: tuple[int, ...]
) -> np.ndarray:
    is_changed = _is_changed(change, shape[-1])
    is_slow = generator.random(shape) < 0.2
    return is_changed * (change.every_step + change.process_in_five * is_slow)


def _is_changed(change: Change, num_cases: int) -> np.ndarray:
    number = num_cases if change.num_cases is None else change.num_cases
    return np.arange(num_cases) >= num_cases - number


def _slow_steps(
    change: Change,
    generator: np.random.Generator,
    shape: tuple[int, ...],
    num_steps: int,
) -> np.ndarray:
    """What single steps take more: every 50th, counted from a random one."""
    if not change.every_50th:
        return np.zeros((*shape, num_steps))
    position = generator.integers(0, 50, (*shape, 1)) + np.arange(num_steps)
    return (
        change.every_50th
        * (position % 50 == 0)
        * (_is_changed(change, shape[-1])[..., None])
    )
