"""Numbers, cells and names as they are read: few digits, units, nothing computed."""

import csv
import io
import math

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.catalog import BACKENDS, PEERS
from reports.page.sections import learning
from reports.view.view import view_store
from reports.words import cells, formats, names, ratio_table
from results.records import quality_records
from results.records.models import MetricFacts, QualityMetric
from results.statistics.estimates import Estimate


def _plain(text):
    return text.replace(formats.THIN_SPACE, " ").replace(formats.HARD_SPACE, " ")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (46.75, "46.8"),
        (1234.5, "1 234"),
        (0.01234, "0.0123"),
        (0, "0"),
        (9.999, "10.0"),
    ],
)
def test_significant_digits(value, expected):
    assert expected == _plain(formats.significant(value))


def test_times_below_one_second_have_three_digits_in_ms_unit():
    assert _plain(formats.seconds(0.3021)) == "302 ms"
    assert _plain(formats.seconds(12.34)) == "12.3 s"


def test_nothing_is_less_than_zero_by_rounding():
    """A part of a step of -0.001 % is 0 %, and one of -0.6 % is -1 %."""
    assert "0 %" == _plain(formats.percent(-1e-5)) == _plain(formats.percent(0.0))
    assert ("-1 %", "0.00") == (_plain(formats.percent(-0.006)), formats.ratio(-1e-3))


def test_no_p_value_is_zero():
    """A test that certain has a bound."""
    assert formats.p_value(0.0004) == formats.p_value(0.0) == "< 0.001"
    assert formats.p_value(0.0416) == "0.042"


def test_the_unit_of_an_interval_is_that_of_its_figure():
    """Unless its ends have two."""
    assert _plain(formats.with_interval(0.9, 0.88, 0.92, formats.percent)) == (
        "90 % [88, 92]"
    )
    assert _plain(formats.interval(0.99, 1.1, formats.seconds)) == "[990 ms, 1.10 s]"


@pytest.mark.parametrize(
    "text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", " =1", "\r=1"]
)
def test_a_formula_becomes_text(text):
    made = cells.as_csv(pd.DataFrame({"study": [text]}))
    (_, row) = csv.reader(io.StringIO(made, newline=""))

    assert [f"'{text}"] == row


@pytest.mark.parametrize("value", ["in_graph", "-0.5", "+3.2 %", "-1e-05", -0.5, 3, ""])
def test_numbers_and_words_stay(value):
    assert value == cells.inert(value)


def test_every_backend_of_the_catalogue_is_described():
    """None is said to be a stranger's."""
    unknown = names.backend("nobody's")

    assert [] == [of for of in (*BACKENDS, *PEERS) if names.backend(of) == unknown]


@given(log=st.floats(-1, 1), below=st.floats(0, 0.5), above=st.floats(0, 0.5))
def test_a_direction_in_words_has_no_sign_of_its_own(log, below, above):
    """The ends of the interval are in order, and the value is among them."""
    low, high = math.exp(log - below), math.exp(log + above)
    found = formats.longer(
        Estimate(value=math.exp(log), low=low, high=high, n=5, unit="", method="")
    )
    figures, _, word = found.rpartition(" ")
    value, _, ends = figures.partition(" ")
    first, last = (float(of) for of in ends.strip("[]").split(","))

    assert word == ("shorter" if math.exp(log) < 1 else "longer")
    assert 0 <= first <= last or first <= 0 <= last
    assert first <= float(value.split(formats.THIN_SPACE)[0]) <= last


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
    assert ratio_table.axis_of(score()) == ratio_table.axis_of(
        score(value=9.0, low=8.0, high=10.0)
    )
    assert ["FID"] == list(
        ratio_table.titles([ratio_table.axis_of(score())] * 2, METRICS).values()
    )


@pytest.mark.parametrize(
    "changes",
    [{"num_examples": 50_000}, {"protocol": PROTOCOL.replace("aaaa", "cccc")}],
)
def test_another_n_or_extractor_is_another_axis(changes):
    """Titles are numbered, and the sentence has both sides of the difference."""
    both = [ratio_table.axis_of(score()), ratio_table.axis_of(score(**changes))]

    titles = list(ratio_table.titles(both, METRICS).values())
    sentence = ratio_table.explain(both[0], both)

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

    assert ratio_table.axis_of(few) == ratio_table.axis_of(many)
    assert "" == ratio_table.explain(
        ratio_table.axis_of(few), [ratio_table.axis_of(few)]
    )


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

    for part in (learning.render_quality(view), learning.render_learning(view)):
        assert 1 == part.count("<h3>FID (protocol 1 of 2)</h3>")
        assert 1 == part.count("<h3>FID (protocol 2 of 2)</h3>")
        assert "here extractor digits aaaa, there extractor digits cccc." in part
