"""Gates on noise that their estimator does not assume; all gates at once.

A model of noise is what slows programs down by chance: loads that last, tails, states
of cores, neighbours. The first eleven were at hand when the rule of the gate was
chosen; ``JUDGED`` were written after it, to judge it on what it was not chosen for.

A repetition is a line of cells of 0.25 s. Its blocks, two cells each, and then its
stretches, eight cells each, come in pairs of head and base of one case, in an order
drawn anew in every round. Every model is scaled so that the standard deviation over
repetitions of the log ratio of blocks is ``SPREAD``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import zlib

import numpy as np

CELL_SEC = 0.25
CELLS_OF_BLOCK = 2
CELLS_OF_STRETCH = 8
NUM_ROUNDS = 10
NUM_STRETCHES = 4
STEPS_OF_STRETCH = 13
SPREAD = 0.03


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
    """What slows programs down by chance; logarithms of times."""

    # Standard deviation and correlation time in seconds of the load that all share, a
    # sum of first-order autoregressions.
    machine: tuple[tuple[float, float], ...] = ((0.12, 3.0), (0.04, 100.0))
    # Student's degrees of freedom of the noise of blocks and processes; None for normal
    # noise.
    tail_degrees: float | None = None
    of_step: float = 0.045  # Standard deviation of one step.
    of_process: float = 0.02  # Of a process, for its whole life.
    # By how much the slower of two states of a core slows a process, and its
    # probability.
    states: tuple[float, float] = (0.0, 0.0)
    # By how much one process in five is slower, on both sides.
    slow_process: float = 0.0
    spoilt: float = 0.0  # Extra deviation of the processes of one repetition in ten.
    # By how much a neighbour that comes and goes slows one core of two: cases on both
    # cores, and every other one on one.
    neighbour: float = 0.0
    drift: float = 0.0  # Of the machine, from the start of a repetition to its end.
    # Excess of the first half of a block; of each process another one.
    drift_of_block: float = 0.0
    # Mean of exponential bursts of load, which come as the neighbour does.
    bursts: float = 0.0
    # By how much a service that wakes every 20 s for 2 s slows everything.
    beat: float = 0.0
    unlike: float = 0.0  # Deviation of the logarithm of how noisy a repetition is.
    # By how much a process gets faster or slower within its repetition.
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
    "one contaminated run in ten": Noise(spoilt=0.15),
    "a neighbour on one core": Noise(neighbour=0.3),
    "drift within a block": Noise(drift=0.10, drift_of_block=0.06),
    UNEQUAL: Noise(),
}
JUDGED = {
    "AR(1), 20 s": Noise(machine=((0.12, 20.0),)),
    "tails, 4 degrees": Noise(tail_degrees=4.0),
    "three states of a core": Noise(states=(0.03, 0.5), slow_process=0.04),
    "bursts of load": Noise(bursts=0.25),
    "a service every 20 s": Noise(beat=0.3),
    "runs of unlike noise": Noise(unlike=0.4),
    "processes that settle": Noise(settling=0.03),
}
MODELS = {**CHOSEN, **JUDGED}


def draw_noise(noise, generator, shape):
    """Returns noise of unit scale, with the tails of the model."""
    if noise.tail_degrees is None:
        return generator.standard_normal(shape)
    drawn = generator.standard_t(noise.tail_degrees, shape)
    return drawn / math.sqrt(3.0)


def machine_load(noise, generator, shape, num_cells):
    """Returns what everything that runs in a cell of a repetition has."""
    from scipy import signal  # a second, of which collecting tests needs nothing

    total = np.linspace(0, noise.drift, num_cells) * np.ones((*shape, 1))
    for deviation, correlation_sec in noise.machine:
        kept = math.exp(-CELL_SEC / correlation_sec)
        drawn = draw_noise(noise, generator, (*shape, num_cells))
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
    total = noise.of_process * draw_noise(noise, generator, shape)
    slower, probability = noise.states
    total += slower * (generator.random(shape) < probability)
    total += noise.slow_process * (generator.random(shape) < 0.2)
    if noise.spoilt:
        is_spoilt = generator.random((*shape[:2], 1, 1)) < 0.1
        total += noise.spoilt * is_spoilt * generator.standard_normal(shape)
    return total


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """What the head does more than the base; true, and known."""

    every_step: float = 0.0  # Log slowdown of every step of the changed cases.
    # Steps that one step in 50 takes more: 10 makes the mean 20 % longer.
    every_50th: float = 0.0
    process_in_five: float = 0.0  # Log slowdown of one process in five.
    # How many cases are changed, the last ones; None for all.
    num_cases: int | None = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Logs:
    """Log slowdowns of gates, as arrays over gates, repetitions and cases."""

    # ln(head / base) of each round, over gates, repetitions, rounds and cases.
    rounds: np.ndarray
    # ln of the ratio of arithmetic mean step times over all stretches.
    sustained: np.ndarray
    tail: np.ndarray  # The same of the 99th percentile of steps.
    rates: np.ndarray  # -ln(time of the base) of each round, of each case: a rate.

    @property
    def blocks(self):
        """Mean over rounds of ln(head / base)."""
        return self.rounds.mean(axis=2)


def simulate(
    model, change, *, num_gates, num_repetitions, num_cases, seed, spread=SPREAD
):
    """Returns what gates measure on one model of noise."""
    scale = spread / _spread(model, num_cases)
    return _draw(model, change, num_gates, num_repetitions, num_cases, seed, scale)


@functools.lru_cache(maxsize=64)
def _spread(model, num_cases):
    """Returns the spread of a model before it is scaled: from quartiles."""
    found = _draw(model, Change(), 150, 8, num_cases, 99, 1.0)
    low, high = np.quantile(found.blocks, [0.25, 0.75])
    return float((high - low) / 1.349)


def _draw(model, change, num_gates, num_repetitions, num_cases, seed, scale):
    of = MODELS[model]
    # Models with the same numbers would differ by less than they seem to.
    name = zlib.crc32(model.encode())
    generator = np.random.default_rng([seed, num_cases, name])
    shape = (num_gates, num_repetitions)
    per_round, sides = 2 * num_cases, (num_cases, 2)
    num_block_cells = NUM_ROUNDS * per_round * CELLS_OF_BLOCK
    num_cells = num_block_cells + NUM_STRETCHES * per_round * CELLS_OF_STRETCH
    scales = np.full((*shape, 1), scale)
    if of.unlike:
        scales = scales * np.exp(of.unlike * generator.standard_normal((*shape, 1)))
    load = machine_load(of, generator, shape, num_cells) * scales
    of_one_core = np.zeros(1)
    if of.neighbour:
        of_one_core = scale * of.neighbour * telegraph(generator, shape, num_cells)
    process = scales[..., None] * _processes(model, generator, (*shape, *sides))
    process[..., 0] += _changed(change, generator, (*shape, num_cases))

    def levels(start, num_rounds, cells):
        """Mean load of each block: gates, repetitions, rounds, cases, sides."""
        end = start + num_rounds * per_round * cells
        blocks = (*shape, num_rounds, num_cases, 2, cells)
        # Pairs are adjacent; which case has which pair, and who is first, is drawn.
        order = np.argsort(generator.random((*shape, num_rounds, num_cases)), axis=-1)
        first = generator.random((*shape, num_rounds, num_cases)) < 0.5

        def arranged(cells_of):
            found = cells_of[..., start:end].reshape(blocks).mean(axis=-1)
            found = np.where(first[..., None], found, found[..., ::-1])
            return np.take_along_axis(found, order[..., None], axis=-2)

        found = arranged(load)
        if of.neighbour:
            is_hit = np.arange(num_cases) % 2 == 0
            found = found + is_hit[:, None] * arranged(of_one_core)
        return found

    blocks = levels(0, NUM_ROUNDS, CELLS_OF_BLOCK) + process[:, :, None]
    steps_of_block = max(1, round(CELLS_OF_BLOCK * STEPS_OF_STRETCH / CELLS_OF_STRETCH))
    blocks += (
        scale
        * draw_noise(of, generator, blocks.shape)
        * (of.of_step / math.sqrt(steps_of_block))
    )
    if of.drift_of_block:  # the excess of a first step differs between processes
        excess = 1 + 0.5 * generator.standard_normal((*shape, 1, *sides))
        blocks += scale * of.drift_of_block * 0.5 * excess
    if of.settling:
        slope = of.settling * generator.standard_normal((*shape, 1, *sides))
        blocks += scale * slope * np.linspace(1, 0, NUM_ROUNDS)[:, None, None]
    extra = _slow_steps(
        change, generator, (*shape, NUM_ROUNDS, num_cases), steps_of_block
    )
    blocks[..., 0] += np.log1p(extra.mean(axis=-1))

    stretches = levels(num_block_cells, NUM_STRETCHES, CELLS_OF_STRETCH)
    stretches = stretches + process[:, :, None]
    steps = np.exp(
        stretches[..., None]
        + scale
        * of.of_step
        * draw_noise(of, generator, (*stretches.shape, STEPS_OF_STRETCH))
    )
    extra = _slow_steps(
        change, generator, (*shape, NUM_STRETCHES, num_cases), STEPS_OF_STRETCH
    )
    steps[..., 0, :] *= 1 + extra
    together = np.moveaxis(steps, 2, -2).reshape(*shape, *sides, -1)
    means = np.log(together.mean(axis=-1))
    tails = np.log(np.quantile(together, 0.99, axis=-1))
    return Logs(
        rounds=blocks[..., 0] - blocks[..., 1],
        sustained=means[..., 0] - means[..., 1],
        tail=tails[..., 0] - tails[..., 1],
        rates=-blocks[..., 1],
    )


def _processes(model, generator, shape):
    found = processes(MODELS[model], generator, shape)
    if model == UNEQUAL:
        found = found * np.resize(FACTORS_OF_CASES, shape[-2])[:, None] * 1.5
    return found


def _changed(change, generator, shape):
    is_changed = _is_changed(change, shape[-1])
    is_slow = generator.random(shape) < 0.2
    return is_changed * (change.every_step + change.process_in_five * is_slow)


def _is_changed(change, num_cases):
    number = num_cases if change.num_cases is None else change.num_cases
    return np.arange(num_cases) >= num_cases - number


def _slow_steps(change, generator, shape, num_steps):
    """What single steps take more: every 50th, counted from a random one."""
    if not change.every_50th:
        return np.zeros((*shape, num_steps))
    position = generator.integers(0, 50, (*shape, 1)) + np.arange(num_steps)
    return (
        change.every_50th
        * (position % 50 == 0)
        * (_is_changed(change, shape[-1])[..., None])
    )
