"""Inception score (Salimans et al. 2016): sharp labels that vary over examples."""

from __future__ import annotations

import math

import numpy as np

from workloads.metrics import estimate as estimate_lib
from workloads.metrics.moments import check_features

NUM_SPLITS = 10
INTERVAL = "Student's t over splits"
NO_INTERVAL = "no interval: one split gives no information on the spread"


def inception_score(
    logits: np.ndarray, *, num_splits: int = NUM_SPLITS
) -> estimate_lib.Estimate:
    """Estimates exp(E_x KL(p(y|x) || p(y))), from 1 to the number of classes.

    The examples are split into ``num_splits`` equal parts, in the given order; p(y) is
    the mean of p(y|x) over a part, and the score is the mean over parts. The published
    +- is the standard deviation over parts; the interval here is that of their mean. A
    score depends on the examples per part, and fewer give a smaller score, so both
    numbers are reported.
    """
    logits = check_features(logits)
    if not 1 <= num_splits <= len(logits):
        raise ValueError(
            f"num_splits={num_splits!r} must be between 1 and the {len(logits)} "
            "examples"
        )
    log_probabilities = _log_softmax(logits.astype(np.float64))
    ends = [i * len(logits) // num_splits for i in range(1, num_splits)]
    scores = [_score(part) for part in np.split(log_probabilities, ends)]
    if num_splits == 1:
        half_width, method = None, NO_INTERVAL
    else:
        quantile = estimate_lib.student_quantile(num_splits - 1)
        half_width = quantile * float(np.std(scores, ddof=1)) / math.sqrt(num_splits)
        size = len(logits) // num_splits
        method = f"{INTERVAL}; {num_splits} of {size} examples"
    return estimate_lib.estimate(
        "inception_score",
        float(np.mean(scores)),
        half_width,
        num_examples=len(logits),
        method=method,
    )


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _score(log_probabilities: np.ndarray) -> float:
    probabilities = np.exp(log_probabilities)
    marginal = probabilities.mean(axis=0)
    # A class of probability zero in the whole part adds 0 log 0 = 0.
    log_marginal = np.log(marginal, out=np.zeros_like(marginal), where=marginal > 0)
    divergences = (probabilities * (log_probabilities - log_marginal)).sum(axis=1)
    return float(np.exp(divergences.mean()))
