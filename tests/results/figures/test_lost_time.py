"""The parts of a step: they add up to it, come from valid blocks, and are judged."""

import numpy as np
import pytest
from changed_study import with_results
from synthetic import ALL_CONTROLS, Lost, interleaving_shape, make_store

from results import errors, load_study
from results.figures import lost_time
from results.figures.lost_time import PARTS, decompose
from results.records.models import Control


def _all(milli_sec):
    return {g: (milli_sec + 0.1 * g) / 1000 for g in range(3)}


# A step of 100 ms: 60 alone with 10 of input, 8 contention, 20 communication, 2 more
# input, 4 imbalance, 6 unexplained.
FULL = {
    "case": _all(100),
    "baseline": _all(60),
    "nosync": _all(80),
    "independent": _all(68),
    "synthetic": _all(88),
    "baseline_synthetic": _all(50),
    "without_update": _all(99),
    "baseline_without_update": _all(59),
    "imbalance": _all(4),
}


def values_of(found):
    return {part.name: part.time and part.time.value for part in found.parts}


@pytest.mark.parametrize(
    ("field", "part", "reason"),
    [
        ("nosync", "exposed_communication", "nosync was not measured"),
        ("baseline_synthetic", "input", "baseline_synthetic was not measured"),
        ("imbalance", "imbalance", "the replicas share a process, or"),
    ],
)
def test_a_part_without_its_control_is_part_of_the_unexplained(field, part, reason):
    """Whatever is missing, the parts add up to the step."""
    found = decompose(**{name: of for name, of in FULL.items() if name != field})
    values = values_of(found)
    known = [value for value in values.values() if value is not None]

    assert tuple(values) == PARTS
    assert found.part(part).time is None
    assert found.part(part).reason.startswith(reason)
    assert found.part(part).reason.endswith(": part of unexplained")
    assert found.part("unexplained").reason == f"includes {part}: not measured"
    assert found.step.time.value == pytest.approx(sum(known), rel=1e-12)


def test_input_that_one_replica_waits_for_as_well_is_no_loss():
    same = {name: _all(60) for name in ("case", "baseline", "nosync", "independent")}
    without = {name: _all(50) for name in ("synthetic", "baseline_synthetic")}
    values = values_of(decompose(**same, **without))

    assert values["input"] == pytest.approx(0, abs=1e-12)
    assert values["unexplained"] == pytest.approx(0, abs=1e-12)


def test_repetitions_that_never_met_are_an_error():
    found = decompose(case={0: 0.1}, baseline={0: 0.05}, nosync={0: 0.08})
    assert (found.step.time.value, found.step.time.low) == (0.1, None)
    assert found.whole.method == (
        "no interval: one run tells nothing about other processes"
    )
    with pytest.raises(
        errors.ResultsError,
        match=r"^no run has all of case, baseline, nosync; a part is the "
        r"difference .*: measure the case and its controls together$",
    ):
        decompose(case={0: 0.1}, baseline={0: 0.05}, nosync={1: 0.08})


# Noise of 3 % that the cases of a repetition share, and 0.05 % between processes.
TOLERANCE_SEC = 0.0012


@pytest.fixture
def explained(tmp_path):
    """Returns a function that measures an interleaved study of known lost time and
    explains it.
    """

    def make(**fields):
        store = make_store(tmp_path, interleaving_shape(**fields))
        return lost_time.explain(load_study(store))

    return make


def test_what_is_lost_is_found_in_its_part(explained):
    slow = Lost(exposed_communication=0.010, contention=0.010, update=0.013)
    controls = (*ALL_CONTROLS, Control.NO_UPDATE)
    (found,) = explained(lost={"in_graph": slow}, controls=controls)
    values = values_of(found.lost)
    expected = {
        "contention": 0.010,
        "exposed_communication": 0.010,
        "input": 0.0,
        "update": 0.010,
    }

    assert values["imbalance"] is None
    for name, value in expected.items():
        assert value == pytest.approx(values[name], abs=TOLERANCE_SEC)
    assert slow.alone == pytest.approx(values["alone"], abs=3 * TOLERANCE_SEC)
    assert 0.0 == pytest.approx(values["unexplained"], abs=3 * TOLERANCE_SEC)
    assert 4 == found.lost.whole.n


def test_imbalance_is_measured_where_each_replica_has_a_process(explained):
    (found,) = explained(
        backends=("multi_worker",), num_ranks=2, imbalance=0.010, noise=0.0
    )

    imbalance = found.lost.part("imbalance").time.value
    assert pytest.approx(0.010, abs=TOLERANCE_SEC) == imbalance


@pytest.mark.parametrize("failed", [(1,), range(4)], ids=["one", "all"])
def test_a_control_that_failed_is_not_guessed(explained, failed):
    (found,) = explained(not_ok=frozenset((Control.NOSYNC, 2, g) for g in failed))

    if len(failed) == 1:
        assert 3 == found.lost.whole.n
        return
    communication = found.lost.part("exposed_communication")
    assert "nosync was not measured" in communication.reason
    unexplained = found.lost.part("unexplained").time.value
    assert pytest.approx(0.010, abs=TOLERANCE_SEC) == unexplained


def test_one_replica_without_its_update_explains_nothing(explained):
    failed = frozenset((Control.NO_UPDATE, 2, g) for g in range(4))

    assert () == explained(controls=(Control.NO_UPDATE,), not_ok=failed)


def test_discarded_blocks_are_in_no_mean(tmp_path):
    study = load_study(make_store(tmp_path, interleaving_shape()))
    results = [entry.result for entry in study.planned]
    discarded = [
        result for result in results if any(not t.is_valid for t in result.blocks)
    ]

    assert (
        "in_graph",
    ) == study.backends  # the independent control has no curve, colour or row
    assert discarded
    for result in discarded:
        rounds = lost_time.rounds_of(result)
        assert set(result.rates) == set(rounds)
        for block in result.blocks:
            if block.is_valid:
                step = max(rounds[block.round_index])
                assert pytest.approx(block.time_sec / block.num_steps, 1e-6) == step


def test_programs_that_never_communicate_count_by_their_mean(tmp_path):
    """One of two is slower by 10 ms, one faster: together they lose nothing."""
    study = load_study(make_store(tmp_path, interleaving_shape()))

    def unequal(entry):
        if entry.spec.control is not Control.INDEPENDENT:
            return None
        ranks = [
            rank.model_copy(
                update={"step_time_sec": tuple(t + late for t in rank.step_time_sec)}
            )
            for rank, late in zip(entry.result.ranks, (0.01, -0.01), strict=True)
        ]
        return {"ranks": tuple(ranks)}

    (equal,), (found,) = (
        lost_time.explain(of) for of in (study, with_results(study, unequal))
    )
    assert values_of(equal.lost) == pytest.approx(values_of(found.lost), abs=1e-4)


def test_the_independent_control_explains_every_backend_of_its_size(explained):
    backends = ("in_graph", "tf_mirrored")
    found = explained(
        backends=backends, replicas=(1, 2, 4), controls=(Control.INDEPENDENT,)
    )

    assert [(name, 4) for name in backends] == [
        (item.case.spec.backend, item.case.spec.num_replicas) for item in found
    ]


CASE = np.array([0.100, 0.101, 0.099, 0.100])


@pytest.mark.parametrize(
    ("fraction", "baseline", "verdict", "explains_loss"),
    [
        (0.97, 0.050, "input-bound", True),
        (0.97, 0.099, "input-bound", False),  # one replica is as slow
        (0.30, 0.020, "not input-bound", False),
        # Nine tenths lie between repetitions that are above and below.
        (np.array([0.85, 0.97, 0.88, 0.93]), 0.050, "inconclusive", False),
    ],
)
def test_pipelines_that_take_the_whole_step_bound_it(
    fraction, baseline, verdict, explains_loss
):
    found = lost_time.judge_input_bound(CASE, baseline * CASE / 0.100, fraction * CASE)

    assert (verdict, explains_loss) == (found.verdict, found.explains_loss)
    if verdict != "inconclusive":
        assert fraction == pytest.approx(found.fraction.value)
    # What pipelines take alone is no part of the step.
    bound = decompose(**FULL, input_only=_all(98))
    assert decompose(**FULL).parts == bound.parts
    assert pytest.approx(0.0981, rel=1e-3) == bound.input_bound.input_sec.value
