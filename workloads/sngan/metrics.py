"""The metrics of SN-GAN: a new one is a new entry here; without TensorFlow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workloads.metric import Metric

if TYPE_CHECKING:
    import numpy as np

_GENERATED = "num_metric_examples generated images"


def is_recognised(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns whether the largest logit is that of the wanted class, bool [n]."""
    is_right: np.ndarray = logits.argmax(axis=-1) == labels
    return is_right


SCORES = (
    Metric(
        name="fid",
        title="FID",
        unit="1",
        protocol=f"{_GENERATED} against the training images",
        is_higher_better=False,
    ),
    Metric(
        name="kid",
        title="KID",
        unit="1",
        protocol=f"{_GENERATED} against the training images",
        is_higher_better=False,
    ),
    Metric(
        name="inception_score",
        title="Inception Score",
        unit="1",
        protocol=_GENERATED,
        is_higher_better=True,
    ),
)
"""Computed by ``workloads/metrics``, which has one more: ``fid_infinity``."""

CLASSIFIED = (
    Metric(
        name="recognised",
        title="Recognised",
        unit="ratio",
        protocol=f"classifier of digits gives the wanted class, of {_GENERATED}",
        is_higher_better=True,
        of=is_recognised,
    ),
)
"""Of the classifier of digits, which was trained on the classes of the data."""

METRICS = SCORES + CLASSIFIED
