"""Mean and covariance from batches: exact, whatever the order, place and offset."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.metrics.moments import Moments

RTOL_FLOAT64 = 1e-12  # a few thousand additions


def test_moments_are_numpys(rng):
    """Mean and unbiased covariance, in float64 although features are float32."""
    features = rng.normal(size=(9000, 5)).astype(np.float32)

    moments = Moments.of(features)

    expected = features.astype(np.float64)
    np.testing.assert_allclose(moments.mean, expected.mean(axis=0), rtol=RTOL_FLOAT64)
    np.testing.assert_allclose(
        moments.covariance,
        np.cov(expected, rowvar=False),
        rtol=RTOL_FLOAT64,
        atol=RTOL_FLOAT64,
    )
    assert (moments.num_examples, moments.num_features) == (9000, 5)


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    seed=st.integers(0, 2**16),
)
def test_replicas_merge_to_the_moments_of_all(sizes, seed):
    """However examples are dealt to replicas, the merged moments are the same."""
    generator = np.random.default_rng(seed)
    parts = [generator.normal(3.0, 2.0, size=(size, 4)) for size in sizes]
    whole = Moments.of(np.concatenate(parts))

    merged = Moments.merged(Moments.of(part) for part in reversed(parts))

    assert merged.num_examples == sum(sizes)
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=RTOL_FLOAT64)
    np.testing.assert_allclose(merged.scatter, whole.scatter, rtol=1e-10, atol=1e-9)


def test_a_large_mean_costs_no_digits(rng):
    """At mean 1e8 and spread 1, sum(x x^T) - n mean mean^T would have no digit left."""
    offsets = rng.integers(-5, 6, size=(400, 3)).astype(np.float64)
    expected = np.cov(offsets, rowvar=False)

    batches = np.split(offsets + 1e8, 8)
    merged = Moments.merged(Moments.of(batch) for batch in batches)
    naive = sum(batch.T @ batch for batch in batches)
    naive = (naive - 400 * np.outer(merged.mean, merged.mean)) / 399

    np.testing.assert_allclose(merged.covariance, expected, rtol=1e-6, atol=1e-6)
    assert np.abs(naive - expected).max() > 0.1


def test_one_example_has_no_covariance():
    """The error says how many are needed."""
    with pytest.raises(ValueError, match="at least 2 examples, but Moments has 1"):
        _ = Moments.of([[1.0, 2.0]]).covariance


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.zeros((3, 2, 2)), r"shape \(3, 2, 2\) must be \[examples, features\]"),
        (np.zeros((0, 2)), "at least one of each"),
        (np.array([[1.0], [np.nan], [np.inf]]), "2 of 3 examples are not finite"),
    ],
)
def test_wrong_features_are_refused(features, message):
    """Rank, emptiness and numbers that are not finite are errors of one line."""
    with pytest.raises(ValueError, match=message):
        Moments.of(features)


def test_features_of_two_extractors_do_not_merge():
    """Both lengths are in the error; so is what to do without any part."""
    with pytest.raises(ValueError, match="of 2 and of 3 features cannot be merged"):
        Moments.of(np.zeros((2, 2))).merge(Moments.of(np.zeros((2, 3))))
    with pytest.raises(ValueError, match="got no parts: pass the moments"):
        Moments.merged([])
