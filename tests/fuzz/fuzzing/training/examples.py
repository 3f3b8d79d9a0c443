"""Which examples a step gives to which replica, as the documentation says."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from fuzzing.training import syntax


def make_data(training: syntax.Training) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([3, training.seed])
    x = rng.uniform(-1.5, 1.5, (training.inputs.num_examples, 2))
    t = rng.uniform(-1.5, 1.5, (training.inputs.num_examples, 1))
    return x.astype(training.dtype), t.astype(training.dtype)


def parts_of(
    inputs: syntax.Inputs, batch: int, num_replicas: int, start: int
) -> list[np.ndarray] | None:
    """Examples of each replica in the step that begins at one; None at the end."""
    stop = min(start + batch, inputs.num_examples)
    own = np.arange(start, stop)
    if not len(own) or (len(own) < batch and not inputs.is_split):
        return None
    if not inputs.is_split:
        # Each pipeline shards before it batches; one pipeline deals whole batches.
        if inputs.mode == "PER_REPLICA":
            return [own[r::num_replicas] for r in range(num_replicas)]
        return list(np.split(own, num_replicas))
    cuts = [len(own) * r // num_replicas for r in range(num_replicas + 1)]
    return [own[a:b] for a, b in itertools.pairwise(cuts)]
