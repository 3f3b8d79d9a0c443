"""The two ends of a score's scale: real images and noise."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from workloads.metrics.evaluator import Evaluator
    from workloads.metrics.protocol import Score


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ends:
    """Best and worst scores, for comparison with a generator at the same n."""

    # Of real images that are not in the reference: the best score at this n.
    data: tuple[Score, ...]
    noise: tuple[Score, ...]  # Of pixels drawn uniformly from 0 to 255.


def ends_of_scale(evaluator: Evaluator, held_out: np.ndarray, *, seed: int = 0) -> Ends:
    """Scores held-out images and the same number of noise images."""
    noise = np.random.default_rng(seed).integers(
        0, 256, size=held_out.shape, dtype=np.uint8
    )
    return Ends(data=evaluator.score(held_out), noise=evaluator.score(noise))


def disjoint_halves(
    images: np.ndarray, *, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Returns two disjoint random halves; drops one image if their number is odd."""
    size = len(images) // 2
    if not size:
        raise ValueError(
            f"disjoint_halves got {len(images)} images: it needs at least 2"
        )
    order = np.random.default_rng(seed).permutation(len(images))
    return images[order[:size]], images[order[size : 2 * size]]
