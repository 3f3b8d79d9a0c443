"""Errors of a test that looks several times: how much of each is spent at each look.

A test that is made after 3, 4, 6, 8 and 12 generations, each at the level 5 %, errs in
far more than 5 % of gates. A *spending function* says which part of the error may be
spent until each look, and from it follow the nominal levels of the single tests (Lan
and DeMets, "Discrete sequential boundaries for clinical trials", Biometrika 70, 1983).
The probability to cross a boundary for the first time is integrated over Brownian
motion, look by look (Armitage, McPherson and Rowe, JRSS A 132, 1969).

The levels are exact for a known spread. With an estimated one, each is the level of a
t test (Jennison and Turnbull, "Group Sequential Methods", 2000, section 4.4), which
``make statistics`` simulates.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

_NUM_NODES = 160
_POWER = 1.5
_LOWEST = -8.5  # standard deviations, below which nothing is left
_NUM_HALVINGS = 60


def kim_demets(alpha: float, fraction: float) -> float:
    """Returns the error spent until a fraction of the information; early ones get less.

    A power of the information (Kim and DeMets, "Design and analysis of group
    sequential tests based on the type I error spending rate function", Biometrika 74,
    1987), here 1.5. Early looks know spreads badly and err most, and equal programs
    pass before the last ones, so what these keep finds slowdowns at no cost.
    """
    return alpha * min(fraction, 1.0) ** _POWER


@functools.lru_cache(maxsize=512)
def nominal_levels(
    looks: tuple[int, ...], most: int, alpha: float
) -> tuple[float, ...]:
    """Returns the one-sided level of the test at each look."""
    from scipy import special

    levels: list[float] = []
    nodes, masses = np.zeros(1), np.ones(1)  # all paths start at zero
    before, spent = 0.0, 0.0
    for look in looks:
        now = look / most
        step = math.sqrt(now - before)
        wanted = max(kim_demets(alpha, now) - spent, 0.0)

        low, high = _LOWEST * math.sqrt(now), -_LOWEST * math.sqrt(now)
        for _ in range(_NUM_HALVINGS):
            middle = (low + high) / 2
            crossing = float(masses @ special.ndtr((nodes - middle) / step))
            low, high = (middle, high) if crossing > wanted else (low, middle)
        bound = (low + high) / 2
        levels.append(float(special.ndtr(-bound / math.sqrt(now))))
        new, weights = _quadrature(_LOWEST * math.sqrt(now), bound)
        steps = (new[:, None] - nodes[None, :]) / step
        density = np.exp(-(steps**2) / 2) / (step * math.sqrt(2 * math.pi))
        nodes, masses = new, weights * (density @ masses)
        before, spent = now, spent + wanted
    return tuple(levels)


def _quadrature(low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns nodes and weights of Gauss and Legendre's rule."""
    nodes, weights = np.polynomial.legendre.leggauss(_NUM_NODES)
    half = (high - low) / 2
    return (low + high) / 2 + half * nodes, half * weights


def looks_until(number: int, planned: Sequence[int]) -> tuple[int, ...]:
    """Returns the looks of a gate that ended after so many generations."""
    return (*(look for look in planned if look < number), number)
