"""The parts of a step: they add up to it, come from the right turns, and are judged."""

import dataclasses

import numpy as np
import pytest
from relay_study import ALL, Lost, RelayShape, make_store

from results import errors
from results.figures import explain, lost_time
from results.figures.lost_time import PARTS, Observed, decompose
from results.records.models import Control
from results.study.cases import load_study

# A step of 100 ms: 60 alone with 10 of input, 8 contention, 20 communication, 2 more
# input, 4 imbalance, 6 unexplained.
OF_FULL = range(3)


def _all(milli_sec):
    return {g: (milli_sec + 0.1 * g) / 1000 for g in OF_FULL}


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


def test_one_generation_has_no_interval():
    """Its values are shown, and why nothing else is."""
    found = decompose(Observed(case={0: 0.1}, baseline={0: 0.05}, nosync={0: 0.08}))

    assert found.step.value_sec == 0.1
    assert found.step.low_sec is None
    assert found.method == (
        "no interval: one generation tells nothing about other processes"
    )


def test_generations_that_never_met_are_an_error():
    with pytest.raises(
        errors.ResultsError,
        match=r"^no generation has all of case, baseline, nosync; a part is the "
        r"difference .*: run the case and its controls in one relay$",
    ):
        decompose(Observed(case={0: 0.1}, baseline={0: 0.05}, nosync={1: 0.08}))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_value_that_is_no_duration_is_an_error(value):
    with pytest.raises(
        errors.ResultsError,
        match=r"^solo has .* seconds per step in generation 7, must be finite and "
        r"positive; leave out trials that are not ok$",
    ):
        decompose(Observed(case={7: 0.1}, baseline={7: 0.05}, solo={7: value}))


# Noise of 3 % that the cases of a generation share, and 0.05 % between processes.
TOLERANCE_SEC = 0.0012


def study_of(root, shape):
    return load_study(make_store(root, shape))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return study_of(tmp_path_factory.mktemp("relay"), RelayShape())


def parts_of(found):
    assert found.lost is not None
    return {part.name: part.value_sec for part in found.lost.parts}


@pytest.mark.parametrize(
    ("slow", "part"),
    [
        (Lost(exposed_communication=0.010), "exposed_communication"),
        (Lost(exposed_communication=0.0, input=0.014), "input"),
        (Lost(exposed_communication=0.0, contention=0.010), "contention"),
    ],
)
def test_ten_milliseconds_are_found_in_their_part(tmp_path, slow, part):
    """Its interval holds 10 ms, and those of the others what they have."""
    study = study_of(tmp_path, RelayShape(lost={"in_graph": slow}, rounds=4))
    (found,) = explain.explain(study)
    expected = {
        "alone": slow.alone,
        "contention": slow.contention,
        "exposed_communication": slow.exposed_communication,
        "input": slow.input - slow.input_alone,
        "unexplained": 0.0,
    }

    values = parts_of(found)
    assert values["imbalance"] is values["update"] is None
    assert pytest.approx(0.010, abs=TOLERANCE_SEC) == values[part]
    for name, seconds in expected.items():
        assert pytest.approx(seconds, abs=3 * TOLERANCE_SEC) == values[name]
    assert 4 == found.lost.num_generations


@pytest.mark.parametrize(
    ("slow", "expected"),
    [
        (Lost(update=0.013), 0.010),
        (Lost(update=0.0, update_alone=0.0, exposed_communication=0.010), 0.0),
        (Lost(update=0.0, update_alone=0.0, input=0.014), 0.0),
    ],
)
def test_the_update_is_measured_by_its_own_control(tmp_path, slow, expected):
    """10 ms in it are found there, and 10 ms elsewhere are not."""
    shape = RelayShape(
        lost={"in_graph": slow}, rounds=4, controls=(*ALL, Control.NO_UPDATE)
    )
    (found,) = explain.explain(study_of(tmp_path, shape))
    values = parts_of(found)
    lost = {
        "input": slow.input - slow.input_alone,
        "exposed_communication": slow.exposed_communication,
    }

    assert pytest.approx(expected, abs=TOLERANCE_SEC) == values["update"]
    assert pytest.approx(slow.alone, abs=3 * TOLERANCE_SEC) == values["alone"]
    for name, seconds in lost.items():
        assert pytest.approx(seconds, abs=TOLERANCE_SEC) == values[name]
    assert pytest.approx(0.0, abs=3 * TOLERANCE_SEC) == values["unexplained"]


def test_one_replica_without_its_update_explains_nothing(tmp_path):
    """As where the control failed at N replicas: there is no part to show."""
    failed = frozenset((Control.NO_UPDATE, 2, g) for g in range(4))
    shape = RelayShape(controls=(Control.NO_UPDATE,), not_ok=failed)

    assert () == explain.explain(study_of(tmp_path, shape))


def test_imbalance_is_measured_where_each_replica_has_a_process(tmp_path):
    """Slowest less fastest process of nosync."""
    shape = RelayShape(
        backends=("multi_worker",), num_ranks=2, imbalance=0.010, noise=0.0
    )
    (found,) = explain.explain(study_of(tmp_path, shape))

    assert pytest.approx(0.010, abs=TOLERANCE_SEC) == parts_of(found)["imbalance"]


def test_a_generation_without_a_control_is_left_out_and_counted(tmp_path):
    """The other generations still tell the parts."""
    shape = RelayShape(not_ok=frozenset({(Control.NOSYNC, 2, 1)}))
    (found,) = explain.explain(study_of(tmp_path, shape))

    assert found.lost is not None
    assert (3, 1) == (found.lost.num_generations, found.lost.num_left_out)


def test_a_control_that_always_failed_is_not_guessed(tmp_path):
    """Its part says that it was not measured, and its time is unexplained."""
    failed = frozenset((Control.NOSYNC, 2, g) for g in range(4))
    (found,) = explain.explain(study_of(tmp_path, RelayShape(not_ok=failed)))

    assert found.lost is not None
    assert "nosync was not measured" in found.lost.part("exposed_communication").reason
    assert pytest.approx(0.010, abs=TOLERANCE_SEC) == parts_of(found)["unexplained"]


def test_void_turns_are_in_no_mean(study):
    """The steps of a void turn are skipped, not those of its repetition."""
    results = [entry.result for entry in study.planned]
    void = [result for result in results if any(not t.is_valid for t in result.turns)]

    assert void
    for result in void:
        rounds = explain.rounds_of(result)
        assert set(result.rates) == set(rounds)
        for turn in result.turns:
            if turn.is_valid:
                step = max(rounds[turn.round_index])
                assert pytest.approx(turn.time_sec / turn.num_steps, 1e-6) == step


@pytest.mark.parametrize("replicas", [(1, 2), (1, 2, 4)])
def test_solo_explains_every_backend_of_its_size(tmp_path, replicas):
    """Programs that never communicate are the same for all; other sizes have none."""
    shape = RelayShape(
        backends=("in_graph", "tf_mirrored"),
        replicas=replicas,
        controls=(Control.SOLO,),
    )
    found = explain.explain(study_of(tmp_path, shape))

    assert [("in_graph", replicas[-1]), ("tf_mirrored", replicas[-1])] == [
        (item.case.spec.backend, item.case.spec.num_replicas) for item in found
    ]


def test_the_backend_of_solo_is_not_one_of_the_study(study):
    """It has no curve, colour or row of its own."""
    assert ("in_graph",) == study.backends


CASE = np.array([0.100, 0.101, 0.099, 0.100])


@pytest.mark.parametrize(
    ("fraction", "baseline", "verdict", "explains_loss"),
    [
        (0.97, 0.050, "input-bound", True),
        (0.97, 0.099, "input-bound", False),  # one replica is as slow
        (0.60, 0.050, "not input-bound", False),
        (0.30, 0.020, "not input-bound", False),
    ],
)
def test_pipelines_that_take_the_whole_step_bound_it(
    fraction, baseline, verdict, explains_loss
):
    """They explain a loss where they take longer than one replica's step, too."""
    found = lost_time.judge_input_bound(CASE, baseline * CASE / 0.100, fraction * CASE)

    assert verdict == found.verdict
    assert fraction == pytest.approx(found.fraction.value)
    assert explains_loss is found.explains_loss


def test_an_interval_around_the_limit_is_inconclusive():
    """Nine tenths lie between generations that are above and below."""
    factors = np.array([0.85, 0.97, 0.88, 0.93])
    found = lost_time.judge_input_bound(CASE, 0.5 * CASE, factors * CASE)

    assert "inconclusive" == found.verdict
    assert not found.explains_loss


def test_what_pipelines_take_alone_is_no_part_of_the_step():
    """They run beside it: the parts add up without them."""
    case, alone = (dict.fromkeys(range(3), t) for t in (0.1, 0.05))
    plain = decompose(Observed(case=case, baseline=alone))
    found = decompose(
        Observed(case=case, baseline=alone, input_only=dict.fromkeys(range(3), 0.098))
    )

    assert plain.parts == found.parts
    assert PARTS == tuple(part.name for part in found.parts)
    assert plain.input_bound is None
    assert found.input_bound is not None
    assert pytest.approx(0.098) == found.input_bound.input_sec.value
