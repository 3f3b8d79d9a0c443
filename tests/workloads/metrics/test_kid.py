"""KID against its definition, published implementations and simulation.

The published numbers: see ``test_fid.py``.
"""

import numpy as np
import pytest

from workloads.metrics.kid import kid


def by_definition(first, second):
    """The unbiased estimate, pair by pair."""

    def kernel(x, y):
        return float((x @ y / len(x) + 1) ** 3)

    def within(values):
        pairs = [(x, y) for x in range(len(values)) for y in range(len(values))]
        return float(
            np.mean([kernel(values[i], values[j]) for i, j in pairs if i != j])
        )

    across = np.mean([kernel(x, y) for x in first for y in second])
    return within(first) + within(second) - 2 * float(across)


def test_kid_is_its_definition(rng):
    """All pairs, none with itself, also for unequal counts."""
    first, second = rng.normal(size=(7, 3)), rng.normal(size=(9, 3)) + 0.5

    score = kid(first, second)

    assert pytest.approx(by_definition(first, second), rel=1e-12) == score.value
    assert (score.name, score.unit, score.num_examples) == ("kid", "1", 7)
    assert "delete-one jackknife" in score.method


def test_the_error_is_that_of_leaving_out_each_example(rng):
    """The jackknife from row sums is the one that computes everything anew."""
    first, second = rng.normal(size=(6, 3)), rng.normal(size=(8, 3)) + 0.5
    variance = 0.0
    for values, other in ((first, second), (second, first)):
        left_out = [
            by_definition(np.delete(values, i, axis=0), other)
            for i in range(len(values))
        ]
        variance += (len(values) - 1) * np.var(left_out)

    score = kid(first, second)

    assert score.high is not None
    half_width = score.high - score.value
    assert pytest.approx(1.959964 * np.sqrt(variance), rel=1e-6) == half_width


def test_blocks_average_to_an_unbiased_estimate(rng):
    """Disjoint blocks, in order; the method says how many."""
    first, second = rng.normal(size=(20, 3)), rng.normal(size=(20, 3)) + 0.5
    expected = np.mean(
        [
            by_definition(first[part], second[part])
            for part in np.split(np.arange(20), 2)
        ]
    )

    score = kid(first, second, most_per_block=10)

    assert pytest.approx(expected, rel=1e-12) == score.value
    assert "2 of at most 10 examples" in score.method


@pytest.mark.parametrize("case", ["gaussian", "rectified"])
@pytest.mark.parametrize("source", ["torch_fidelity", "tensorflow_gan"])
def test_kid_is_the_published_one(case, source, golden_features, goldens):
    """Fixed features give the numbers of torch-fidelity and TF-GAN."""
    first, second = golden_features.features(case)

    value = kid(first, second).value

    assert pytest.approx(goldens[source]["kid"][case], rel=1e-9) == value


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_intervals_cover_with_and_without_a_difference(shift):
    """Unbiased, and about 95 % of intervals hold the truth.

    For equal distributions the jackknife is wide (Efron & Stein: its variance is too
    large on average). With 200 draws, 0.90 is three standard errors from 0.95.
    """
    random = np.random.default_rng(5)
    scores = [
        kid(random.normal(size=(60, 8)) + shift, random.normal(size=(80, 8)))
        for _ in range(200)
    ]
    values = np.array([score.value for score in scores])
    # E k(x, y) of normal x ~ N(s, 1), y ~ N(t, 1): moments of u = x^T y / 8.
    truth = _expected(shift, shift) + _expected(0, 0) - 2 * _expected(shift, 0)

    covered = np.mean([s.low <= truth <= s.high for s in scores])

    assert abs(values.mean() - truth) < 4 * values.std() / np.sqrt(len(values))
    assert 0.90 <= covered


def _expected(s, t, num_features=8):
    """E (u + 1)^3 for u = x^T y / d with x ~ N(s, 1), y ~ N(t, 1), by quadrature.

    Given x, u is normal with mean t sum(x) / d and variance |x|^2 / d^2, and sum(x)
    and |x|^2 have known joint moments.
    """
    d = num_features
    a, b = s * d, float(d)  # sum(x) ~ N(a, b)
    first = a
    second = a**2 + b
    third = a**3 + 3 * a * b
    square = d * (1 + s**2)  # E |x|^2
    mixed = sum_times_square(s, d)  # E sum(x) |x|^2
    mean = t * first / d
    mean_square = (t**2 * second + square) / d**2
    mean_cube = (t**3 * third + 3 * t * mixed) / d**3
    return 1 + 3 * mean + 3 * mean_square + mean_cube


def sum_times_square(s, d):
    """E sum_i x_i sum_j x_j^2 for independent x ~ N(s, 1)."""
    return d * (s**3 + 3 * s) + d * (d - 1) * s * (1 + s**2)


def test_wrong_input_is_refused(rng):
    """Too few examples, and features of different length, are errors."""
    with pytest.raises(ValueError, match="length 4 and 3 cannot be compared"):
        kid(rng.normal(size=(9, 4)), rng.normal(size=(9, 3)))
    with pytest.raises(ValueError, match=r"2 generated and 9 real .* at least 3"):
        kid(rng.normal(size=(2, 4)), rng.normal(size=(9, 4)))
    with pytest.raises(ValueError, match="1 in the smallest of 5 blocks"):
        kid(rng.normal(size=(9, 4)), rng.normal(size=(9, 4)), most_per_block=2)
