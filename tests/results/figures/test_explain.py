"""From turns to the parts of a step: the right rounds, processes and controls."""

import dataclasses

import pytest
from relay_study import ALL, Lost, RelayShape, make_store

from results.figures import explain
from results.records.models import Control
from results.study.cases import load_study

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


def test_rounds_without_a_common_valid_turn_explain_nothing(tmp_path):
    """Times of different moments are not compared."""
    shape = RelayShape(is_without_common_round=True)
    (found,) = explain.explain(study_of(tmp_path, shape))

    assert (None, explain.NO_COMMON_ROUND) == (found.lost, found.reason)


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


def test_a_study_without_controls_explains_nothing(tmp_path):
    """A twin is no control of the step."""
    study = study_of(tmp_path, dataclasses.replace(RelayShape(), controls=()))

    assert () == explain.explain(study)


def test_the_backend_of_solo_is_not_one_of_the_study(study):
    """It has no curve, colour or row of its own."""
    assert ("in_graph",) == study.backends
