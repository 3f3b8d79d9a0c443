"""Scores of generated images, from features that are there."""

import numpy as np
import pytest

from workloads.metrics import scores
from workloads.metrics.estimate import Moments
from workloads.metrics.scores import inception_score

NUM_EXAMPLES = 2_000
NUM_FEATURES = 256


@pytest.fixture(scope="module")
def features():
    """Features as of a network: not negative."""
    generator = np.random.default_rng(0)
    return np.maximum(generator.standard_normal((NUM_EXAMPLES, NUM_FEATURES)), 0.0)


def test_moments_of_2000_examples(benchmark, features):
    """One pass over the features."""
    assert NUM_FEATURES == benchmark(Moments.of, features).num_features


def test_distance_of_256_features(benchmark, features):
    """Eigenvalues of both covariances, and the distance."""
    half = NUM_EXAMPLES // 2
    first, second = Moments.of(features[:half]), Moments.of(features[half:])

    assert benchmark(scores.frechet_distance, first, second) > 0


def test_inception_score_of_2000_examples(benchmark, features):
    """In ten parts."""
    assert benchmark(inception_score, features).value > 1
