"""What blocks record about the loss of a case adds up to its step."""

import dataclasses

import pytest
from changed_study import with_blocks, with_results
from synthetic import interleaving_shape

from results import load_study
from results.figures import lost_time, scaling
from results.records.models import ScalingMode

CPU_OF_ALONE, CPU_PER_REPLICA, WAIT, OTHERS = 0.048, 0.055, 0.002, 0.05
"""Seconds per step: of one replica, and of each of two; what others have of cores."""


@pytest.fixture(scope="module")
def study(make):
    """A step of 50 ms alone and 60 ms at two replicas, without controls."""
    shape = interleaving_shape(controls=(), noise=0.0, noise_of_processes=0.0)
    return load_study(make(shape))


def _with_blocks(study, *, has_wait=True, is_load_known=True):
    """Gives every turn the CPU time and the wait of the case."""

    def change(entry):
        size = entry.spec.num_replicas
        cpu = CPU_OF_ALONE if size == 1 else size * CPU_PER_REPLICA
        wait = 0.0 if size == 1 else size * WAIT
        return {
            "user_sec": lambda block: 0.75 * cpu * block.num_steps,
            "system_sec": lambda block: 0.25 * cpu * block.num_steps,
            "run_delay_sec": lambda block: wait * block.num_steps if has_wait else None,
            "foreign_cpu_fraction": OTHERS if is_load_known else None,
        }

    return with_blocks(study, change)


def _only(study):
    (found,) = lost_time.recorded_losses(scaling.points(study))
    return found


def test_the_parts_are_those_that_the_blocks_were_given(study):
    found = _only(_with_blocks(study))
    lost = found.lost
    values = {part.name: part.time.value for part in lost.parts}

    assert found.mode is ScalingMode.WEAK
    assert list(values) == list(lost_time.RECORDED_PARTS)
    assert sum(values.values()) == pytest.approx(lost.step.time.value)
    # The rounds of the study are slower and faster by some per cent, CPU time is not.
    assert values["computing"] == pytest.approx(CPU_PER_REPLICA - CPU_OF_ALONE)
    # So in fast rounds there is less time for others than they have on average.
    assert values["run_queue_delay"] == pytest.approx(WAIT, abs=4e-4)
    assert lost.step.time.value / values["ideal"] == pytest.approx(60 / 50, rel=1e-6)
    assert lost.whole.n == 4


def test_sustained_stretches_of_a_gate_are_no_rounds(study):
    """They have indices of their own, from 0, and twice the CPU time here."""
    made = _with_blocks(study)

    def change(entry):
        result = entry.result
        (block, *_) = (of for of in result.blocks if of.is_valid)
        update = {"is_sustained": True, "user_sec": 2 * block.user_sec}
        steps = tuple(0.2 for _ in range(block.num_steps))
        (rank,) = result.ranks
        rank = rank.model_copy(update={"step_time_sec": rank.step_time_sec + steps})
        stretch = block.model_copy(update=update)
        return {"blocks": (*result.blocks, stretch), "ranks": (rank,)}

    assert _only(made).lost == _only(with_results(made, change)).lost


def test_no_duration_has_an_interval_below_zero(study):
    """Two repetitions of which one is three times as slow, on a disturbed machine."""
    kept = (e for e in study.entries if e.spec.repetition_index < 2)

    def slow(entry):
        if not entry.spec.repetition_index:
            return None
        (rank,) = entry.result.ranks
        times = tuple(3 * time for time in rank.step_time_sec)
        return {"ranks": (rank.model_copy(update={"step_time_sec": times}),)}

    slowed = with_results(dataclasses.replace(study, entries=tuple(kept)), slow)
    lost = _only(_with_blocks(slowed)).lost

    assert lost.step.time.low == lost.part("ideal").time.low == 0.0


@pytest.mark.parametrize(
    ("fields", "unknown"),
    [
        # It is not taken for zero.
        ({"has_wait": False}, ("run_queue_delay",)),
        # Without it, a wait for a core and a core without work look the same.
        ({"is_load_known": False}, ("run_queue_delay", "idle")),
    ],
)
def test_what_the_kernel_does_not_record_is_unexplained(study, fields, unknown):
    lost = _only(_with_blocks(study, **fields)).lost

    for name in unknown:
        part = lost.part(name)
        assert (None, lost_time.NOT_RECORDED) == (part.time, part.reason)
    values = [part.time.value if part.time else 0.0 for part in lost.parts]
    assert sum(values) == pytest.approx(lost.step.time.value)
    assert lost.main_loss in ("", "computing")


def test_what_recorded_no_blocks_or_no_cpu_time_explains_nothing(study, make):
    found = _only(study)
    in_sequence = load_study(make())

    assert (None, lost_time.NO_CPU_TIME) == (found.lost, found.reason)
    assert () == lost_time.recorded_losses(scaling.points(in_sequence))
