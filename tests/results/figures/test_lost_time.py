"""The parts of a step add up to it; what was not measured is not guessed."""

import dataclasses

import pytest

from results import errors
from results.figures.lost_time import PARTS, Observed, decompose

# A step of 100 ms: 60 alone with 10 of input, 8 contention, 20 communication, 2 more
# input, 4 imbalance, 6 unexplained.
GENERATIONS = range(3)


def _all(milli_sec):
    return {g: (milli_sec + 0.1 * g) / 1000 for g in GENERATIONS}


FULL = Observed(
    case=_all(100),
    baseline=_all(60),
    nosync=_all(80),
    solo=_all(68),
    synthetic=_all(88),
    baseline_synthetic=_all(50),
    without_update=_all(99),
    baseline_without_update=_all(59),
    imbalance=_all(4),
)


def test_every_difference_is_in_its_part():
    """Seconds of each part, from the table in the module's docstring."""
    found = decompose(FULL)
    values = {part.name: part.value_sec for part in found.parts}

    assert tuple(values) == PARTS
    assert values["alone"] == pytest.approx(0.0601)
    assert values["contention"] == pytest.approx(0.008)
    assert values["exposed_communication"] == pytest.approx(0.020)
    assert values["input"] == pytest.approx(0.002)
    assert values["imbalance"] == pytest.approx(0.0041)
    assert values["update"] == pytest.approx(0)
    assert found.num_generations == 3
    assert all(part.reason == "" for part in found.parts)


@pytest.mark.parametrize(
    "missing",
    [(), ("nosync",), ("solo",), ("synthetic",), ("imbalance", "without_update")],
)
def test_the_parts_add_up_to_the_step(missing):
    """Exactly, whatever was measured."""
    observed = dataclasses.replace(FULL, **dict.fromkeys(missing))
    found = decompose(observed)
    total = sum(p.value_sec for p in found.parts if p.value_sec is not None)

    assert found.step.value_sec == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize(
    ("field", "part", "reason"),
    [
        ("nosync", "exposed_communication", "nosync was not measured"),
        ("solo", "contention", "solo was not measured"),
        ("synthetic", "input", "synthetic was not measured"),
        ("baseline_synthetic", "input", "baseline_synthetic was not measured"),
        ("without_update", "update", "without_update was not measured"),
        ("imbalance", "imbalance", "the replicas share a process, or"),
    ],
)
def test_a_part_without_its_control_is_part_of_the_unexplained(field, part, reason):
    """No value, a reason, and the unexplained part names it."""
    found = decompose(dataclasses.replace(FULL, **{field: None}))
    unexplained = found.part("unexplained")

    assert found.part(part).value_sec is None
    assert found.part(part).reason.startswith(reason)
    assert found.part(part).reason.endswith(": part of unexplained")
    assert unexplained.reason == f"includes {part}: not measured"
    assert unexplained.value_sec is not None


def test_input_that_one_replica_waits_for_as_well_is_no_loss():
    """60 ms at one replica and at two, 10 of them input: nothing is lost."""
    found = decompose(
        Observed(
            case=_all(60),
            baseline=_all(60),
            nosync=_all(60),
            solo=_all(60),
            synthetic=_all(50),
            baseline_synthetic=_all(50),
        )
    )

    assert found.part("input").value_sec == pytest.approx(0, abs=1e-12)
    assert found.part("unexplained").value_sec == pytest.approx(0, abs=1e-12)


def test_only_generations_with_all_step_times_are_used():
    """A generation without a control is counted as left out."""
    found = decompose(
        Observed(case=_all(100), baseline=_all(50), nosync={0: 0.08, 2: 0.08})
    )

    assert (found.num_generations, found.num_left_out) == (2, 1)


def test_one_generation_has_no_interval():
    """Its values are shown, and why nothing else is."""
    found = decompose(Observed(case={0: 0.1}, baseline={0: 0.05}, nosync={0: 0.08}))

    assert found.step.value_sec == 0.1
    assert found.step.low_sec is None
    assert found.method == (
        "no interval: one generation tells nothing about other processes"
    )


def test_generations_that_never_met_are_an_error():
    """The message says what a part is made of."""
    with pytest.raises(
        errors.ResultsError,
        match=r"^no generation has all of case, baseline, nosync; a part is the "
        r"difference .*: run the case and its controls in one relay$",
    ):
        decompose(Observed(case={0: 0.1}, baseline={0: 0.05}, nosync={1: 0.08}))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_value_that_is_no_duration_is_an_error(value):
    """The message names the control and the generation."""
    with pytest.raises(
        errors.ResultsError,
        match=r"^solo has .* seconds per step in generation 7, must be finite and "
        r"positive; leave out trials that are not ok$",
    ):
        decompose(Observed(case={7: 0.1}, baseline={7: 0.05}, solo={7: value}))
