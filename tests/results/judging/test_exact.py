"""Counts of a gate: exact where every run has the same, and no verdict elsewhere."""

from types import SimpleNamespace

import pytest

from results.judging import exact
from results.statistics.judge import Verdict


def case(*values):
    return SimpleNamespace(
        entries=[
            SimpleNamespace(
                state="ok",
                trial=SimpleNamespace(
                    result=SimpleNamespace(
                        window_metrics=[SimpleNamespace(name="bytes", value=value)]
                    )
                ),
            )
            for value in values
        ]
    )


@pytest.mark.parametrize(
    ("before", "after", "verdict", "rise"),
    [
        (1000, 1000, Verdict.PASS, 0.0),
        (1000, 1001, Verdict.REGRESS, 0.001),
        (1000, 900, Verdict.IMPROVE, -0.1),
        (0, 0, Verdict.PASS, None),
        (0, 1, Verdict.REGRESS, None),
    ],
)
def test_any_rise_is_a_regression(before, after, verdict, rise):
    """However small: equal code counts the same."""
    found, reason = exact.count_of(case(after, after), case(before, before), "bytes")

    assert found is not None
    assert "" == reason
    assert (verdict, 2) == (found.verdict, found.n)
    assert rise == (None if found.rise is None else pytest.approx(found.rise))


@pytest.mark.parametrize(
    ("here", "there", "reason"),
    [
        ((5, 5), (5, 6), "it varies between runs of the baseline, from 5 to 6, so it"),
        ((4, 5), (5, 5), "it varies between runs of this tree, from 4 to 5, so it is"),
        ((5,), (6,), "1 run(s) of a side have it, and 2 show whether it is the same"),
        ((), (6, 6), "no run of this tree has it"),
    ],
)
def test_what_is_no_count_has_no_verdict(here, there, reason):
    """It is never taken for one, nor averaged."""
    found, why = exact.count_of(case(*here), case(*there), "bytes")

    assert found is None
    assert reason in why
