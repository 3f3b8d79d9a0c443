"""Which of several backends is faster: tested together, and labelled."""

import pytest

from results.figures import comparisons
from results.records.models import ScalingMode
from results.study import cases

WEAK = ScalingMode.WEAK


def _found(root, synthetic, **fields):
    shape = synthetic.Shape(**fields)
    study = cases.load_study(synthetic.make_store(root, shape))
    return comparisons.of_study(study)


@pytest.mark.parametrize(
    ("p_values", "expected"),
    [
        ([0.03, 0.04], [False, False]),
        ([0.02, 0.04], [True, True]),
        ([0.02, 0.06], [True, False]),
    ],
)
def test_a_difference_must_hold_among_all_ratios(
    tmp_path, synthetic, monkeypatch, p_values, expected
):
    """Alone, each of 0.03 and 0.04 would be a difference; of two, neither is."""
    given = iter(p_values)
    monkeypatch.setattr(comparisons, "_p_value", lambda _: next(given))
    found = _found(tmp_path, synthetic, modes=(WEAK,), replicas=(1, 2))

    assert len(p_values) == len(found)
    assert {len(p_values)} == {item.num_compared for item in found}
    assert expected == [item.holds for item in found]


@pytest.mark.parametrize("num_rounds", [0, 4])
def test_what_holds_is_also_outside_its_own_interval(tmp_path, synthetic, num_rounds):
    """The p-value is of the same mean and spread as the interval shown."""
    found = _found(tmp_path, synthetic, noise=0.02, repeats=4, num_rounds=num_rounds)
    alone = [comparisons._p_value(item) for item in found]

    assert any(value is not None for value in alone)
    for item, value in zip(found, alone, strict=True):
        assert value is not None
        assert item.ratio.excludes(1.0) == (value < 0.05)
        assert not item.holds or item.ratio.excludes(1.0)


def test_one_repetition_tests_nothing(tmp_path, synthetic):
    """Nothing holds, and nothing counts in the set."""
    found = _found(tmp_path, synthetic, repeats=1)

    assert not any(item.holds for item in found)
    assert {1} == {item.num_compared for item in found}
