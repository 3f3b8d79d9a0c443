"""Scores that were made differently are drawn apart, with the difference named."""

import pytest

from reports.page.sections import learning, quality
from reports.view.view import view_store
from reports.words import axes, formats
from results.records import quality_records
from results.records.models import MetricFacts, QualityMetric

METRICS = {
    facts["name"]: MetricFacts(**facts)
    for facts in quality_records.of_workload("sngan")
}
PROTOCOL = "all pairs; extractor digits aaaa; reference digits/test, n = 359, bbbb"


def score(**changes):
    fields = {
        "name": "fid",
        "value": 3.25,
        "unit": "1",
        "num_examples": 500,
        "low": 3.0,
        "high": 3.5,
        "method": "delta method",
        "protocol": PROTOCOL,
    }
    return QualityMetric.model_validate({**fields, **changes})


def test_one_protocol_is_one_axis():
    assert axes.axis_of(score()) == axes.axis_of(score(value=9.0, low=8.0, high=10.0))
    assert ["FID"] == list(axes.titles([axes.axis_of(score())] * 2, METRICS).values())


@pytest.mark.parametrize(
    "changes",
    [{"num_examples": 50_000}, {"protocol": PROTOCOL.replace("aaaa", "cccc")}],
)
def test_another_n_or_extractor_is_another_axis(changes):
    """Titles are numbered, and the sentence has both sides of the difference."""
    both = [axes.axis_of(score()), axes.axis_of(score(**changes))]

    titles = list(axes.titles(both, METRICS).values())
    sentence = axes.explain(both[0], both)

    assert ["FID (protocol 1 of 2)", "FID (protocol 2 of 2)"] == titles
    assert PROTOCOL in sentence
    difference = (
        "here n = 500, there n = 50000."
        if "num_examples" in changes
        else "here extractor digits aaaa, there extractor digits cccc."
    )
    assert sentence.endswith(difference)


def test_proportions_have_no_protocol():
    """Another n of a proportion is the same axis; nothing is explained."""
    few = score(name="top_1", protocol="", num_examples=10)
    many = score(name="top_1", protocol="", num_examples=1000)

    assert axes.axis_of(few) == axes.axis_of(many)
    assert "" == axes.explain(axes.axis_of(few), [axes.axis_of(few)])


def test_a_score_has_no_unit_to_write():
    """3.25, and neither 325 % nor 3.25 1."""
    assert "3.25" == formats.quality(3.25, "1")


def test_the_report_draws_protocols_apart(tmp_path, synthetic):
    shape = synthetic.Shape(budget=synthetic.LEARNING)
    store = synthetic.make_store(tmp_path, shape)
    other = score(protocol=PROTOCOL.replace("aaaa", "cccc"))
    for trial in store.trials():
        metric = score() if trial.spec.num_replicas == 1 else other
        curve = tuple(
            point.model_copy(update={"quality": (metric,)})
            for point in trial.result.curve
        )
        changed = {"quality": (metric,), "curve": curve}
        store.write_result(trial.trial_id, trial.result.model_copy(update=changed))

    view = view_store(store)

    for part in (quality.render(view), learning.render(view)):
        assert 1 == part.count("<h3>FID (protocol 1 of 2)</h3>")
        assert 1 == part.count("<h3>FID (protocol 2 of 2)</h3>")
        assert "here extractor digits aaaa, there extractor digits cccc." in part
