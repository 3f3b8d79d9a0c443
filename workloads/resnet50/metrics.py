"""The metrics of ResNet-50: a new one is a new entry here; without TensorFlow.

``--help`` reads their names, so NumPy is imported only to measure.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from workloads.metric import Metric

if TYPE_CHECKING:
    import numpy as np


def is_in_top(logits: np.ndarray, labels: np.ndarray, *, k: int) -> np.ndarray:
    """Returns whether each label is among the k largest logits, bool [n].

    Classes that tie at the boundary are all among them. Logits that are not finite
    recognise nothing.
    """
    import numpy as np

    own = np.take_along_axis(logits, labels[:, np.newaxis], axis=1)
    is_near: np.ndarray = (logits > own).sum(axis=1) < k
    return is_near & np.isfinite(logits).all(axis=1)


METRICS = (
    Metric(
        name="top_1",
        title="Top-1 accuracy",
        unit="ratio",
        protocol="labels that have the largest logit, of the whole held-out split",
        is_higher_better=True,
        of=functools.partial(is_in_top, k=1),
    ),
    Metric(
        name="top_5",
        title="Top-5 accuracy",
        unit="ratio",
        protocol="labels among the five largest logits, of the whole held-out split",
        is_higher_better=True,
        of=functools.partial(is_in_top, k=5),
    ),
)
