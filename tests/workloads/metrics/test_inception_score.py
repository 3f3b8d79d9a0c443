"""Inception score against closed forms and published implementations.

The published numbers: see ``test_fid.py``.
"""

import numpy as np
import pytest
import scipy.stats

from workloads.metrics.inception_score import inception_score


@pytest.mark.parametrize("num_splits", [1, 5])
def test_the_ends_of_the_scale(num_splits):
    """Sure and even over 10 classes is 10; never sure, or always one class, is 1."""
    sure = 1e3 * np.tile(np.eye(10), (20, 1))
    never = np.zeros((200, 10))
    one_class = 1e3 * np.tile(np.eye(10)[:1], (200, 1))

    scores = [
        inception_score(x, num_splits=num_splits) for x in (sure, never, one_class)
    ]

    assert pytest.approx([10.0, 1.0, 1.0], rel=1e-12) == [s.value for s in scores]


def test_two_kinds_of_examples_have_their_closed_form():
    """Half p, half its mirror image: exp(log 2 - H(p)) for two classes."""
    p = 0.8
    logits = np.log([[p, 1 - p], [1 - p, p]] * 10)
    expected = np.exp(np.log(2) - scipy.stats.entropy([p, 1 - p]))

    score = inception_score(logits + 7.0, num_splits=2)  # a constant changes nothing

    assert pytest.approx(expected, rel=1e-12) == score.value
    assert pytest.approx(score.value) == score.low


@pytest.mark.parametrize("source", ["torch_fidelity", "tensorflow_gan"])
def test_the_score_is_the_published_one(source, golden_features, goldens):
    """Fixed logits give the mean over splits of torch-fidelity and TF-GAN.

    Their +- is the standard deviation over k splits; the interval is t / sqrt(k - 1)
    of that to each side.
    """
    num_splits = golden_features.NUM_SPLITS
    spread = goldens[source]["inception_score_std"]
    quantile = scipy.stats.t.ppf(0.975, num_splits - 1)

    score = inception_score(golden_features.logits(), num_splits=num_splits)

    assert score.high is not None
    assert pytest.approx(goldens[source]["inception_score"], rel=1e-6) == score.value
    half_width = score.high - score.value
    assert (
        pytest.approx(quantile * spread / np.sqrt(num_splits - 1), rel=1e-4)
        == half_width
    )
    assert "Student's t over splits; 5 of 100 examples" == score.method


def test_one_split_has_no_interval():
    """The reason stands in its place."""
    score = inception_score(np.eye(3), num_splits=1)

    assert not score.has_interval
    assert "one split gives no information on the spread" in score.method


@pytest.mark.parametrize("num_splits", [0, 4])
def test_impossible_splits_are_refused(num_splits):
    with pytest.raises(ValueError, match="must be between 1 and the 3 examples"):
        inception_score(np.eye(3), num_splits=num_splits)
