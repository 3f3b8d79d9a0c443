"""Numbers, cells and names as they are read: few digits, units, nothing computed."""

import csv
import io
import json
import math
import re

import pandas as pd
import pytest
from command_lines import written
from hypothesis import given
from hypothesis import strategies as st

from harness import main
from reports import as_csv, build_report, render_section, view_store
from results import Estimate, QualityMetric


def estimate(value, low, high):
    return Estimate(value=value, low=low, high=high, n=4, unit="", method="")


NUMBERS = """
significant(46.75) -> 46.8
significant(1234.5) -> 1 234
significant(0.01234) -> 0.0123
significant(0) -> 0
significant(9.999) -> 10.0
# A hundred zeros leave no room for a figure; the unit of a metric can be long.
significant(1e100) -> 1.00e+100
significant(1e-300) -> 1.00e-300
significant(inf) -> inf
percent(-1e99)[:3] -> -1.
times(1e100)[:5] -> 1.00e
seconds(0.3021) -> 302 ms
seconds(12.34) -> 12.3 s
# Nothing is less than zero by rounding: -0.001 % is 0 %, and -0.6 % is -1 %.
percent(-1e-5) -> 0 %
percent(0.0) -> 0 %
percent(-0.006) -> -1 %
ratio(-1e-3) -> 0.00
# Small changes have no sign of their own.
signed_percent(-1e-5) -> 0.0 %
signed_percent(-0.05) -> -5.0 %
# No p-value is zero.
p_value(0.0004) -> < 0.001
p_value(0.0) -> < 0.001
p_value(0.0416) -> 0.042
# The unit of an interval is its figure's, unless its ends have two.
with_interval(0.9, 0.88, 0.92, formats.percent) -> 90 % [88, 92]
interval(0.99, 1.1, formats.seconds) -> [990 ms, 1.10 s]
# A score has no unit to write: neither 325 % nor 3.25 1.
quality(3.25, '1') -> 3.25
# Digits follow the interval, so that they tell its ends.
estimate(of(0.062, 0.058, 0.064), formats.percent) -> 6.2 % [5.8, 6.4]
estimate(of(0.8, 0.5, 1.3), formats.percent) -> 80 % [50, 130]
estimate(of(1.5701, 0.95, 2.59), formats.times)\
 -> 1.57\N{MULTIPLICATION SIGN} [0.95, 2.59]
estimate(of(1.0012, 1.0009, 1.0015), formats.times)\
 -> 1.0012\N{MULTIPLICATION SIGN} [1.0009, 1.0015]
estimate(of(862.0, 861.7, 862.4), formats.significant) -> 862.0 [861.7, 862.4]
estimate(of(7.821, 7.819, 7.823), formats.seconds) -> 7.821 s [7.819, 7.823]
measured(of(861.83, 861.67, 861.99), 'return') | join(' ')\
 -> 861.8 return [861.7, 862.0]
measured(of(861.83, 640.0, 862.0), 'return') | join(' ') -> 862 return [640, 862]
measured(of(861.83, 861.83, 861.83), 'return') | join(' ') -> 862 return [862, 862]
measured(of(861.83, 861.829999, 861.830001), 'return') | join(' ')\
 -> 861.830 return [861.830, 861.830]
# Ratios keep their percentages.
measured(of(0.9, 0.89, 0.91), 'ratio') | join(' ') -> 90 % [89, 91]
"""


@pytest.mark.parametrize("row", [row for row in NUMBERS.splitlines() if " -> " in row])
def test_numbers_have_few_digits_and_their_units(row):
    expression, _, expected = row.partition(" -> ")

    assert expected == written(expression, inf=math.inf, of=estimate)


@pytest.mark.parametrize(
    "text", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", " =1", "\r=1"]
)
def test_a_formula_becomes_text(text):
    made = as_csv(pd.DataFrame({"study": [text]}))
    (_, row) = csv.reader(io.StringIO(made, newline=""))

    assert [f"'{text}"] == row


@pytest.mark.parametrize("value", ["in_graph", "-0.5", "+3.2 %", "-1e-05", -0.5, 3, ""])
def test_numbers_and_words_stay(value):
    made = as_csv(pd.DataFrame({"study": [value]}))
    (_, row) = csv.reader(io.StringIO(made, newline=""))

    assert [str(value)] == row


def test_every_backend_of_the_catalogue_is_described(make, synthetic, capsys):
    main(("list", "backends", "--json"))
    listed = json.loads(capsys.readouterr().out)["backends"]
    backends = (*(row["name"] for row in listed), "nobodys")
    fields = {"modes": (synthetic.WEAK,), "replicas": (1,), "repeats": 1}
    store = make(backends=backends, **fields)

    assert 1 == build_report(store).count("<dd>a backend of an installed package</dd>")


@given(log=st.floats(-1, 1), below=st.floats(0, 0.5), above=st.floats(0, 0.5))
def test_a_direction_in_words_has_no_sign_of_its_own(log, below, above):
    low, high = math.exp(log - below), math.exp(log + above)
    change = estimate(math.exp(log), low, high)
    figures, _, word = written("longer(change)", change=change).rpartition(" ")
    value, _, ends = figures.partition(" % ")
    first, last = (float(of) for of in ends.strip("[]").split(","))

    assert word == ("shorter" if math.exp(log) < 1 else "longer")
    assert 0 <= first <= last or first <= 0 <= last
    assert first <= float(value) <= last


PROTOCOL = "all pairs; extractor digits aaaa; reference digits/test, n = 359, bbbb"
OTHER = PROTOCOL.replace("aaaa", "cccc")


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


@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        ({}, {"value": 9.0, "low": 8.0, "high": 10.0}, ""),
        # Another n of a proportion is the same axis.
        (
            {"name": "top_1", "protocol": "", "num_examples": 10},
            {"name": "top_1", "protocol": "", "num_examples": 1000},
            "",
        ),
        (
            {"name": "rate_of_mine", "protocol": ""},
            {"name": "rate_of_mine", "protocol": ""},
            "",
        ),
        ({}, {"num_examples": 50_000}, "here n = 500, there n = 50000."),
        (
            {},
            {"protocol": OTHER},
            "here extractor digits aaaa, there extractor digits cccc.",
        ),
    ],
)
def test_another_protocol_is_another_axis(
    tmp_path, synthetic, first, second, difference
):
    """In a table after the timed steps, and in figures of quality runs."""
    shape = synthetic.Shape(
        backends=("in_graph",),
        modes=(synthetic.WEAK,),
        repeats=1,
        budget=synthetic.LEARNING,
    )
    store = synthetic.make_store(tmp_path, shape)
    for trial in store.trials():
        metric = score(**(first if trial.spec.num_replicas == 1 else second))
        update = {"quality": (metric,)}
        curve = tuple(point.model_copy(update=update) for point in trial.result.curve)
        result = trial.result.model_copy(update=update | {"curve": curve})
        store.write_result(trial.trial_id, result)
    view = view_store(store)
    numbers = [" (protocol 1 of 2)", " (protocol 2 of 2)"] if difference else [""]

    for slug in ("quality", "learning"):
        shown = render_section(slug, view)
        titles = re.findall(
            r">(?:FID|Top-1 accuracy|Rate of mine)( \([^<]*\))?<", shown
        )
        assert numbers == titles
        assert ("protocol" in first) == (f"Computed with: {PROTOCOL}" not in shown)
        assert bool(difference) == ("Not comparable with another figure" in shown)
        assert difference in shown
