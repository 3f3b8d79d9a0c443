"""The parts of a step: they add up to it, and known losses are found in them."""

import dataclasses
import statistics

import numpy as np
import pytest
from study_files import with_blocks, with_results
from synthetic import (
    ALL_CONTROLS,
    LOST,
    OF_BLOCKS,
    OF_CONTROLS,
    REPETITIONS,
    Cores,
    Lost,
    Step,
    held_by_blocks,
    interleaving_shape,
    make_store,
    make_study,
    of_blocks,
    of_controls,
)

from results import Control, ScalingMode, figures, load_study
from results.figures import decompose

PARTS = (
    *("alone", "contention", "exposed_communication", "input", "imbalance", "update"),
    "unexplained",
)
RECORDED = ("ideal", "computing", "run_queue_delay", "idle", "unexplained")


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


def explained_by_controls(study):
    return tuple(found for found in figures.losses(study) if found.has_controls)


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


def test_one_repetition_has_no_interval():
    found = decompose(case={0: 0.1}, baseline={0: 0.05}, nosync={0: 0.08})
    assert (found.step.time.value, found.step.time.low) == (0.1, None)
    assert found.whole.method == (
        "no interval: one run tells nothing about other processes"
    )


# Noise of 3 % that the cases of a repetition share, and 0.05 % between processes.
TOLERANCE_SEC = 0.0012


@pytest.fixture
def explained(tmp_path):
    """Returns a function that measures an interleaved study of known lost time and
    explains it.
    """

    def make(**fields):
        store = make_store(tmp_path, interleaving_shape(**fields))
        return explained_by_controls(load_study(store))

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
        rounds = result.steps_of_blocks()
        assert set(result.rates) == set(rounds)
        for block in result.blocks:
            if block.is_valid:
                step = max(map(statistics.fmean, rounds[block.round_index]))
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
        explained_by_controls(of) for of in (study, with_results(study, unequal))
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
    found = figures.judge_input_bound(CASE, baseline * CASE / 0.100, fraction * CASE)

    assert (verdict, explains_loss) == (found.verdict, found.explains_loss)
    if verdict != "inconclusive":
        assert fraction == pytest.approx(found.fraction.value)
    # What pipelines take alone is no part of the step.
    bound = decompose(**FULL, input_only=_all(98))
    assert decompose(**FULL).parts == bound.parts
    assert pytest.approx(0.0981, rel=1e-3) == bound.input_bound.input_sec.value


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
    (found,) = figures.losses(study)
    return found


def test_the_parts_are_those_that_the_blocks_were_given(study):
    found = _only(_with_blocks(study))
    lost = found.lost
    values = {part.name: part.time.value for part in lost.parts}

    assert found.mode is ScalingMode.WEAK
    assert list(values) == list(RECORDED)
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
        assert None is part.time
        assert "the kernel does not record it here: part of unexplained" == part.reason
    values = [part.time.value if part.time else 0.0 for part in lost.parts]
    assert sum(values) == pytest.approx(lost.step.time.value)
    assert lost.main_loss in ("", "computing")


def test_what_recorded_no_blocks_or_no_cpu_time_explains_nothing(study, make):
    found = _only(study)
    in_sequence = load_study(make())

    assert None is found.lost
    assert found.reason == (
        "blocks of this case or of its baseline have no duration or CPU time"
    )
    assert () == figures.losses(in_sequence)


SEEDS = range(5, 10)


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    return make_study(tmp_path_factory.mktemp("relay"))


def test_of_fifty_studies_no_cause_is_wrong(noisy):
    """One in eight may stay unexplained: noise is as large as what is looked for."""
    of_controlled = [
        (truth, of_controls(step, seed))
        for truth, step in OF_CONTROLS
        for seed in SEEDS
    ]
    of_recorded = [
        (truth, cores, of_blocks(noisy, cores, seed))
        for truth, cores in OF_BLOCKS
        for seed in SEEDS
    ]
    named = [(truth, found.main_loss) for truth, found in of_controlled]
    named += [(truth, found.main_loss) for truth, _, found in of_recorded]
    held = [
        is_held
        for _, cores, found in of_recorded
        for _, is_held in held_by_blocks(found, cores)
    ]

    assert len(named) == 50
    assert [] == [pair for pair in named if pair[1] not in ("", pair[0])]
    assert sum(truth == cause for truth, cause in named) >= 7 / 8 * 50
    assert sum(held) >= 0.88 * len(held)


def test_a_process_that_is_late_in_every_step_is_imbalance_or_unexplained():
    found = {of_controls(Step(imbalance=2 * LOST), seed).main_loss for seed in SEEDS}

    assert found <= {"imbalance", ""}
    assert "imbalance" in found


def test_cores_without_work_are_idle_and_no_wait_for_a_core(noisy):
    found = of_blocks(noisy, Cores(idle=LOST, queue=0.050), 0)
    idle, wait = found.part("idle"), found.part("run_queue_delay")

    assert not idle.time.excludes(LOST)
    assert idle.time.low > 0
    assert abs(wait.time.value) < 0.0005


def test_two_controls_that_take_away_the_same_time_name_no_cause():
    times = Step().times()
    for name in ("case", "nosync", "independent", "without_update"):
        times[name] += LOST
    observed = {
        name: {g: value * (1 + 0.001 * g) for g in range(REPETITIONS)}
        for name, value in times.items()
    }
    found = decompose(**observed)

    assert found.part("unexplained").time.high < 0
    assert found.main_loss == ""
