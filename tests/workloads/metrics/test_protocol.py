"""Scores that were made differently are not put beside each other."""

import dataclasses

import pytest

from workloads.metrics.estimate import Estimate
from workloads.metrics.protocol import MetricProtocol, Score

PROTOCOL = MetricProtocol(
    metric="fid",
    settings="all pairs",
    extractor="digits",
    extractor_digest="a" * 64,
    preparation="8 x 8 as stored",
    num_examples=500,
    reference="digits/test",
    reference_digest="b" * 64,
    num_reference_examples=359,
)
FIGURE = Estimate(
    name="fid",
    value=3.0,
    unit="1",
    num_examples=500,
    low=2.5,
    high=3.5,
    method="delta method",
)
OTHERS = {
    "metric": "kid",
    "settings": "blocks of 100",
    "extractor": "inception",
    "extractor_digest": "c" * 64,
    "preparation": "299 x 299, bilinear",
    "num_examples": 50_000,
    "reference": "digits/train",
    "reference_digest": "d" * 64,
    "num_reference_examples": 1438,
}


def test_every_field_of_the_protocol_is_tried():
    """A new field needs a case here."""
    assert {field.name for field in dataclasses.fields(MetricProtocol)} == set(OTHERS)


@pytest.mark.parametrize("field", sorted(OTHERS))
def test_scores_that_differ_in_one_thing_differ_in_their_records(field):
    """Name, count or description tell reports that they share no axis."""
    other = dataclasses.replace(PROTOCOL, **{field: OTHERS[field]})
    name_and_count = {"metric", "num_examples"}

    assert (field in name_and_count) == (PROTOCOL.describe() == other.describe())


def test_a_record_carries_digests_counts_and_reference():
    """What a workload reports says what it was made with."""
    metric = Score(estimate=FIGURE, protocol=PROTOCOL).as_quality_metric()

    assert (metric.name, metric.value, metric.low, metric.high) == (
        "fid",
        3.0,
        2.5,
        3.5,
    )
    assert metric.num_examples == 500
    assert metric.method == "delta method"
    for part in ("a" * 16, "b" * 16, "8 x 8 as stored", "n = 359"):
        assert part in metric.protocol


def test_a_score_without_interval_is_no_quality_metric():
    """The reason is in the error, and what to do."""
    figure = dataclasses.replace(FIGURE, low=None, high=None, method="no interval: few")

    with pytest.raises(ValueError, match=r"no interval: few: .*report kid"):
        Score(estimate=figure, protocol=PROTOCOL).as_quality_metric()
