"""Figures of metrics and scores of features, against closed forms and definitions.

Published numbers are in ``metrics/goldens.json``, written by ``write_goldens.py`` from
torch-fidelity 0.4.0 (torch 2.15.0) and TF-GAN 2.1.0 (TensorFlow 2.21.0).
"""

import dataclasses
import functools
import json
import math
import pathlib

import numpy as np
import pytest
import scipy.stats
from case_cluster import load
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads import WORKLOADS, metrics
from workloads.metrics import Moments, inception_score, kid

FOLDER = pathlib.Path(__file__).with_name("metrics")
goldens = load(FOLDER.parent / "write_goldens.py")
GOLDENS = json.loads((FOLDER / "goldens.json").read_text(encoding="utf-8"))
WILSON = "Wilson score interval"
METRIC = WORKLOADS["resnet50"].metrics[0]


def test_intervals_are_scipys():
    values = [1.0, 2.0, 4.0, 9.0]
    reference = scipy.stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    metric = metrics.mean(METRIC, values)

    assert (metric.value, metric.num_examples) == (4.0, 4)
    assert tuple(reference) == pytest.approx((metric.low, metric.high))


def test_values_that_are_alike_in_groups_have_the_interval_of_groups():
    of_groups = [1.0, 2.0, 4.0, 9.0]
    expected = metrics.mean(METRIC, of_groups)

    found = metrics.mean(METRIC, np.repeat(of_groups, 3), np.repeat([7, 3, 5, 1], 3))

    assert (expected.value, 4) == (found.value, found.num_examples)
    assert (expected.low, expected.high) == pytest.approx((found.low, found.high))
    assert "over groups of the 12 examples" in found.method


def test_a_large_group_counts_for_more():
    """The mean is that of all values; its interval by hand, as a ratio of two sums."""
    values, groups = np.array([1.0, 1.0, 1.0, 5.0, 6.0]), np.array([0, 0, 0, 1, 2])
    found = metrics.mean(METRIC, values, groups)
    # Sums less the mean times the size: -5.4, 2.2, 3.2; n = 3 groups of 5 values.
    error = np.sqrt((5.4**2 + 2.2**2 + 3.2**2) * 3 / 2) / 5

    assert 2.8 == pytest.approx(found.value)
    assert scipy.stats.t.ppf(0.975, 2) * error == pytest.approx(found.high - 2.8)


def test_examples_of_all_batches_count():
    is_even = dataclasses.replace(METRIC, name="even", of=lambda x: x % 2 == 0)
    itself = dataclasses.replace(METRIC, name="itself", of=lambda x: x)
    batches = [(np.array([1.0, 2.0]),), (np.array([6.0]),)]

    share, mean = metrics.example_metrics([is_even, itself], batches)
    counted = metrics.counted(METRIC, 2.5, num_examples=7)

    assert (share.name, share.value, share.method) == ("even", 2 / 3, WILSON)
    # (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n), with n = 3
    assert (0.2076596, 0.9385081) == pytest.approx((share.low, share.high), rel=1e-6)
    assert (share.num_examples, share.confidence, share.unit) == (3, 0.95, "ratio")
    assert (mean.name, mean.value, mean.num_examples) == ("itself", 3.0, 3)
    assert (2.5, 2.5, 2.5) == (counted.low, counted.value, counted.high)
    assert "counted, not estimated" == counted.method


@pytest.fixture
def rng():
    return np.random.default_rng(20_190_201)


@settings(max_examples=25)
@given(
    size=st.integers(2, 240),
    chunk=st.integers(1, 40),
    mean=st.sampled_from([3.0, 1e8]),
    seed=st.integers(0, 2**16),
)
def test_moments_are_numpys_whatever_the_mean_and_the_chunks(size, chunk, mean, seed):
    offsets = np.random.default_rng(seed).integers(-5, 6, (size, 4)).astype(float)
    found = Moments.of(offsets + mean, chunk_size=chunk)

    np.testing.assert_allclose(found.mean, offsets.mean(axis=0) + mean, rtol=1e-12)
    expected = np.cov(offsets, rowvar=False)
    np.testing.assert_allclose(found.covariance, expected, rtol=1e-6, atol=1e-6)


def rotation(num_features, rng):
    return np.linalg.qr(rng.normal(size=(num_features, num_features)))[0]


def test_rotated_diagonal_gaussians_have_their_closed_form(rng):
    """With shared axes: |m1 - m2|^2 + sum (sqrt l1 - sqrt l2)^2, in any rotation.

    Eigenvalues over twelve decades, and zeros, cost no more than rounding: square roots
    of the eigenvalues of the product would be wrong by 1e-8.
    """
    tiny = np.concatenate([10.0 ** np.linspace(2, -10, 50), np.zeros(14)])
    for first, second, rel in (
        (*rng.uniform(0.01, 9.0, size=(2, 1)), 1e-12),
        (*rng.uniform(0.01, 9.0, size=(2, 64)), 1e-10),
        # Eigenvalues below 64 eps of the largest drown: their roots are below 1e-6.
        (tiny, tiny[::-1] + tiny, 1e-10),
    ):
        axes = rotation(len(first), rng)
        means = rng.normal(size=(2, len(first)))
        expected = ((means[0] - means[1]) ** 2).sum()
        expected += ((np.sqrt(first) - np.sqrt(second)) ** 2).sum()

        one = Moments(mean=means[0], covariance=(axes * first) @ axes.T)
        other = Moments(mean=means[1], covariance=(axes * second) @ axes.T)
        assert pytest.approx(expected, rel=rel) == one.distance(other)
        assert pytest.approx(0.0, abs=1e-10) == one.distance(one)


@pytest.mark.parametrize(
    ("source", "rel"),
    # Both take square roots of eigenvalues of products: 1e-8 where some are zero.
    # TF-GAN drops those below 1e-10, and divides the covariance by n - 1 too.
    [("torch_fidelity", 1e-6), ("tensorflow_gan", 1e-5)],
)
def test_scores_are_the_published_ones(source, rel):
    """Fixed features and logits give the numbers of torch-fidelity and TF-GAN.

    Their +- of the Inception score is the standard deviation over k splits; the
    interval is t / sqrt(k - 1) of that to each side.
    """
    golden = GOLDENS[source]
    for case in ("gaussian", "rectified", "fewer_examples_than_features"):
        first, second = goldens.features(case)
        value = metrics.fid(first, Moments.of(second)).value
        assert pytest.approx(golden["fid"][case], rel=rel) == value
        if case != "fewer_examples_than_features":
            value = kid(first, second).value
            assert pytest.approx(golden["kid"][case], rel=1e-9) == value
    num_splits = goldens.NUM_SPLITS
    score = inception_score(goldens.logits(), num_splits=num_splits)
    factor = scipy.stats.t.ppf(0.975, num_splits - 1) / np.sqrt(num_splits - 1)
    spread = golden["inception_score_std"]
    assert pytest.approx(golden["inception_score"], rel=1e-6) == score.value
    assert pytest.approx(factor * spread, rel=1e-4) == score.high - score.value
    assert "Student's t over splits; 5 of 100 examples" == score.method


def test_intervals_of_the_fid_cover():
    """Of 150 generators' draws, about 95 % of intervals hold the mean FID of that n.

    It has a bias, which is no part of them. With 150 draws, 0.90 and 1 are four
    standard errors from 0.95.
    """
    num_features, num_draws = 8, 150
    random = np.random.default_rng(0)
    real = np.diag(np.linspace(0.2, 1.0, num_features))
    axes = rotation(num_features, random)
    mixing = axes * np.sqrt(np.linspace(0.4, 1.5, num_features))
    mean = np.full(num_features, 0.1)
    reference = Moments(mean=np.zeros(num_features), covariance=real)
    drawn = Moments(mean=mean, covariance=mixing @ mixing.T)
    truth = drawn.distance(reference)

    draws = [
        random.normal(size=(200, num_features)) @ mixing.T + mean
        for _ in range(num_draws)
    ]
    scores = [metrics.fid(draw, reference) for draw in draws]
    values = np.array([score.value for score in scores])

    centre, spread = values.mean(), values.std()
    assert centre - truth > 5 * spread / np.sqrt(num_draws)
    covered = np.mean([score.low <= centre <= score.high for score in scores])
    assert 0.90 <= covered <= 1.0
    widths = np.array([score.high - score.value for score in scores]) / 1.96
    assert 0.85 <= widths.mean() / spread <= 1.3


def test_where_there_is_no_spread_the_reason_stands_in_place_of_an_interval(rng):
    score = metrics.fid(rng.normal(size=(5, 8)), Moments.of(rng.normal(size=(9, 8))))
    # Equal images have covariance zero: |m - m_r|^2 + tr S_r.
    real = Moments(mean=np.zeros(3), covariance=np.eye(3))
    collapsed = metrics.fid(np.ones((10, 3)), real)

    assert math.isnan(score.low)
    assert math.isnan(score.high)
    assert score.method == (
        "no interval: 5 examples for 8 features make the covariance singular"
    )
    assert [6.0] * 3 == pytest.approx([collapsed.low, collapsed.value, collapsed.high])


def by_definition(first, second):
    def kernel(x, y):
        return float((x @ y / len(x) + 1) ** 3)

    def within(values):
        pairs = [(x, y) for x in range(len(values)) for y in range(len(values))]
        return float(
            np.mean([kernel(values[i], values[j]) for i, j in pairs if i != j])
        )

    across = np.mean([kernel(x, y) for x in first for y in second])
    return within(first) + within(second) - 2 * float(across)


def test_kid_and_its_error_are_their_definitions(rng):
    first, second = rng.normal(size=(6, 3)), rng.normal(size=(8, 3)) + 0.5
    variance = 0.0
    for values, other in ((first, second), (second, first)):
        left_out = [
            by_definition(np.delete(values, i, axis=0), other)
            for i in range(len(values))
        ]
        variance += (len(values) - 1) * np.var(left_out)

    score = kid(first, second)

    assert pytest.approx(by_definition(first, second), rel=1e-12) == score.value
    assert (score.name, score.unit, score.num_examples) == ("kid", "1", 6)
    half_width = score.high - score.value
    assert pytest.approx(1.959964 * np.sqrt(variance), rel=1e-6) == half_width


def test_the_ends_of_the_scale():
    sure = 1e3 * np.tile(np.eye(10), (20, 1))
    never = np.zeros((200, 10))
    one_class = 1e3 * np.tile(np.eye(10)[:1], (200, 1))

    for num_splits in (1, 5):
        scores = [
            inception_score(x, num_splits=num_splits) for x in (sure, never, one_class)
        ]
        expected = pytest.approx([10.0, 1.0, 1.0], rel=1e-12)
        assert expected == [s.value for s in scores]
        assert (num_splits == 1) == math.isnan(scores[0].low)


# Calls, and what is said of them; x and y have 4 and 3 features.
REFUSED = r"""
metrics.mean(METRIC, [1.0]) -> 1 value\(s\) of 'top_1': an interval
metrics.mean(METRIC, [1] * 5, [0] * 5) -> got 1 group\(s\) of 'top_1': an interval
metric(name="Top 1") -> 'Top 1' is a column and an option: use small letters
metric(tolerance=5.0) -> 'top_1' has tolerance=5.0: use a ratio between 0 and 1
Moments.of(np.zeros((3, 2, 2))) -> \(3, 2, 2\) must be \[examples, fea
Moments.of(np.zeros((0, 2))) -> at least one of each
Moments.of([[1.0], [np.nan], [np.inf]]) -> 2 of 3 examples are not fin
Moments.of([[1.0, 2.0]]) -> at least 2 examples, but Moments
metrics.fid(x, Moments.of(y)) -> length 4 and 3 cannot be compared
Moments(mean=0, covariance=np.diag([-1, 1])).root -> eigenvalue -1\.0: .*was it made
kid(x, y) -> length 4 and 3 cannot be compared
kid(x[:2], x) -> 2 generated and 23 real .* at least 3
kid(x[:9], x[:9], most_per_block=2) -> 1 in the smallest of 5 blocks
inception_score(np.eye(3), num_splits=0) -> between 1 and the 3 examples
inception_score(np.eye(3), num_splits=4) -> between 1 and the 3 examples
"""


@pytest.mark.parametrize("row", REFUSED.strip().splitlines())
def test_wrong_input_is_refused(rng, row):
    call, _, message = row.partition(" -> ")
    given = {"x": rng.normal(size=(23, 4)), "y": rng.normal(size=(23, 3))}
    given["metric"] = functools.partial(dataclasses.replace, METRIC)
    with pytest.raises(ValueError, match=message):
        eval(call, globals(), given)
