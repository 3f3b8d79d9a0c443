"""What turns record about the loss of a case adds up to its step."""

import dataclasses

import pytest
from changed_study import with_results, with_turns
from relay_study import RelayShape, make_store

from results.figures import explain, scaling
from results.records.models import Control, ScalingMode
from results.study.cases import load_study

CPU_OF_ALONE, CPU_PER_REPLICA, WAIT, OTHERS = 0.048, 0.055, 0.002, 0.05
"""Seconds per step: of one replica, and of each of two; what others have of cores."""


@pytest.fixture
def study(tmp_path):
    """A step of 50 ms alone and 60 ms at two replicas, without controls."""
    shape = RelayShape(controls=(), noise=0.0, noise_of_processes=0.0)
    return load_study(make_store(tmp_path, shape))


def _with_turns(study, *, has_wait=True, wait_of_alone=0.0, is_load_known=True):
    """Gives every turn the CPU time and the wait of the case."""

    def change(entry):
        size = entry.spec.num_replicas
        cpu = CPU_OF_ALONE if size == 1 else size * CPU_PER_REPLICA
        wait = wait_of_alone if size == 1 else size * WAIT
        return {
            "user_sec": lambda turn: 0.75 * cpu * turn.num_steps,
            "system_sec": lambda turn: 0.25 * cpu * turn.num_steps,
            "run_delay_sec": lambda turn: wait * turn.num_steps if has_wait else None,
            "foreign_cpu_fraction": OTHERS if is_load_known else None,
        }

    return with_turns(study, change)


def _only(study):
    (found,) = explain.losses_of_points(scaling.points(study))
    return found


def test_the_parts_are_those_that_the_turns_were_given(study):
    """Also in seconds: they are not logarithms, so they add up."""
    found = _only(_with_turns(study))
    assert found.lost is not None
    lost = found.lost
    values = {part.name: part.value_sec for part in lost.parts}

    assert found.mode is ScalingMode.WEAK
    assert list(values) == list(explain.PARTS)
    assert sum(values.values()) == pytest.approx(lost.step.value_sec)
    # The rounds of the study are slower and faster by some per cent, CPU time is not.
    assert values["computing"] == pytest.approx(CPU_PER_REPLICA - CPU_OF_ALONE)
    # So in fast rounds there is less time for others than they have on average.
    assert values["core_wait"] == pytest.approx(WAIT, abs=4e-4)
    ratio = lost.step.value_sec / values["ideal"]
    assert ratio == pytest.approx(60 / 50, rel=1e-6)
    assert lost.num_generations == 4


def test_threads_that_wait_while_the_cores_compute_are_no_loss(study):
    """Actors beside a learner wait for longer than a step takes, for one another.

    They waited for others for at most as long as others had the cores.
    """
    found = _only(_with_turns(study, wait_of_alone=10 * CPU_OF_ALONE))
    assert found.lost is not None
    lost = found.lost
    most = OTHERS * (lost.step.value_sec or 0.0)

    assert lost.part("core_wait").value_sec == pytest.approx(WAIT - 0.002, abs=5e-4)
    assert abs(lost.part("core_wait").value_sec or 0.0) <= most
    for part in lost.parts:
        assert abs(part.value_sec or 0.0) <= (lost.step.value_sec or 0.0)
    unexplained = lost.part("unexplained").value_sec or 0.0
    assert unexplained < 0.1 * (lost.step.value_sec or 0.0)


def test_sustained_stretches_of_a_gate_are_no_rounds(study):
    """They have indices of their own, from 0, and twice the CPU time here."""
    made = _with_turns(study)
    before = _only(made).lost

    def change(entry):
        result = entry.result
        (turn, *_) = (of for of in result.turns if of.is_valid)
        stretch = turn.model_copy(
            update={"is_sustained": True, "user_sec": 2 * turn.user_sec}
        )
        steps = tuple(0.2 for _ in range(turn.num_steps))
        ranks = tuple(
            rank.model_copy(update={"step_time_sec": rank.step_time_sec + steps})
            for rank in result.ranks
        )
        return {"turns": (*result.turns, stretch), "ranks": ranks}

    assert before == _only(with_results(made, change)).lost


def test_no_duration_has_an_interval_below_zero(study):
    """Two generations of which one is twice as slow, on a disturbed machine."""
    kept = dataclasses.replace(
        study,
        entries=tuple(e for e in study.entries if e.spec.repetition_index < 2),
    )

    def slow(entry):
        if entry.spec.repetition_index:
            return None
        ranks = [
            rank.model_copy(
                update={"step_time_sec": tuple(3 * t for t in rank.step_time_sec)}
            )
            for rank in entry.result.ranks
        ]
        return {"ranks": tuple(ranks)}

    slowed = with_results(kept, slow)
    found = _only(_with_turns(slowed))
    assert found.lost is not None

    assert found.lost.step.low_sec == found.lost.part("ideal").low_sec == 0.0


def test_a_wait_that_the_kernel_does_not_record_is_unexplained(study):
    """It is not taken for zero."""
    found = _only(_with_turns(study, has_wait=False))
    assert found.lost is not None
    part = found.lost.part("core_wait")

    assert part.value_sec is None
    assert part.reason == explain.NOT_RECORDED
    values = [part.value_sec or 0.0 for part in found.lost.parts]
    assert sum(values) == pytest.approx(found.lost.step.value_sec)


def test_a_load_that_the_kernel_does_not_record_leaves_it_unexplained(study):
    """Without it, a wait for a core and a core without work look the same."""
    found = _only(_with_turns(study, is_load_known=False))
    assert found.lost is not None

    for name in ("core_wait", "idle"):
        assert found.lost.part(name).reason == explain.NOT_RECORDED
    assert found.lost.main_loss in ("", "computing")


def test_turns_without_cpu_time_explain_nothing(study):
    """Records of a version that did not measure it."""
    found = _only(study)

    assert found.lost is None
    assert found.reason == explain.NO_CPU_TIME


def test_no_round_in_common_explains_nothing(tmp_path):
    """A case and its baseline are compared within rounds only."""
    shape = RelayShape(controls=(Control.NOSYNC,), generations=2)
    study = _with_turns(load_study(make_store(tmp_path, shape)))
    (point,) = [p for p in scaling.points(study) if not p.is_baseline]
    assert point.baseline is not None

    baseline = with_turns(point.baseline, lambda _: {"void_reason": "disturbed"})
    (found,) = explain.losses_of_points([dataclasses.replace(point, baseline=baseline)])

    assert found.reason == explain.NO_COMMON_TURN


def test_trials_in_sequence_record_no_turns(tmp_path, synthetic):
    """Nothing to split, and nothing is invented."""
    study = load_study(synthetic.make_store(tmp_path))

    assert explain.losses_of_points(scaling.points(study)) == ()
