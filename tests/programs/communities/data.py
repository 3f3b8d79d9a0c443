"""Numbers that the programs of this folder train on."""

from __future__ import annotations

from typing import Any

import numpy as np

NUM_EXAMPLES = 20  # no multiple of a batch: the last one is smaller
GLOBAL_BATCH = 8


def regression() -> tuple[Any, Any]:
    numbers = np.random.default_rng(0)
    x = numbers.normal(size=(NUM_EXAMPLES, 4)).astype(np.float32)
    return x, np.tanh(x.sum(axis=1, keepdims=True))


def weights_of(model: Any) -> list[Any]:
    return [np.asarray(variable.numpy()) for variable in model.trainable_variables]
