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
import zlib

import noise
import numpy as np
from noise import FACTORS_OF_CASES, MODELS, UNEQUAL

CELLS_OF_TURN = 2
CELLS_OF_STRETCH = 8
NUM_ROUNDS = 10
NUM_STRETCHES = 4
STEPS_OF_STRETCH = 13
SPREAD = 0.03


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
    """Log slowdowns of gates, as arrays over gates, generations and cases."""

    # ln(head / base) of each round, over gates, generations, rounds and cases.
    rounds: np.ndarray
    # ln of the ratio of arithmetic mean step times over all stretches.
    sustained: np.ndarray
    tail: np.ndarray  # The same of the 99th percentile of steps.
    rates: np.ndarray  # -ln(time of the base) of each round, of each case: a rate.

    @property
    def turns(self):
        """Mean over rounds of ln(head / base)."""
        return self.rounds.mean(axis=2)


def simulate(
    model, change, *, num_gates, num_generations, num_cases, seed, spread=SPREAD
):
    """Returns what gates measure on one model of noise."""
    scale = spread / _spread(model, num_cases)
    return _draw(model, change, num_gates, num_generations, num_cases, seed, scale)


@functools.lru_cache(maxsize=64)
def _spread(model, num_cases):
    """Returns the spread of a model before it is scaled: from quartiles."""
    found = _draw(model, Change(), 150, 8, num_cases, 99, 1.0)
    low, high = np.quantile(found.turns, [0.25, 0.75])
    return float((high - low) / 1.349)


def _draw(model, change, num_gates, num_generations, num_cases, seed, scale):
    of = MODELS[model]
    # Models with the same numbers would differ by less than they seem to.
    name = zlib.crc32(model.encode())
    generator = np.random.default_rng([seed, num_cases, name])
    shape = (num_gates, num_generations)
    per_round, sides = 2 * num_cases, (num_cases, 2)
    num_turn_cells = NUM_ROUNDS * per_round * CELLS_OF_TURN
    num_cells = num_turn_cells + NUM_STRETCHES * per_round * CELLS_OF_STRETCH
    scales = np.full((*shape, 1), scale)
    if of.unlike:
        scales = scales * np.exp(of.unlike * generator.standard_normal((*shape, 1)))
    load = noise.machine_load(of, generator, shape, num_cells) * scales
    of_one_core = np.zeros(1)
    if of.neighbour:
        of_one_core = (
            scale * of.neighbour * noise.telegraph(generator, shape, num_cells)
        )
    process = scales[..., None] * _processes(model, generator, (*shape, *sides))
    process[..., 0] += _changed(change, generator, (*shape, num_cases))

    def levels(start, num_rounds, cells):
        """Mean load of each turn: gates, generations, rounds, cases, sides."""
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

    turns = levels(0, NUM_ROUNDS, CELLS_OF_TURN) + process[:, :, None]
    steps_of_turn = max(1, round(CELLS_OF_TURN * STEPS_OF_STRETCH / CELLS_OF_STRETCH))
    turns += (
        scale
        * noise.draw(of, generator, turns.shape)
        * (of.of_step / math.sqrt(steps_of_turn))
    )
    if of.drift_of_turn:  # the excess of a first step differs between processes
        excess = 1 + 0.5 * generator.standard_normal((*shape, 1, *sides))
        turns += scale * of.drift_of_turn * 0.5 * excess
    if of.settling:
        slope = of.settling * generator.standard_normal((*shape, 1, *sides))
        turns += scale * slope * np.linspace(1, 0, NUM_ROUNDS)[:, None, None]
    extra = _slow_steps(
        change, generator, (*shape, NUM_ROUNDS, num_cases), steps_of_turn
    )
    turns[..., 0] += np.log1p(extra.mean(axis=-1))

    stretches = levels(num_turn_cells, NUM_STRETCHES, CELLS_OF_STRETCH)
    stretches = stretches + process[:, :, None]
    steps = np.exp(
        stretches[..., None]
        + scale
        * of.of_step
        * noise.draw(of, generator, (*stretches.shape, STEPS_OF_STRETCH))
    )
    extra = _slow_steps(
        change, generator, (*shape, NUM_STRETCHES, num_cases), STEPS_OF_STRETCH
    )
    steps[..., 0, :] *= 1 + extra
    together = np.moveaxis(steps, 2, -2).reshape(*shape, *sides, -1)
    means = np.log(together.mean(axis=-1))
    tails = np.log(np.quantile(together, 0.99, axis=-1))
    return Logs(
        rounds=turns[..., 0] - turns[..., 1],
        sustained=means[..., 0] - means[..., 1],
        tail=tails[..., 0] - tails[..., 1],
        rates=-turns[..., 1],
    )


def _processes(model, generator, shape):
    found = noise.processes(MODELS[model], generator, shape)
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
