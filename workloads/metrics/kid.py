"""Kernel distance of features (KID; Bińkowski et al. 2018), unbiased at any n."""

from __future__ import annotations

import math

import numpy as np

from workloads.metrics import estimate as estimate_lib
from workloads.metrics.estimate import check_features

MOST_PER_BLOCK = 10_000
INTERVAL = "delete-one jackknife within disjoint blocks"
DEGREE = 3
_ROWS = 1024
_LEAST_EXAMPLES = 3


def kid(
    generated: np.ndarray,
    reference: np.ndarray,
    *,
    most_per_block: int = MOST_PER_BLOCK,
) -> estimate_lib.Estimate:
    """Estimates the squared maximum mean discrepancy with an interval.

    With k(x, y) = (x^T y / num_features + 1)^3, m generated and n real examples,

        KID = sum_{i != j} k(x_i, x_j) / m(m-1) + sum_{i != j} k(y_i, y_j) / n(n-1)
              - 2 sum_{i, j} k(x_i, y_j) / mn.

    All pairs are used up to ``most_per_block`` examples; more are split into disjoint
    blocks, in the given order, and the value is the mean over blocks: also unbiased,
    and its time grows with n instead of n^2. The published estimate is the mean over
    100 random overlapping blocks of 1,000, and its +- is the spread of those, which is
    not an interval of the value.

    The interval is value -+ 1.96 standard errors. These come from leaving out one
    example at a time (Efron & Stein 1981), generated and real, which the row sums of
    the kernel give exactly without further computation, and are summed over independent
    blocks.

    A value below zero is possible and correct: the estimate is unbiased, so for equal
    distributions it is zero on average.
    """
    generated, reference = check_features(generated), check_features(reference)
    if generated.shape[1] != reference.shape[1]:
        raise ValueError(
            f"features of length {generated.shape[1]} and {reference.shape[1]} cannot "
            "be compared: extract both with the same extractor"
        )
    num_blocks = -(-max(len(generated), len(reference)) // most_per_block)
    least = min(len(generated), len(reference)) // num_blocks
    if least < _LEAST_EXAMPLES:
        raise ValueError(
            f"kid got {len(generated)} generated and {len(reference)} real examples, "
            f"which is {least} in the smallest of {num_blocks} blocks: it needs at "
            f"least {_LEAST_EXAMPLES}; pass more, or raise most_per_block"
        )
    blocks = zip(
        np.array_split(generated, num_blocks),
        np.array_split(reference, num_blocks),
        strict=True,
    )
    values, variances = zip(*(_block(*block) for block in blocks), strict=True)
    standard_error = float(np.sqrt(np.sum(variances))) / num_blocks
    return estimate_lib.estimate(
        "kid",
        float(np.mean(values)),
        estimate_lib.normal_quantile() * standard_error,
        num_examples=len(generated),
        method=f"{INTERVAL}; {num_blocks} of at most {most_per_block} examples",
    )


def _block(generated: np.ndarray, reference: np.ndarray) -> tuple[float, float]:
    """Returns the unbiased estimate of one block and its jackknife variance."""
    first = generated.astype(np.float64)
    second = reference.astype(np.float64)
    m, n = len(first), len(second)
    within_first = _sums(first, first)[0] - _kernel_of_itself(first)
    within_second = _sums(second, second)[0] - _kernel_of_itself(second)
    across_first, across_second = _sums(first, second)
    sum_first, sum_second = within_first.sum(), within_second.sum()
    across = across_first.sum()
    value = (
        sum_first / (m * (m - 1)) + sum_second / (n * (n - 1)) - 2.0 * across / (m * n)
    )
    # The values without generated example i, then without real example j.
    without_first = (
        (sum_first - 2.0 * within_first) / ((m - 1) * (m - 2))
        + sum_second / (n * (n - 1))
        - 2.0 * (across - across_first) / ((m - 1) * n)
    )
    without_second = (
        sum_first / (m * (m - 1))
        + (sum_second - 2.0 * within_second) / ((n - 1) * (n - 2))
        - 2.0 * (across - across_second) / (m * (n - 1))
    )
    variance = (m - 1) * without_first.var() + (n - 1) * without_second.var()
    return float(value), float(variance)


def _kernel(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return (first @ second.T / first.shape[1] + 1.0) ** DEGREE


def _kernel_of_itself(values: np.ndarray) -> np.ndarray:
    squares = np.einsum("ij,ij->i", values, values)
    return (squares / values.shape[1] + 1.0) ** DEGREE


def _sums(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sums of the kernel over ``second`` and over ``first``, in chunks of rows."""
    over_second, over_first = [], np.zeros(len(second))
    for start in range(0, len(first), _ROWS):
        strip = _kernel(first[start : start + _ROWS], second)
        over_second.append(strip.sum(axis=1))
        over_first += strip.sum(axis=0)
    return np.concatenate(over_second), over_first


NUM_SPLITS = 10
SCORE_INTERVAL = "Student's t over splits"
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
        method = f"{SCORE_INTERVAL}; {num_splits} of {size} examples"
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
