"""What the series of faults accepts as a record of a fault, and what it does not."""

import random
import signal
from types import SimpleNamespace

import pytest
from injection import BOUND_SEC, FIRST, MEMBER, WORKER, Fault, mistakes, rank_of

from results.records.models import Phase, TrialStatus

FAULT = Fault(
    phase=Phase.WARMUP, delay_sec=0, target=WORKER, rank=1, signal=signal.SIGSEGV
)


def ended(status, phase, reason):
    """Returns a record of a trial that is not ok."""
    failure = SimpleNamespace(phase=phase, reason=reason)
    return SimpleNamespace(status=SimpleNamespace(status=status, failure=failure))


@pytest.mark.parametrize("phase", [Phase.WARMUP, Phase.MEASURE])
def test_a_failure_with_signal_rank_and_phase_is_right(phase, tmp_path):
    """The worker may have come a phase further until it got the signal."""
    reason = "signal SIGSEGV: rank 1 was in phase warmup"
    trial = ended(TrialStatus.FAILED, phase, reason)

    assert [] == mistakes(FAULT, trial, tmp_path, 3.0)


@pytest.mark.parametrize(
    ("trial", "took_sec", "mistake"),
    [
        (
            ended(TrialStatus.FAILED, Phase.WARMUP, "SIGSEGV: rank 0 was there"),
            3.0,
            "does not name rank 1",
        ),
        (
            ended(TrialStatus.FAILED, Phase.BUILD, "SIGSEGV: rank 1 was there"),
            3.0,
            "phase build, not warmup or later",
        ),
        (
            ended(TrialStatus.FAILED, Phase.WARMUP, "worker 1 ended"),
            3.0,
            "does not name SIGSEGV",
        ),
        (
            ended(TrialStatus.FAILED, Phase.WARMUP, "SIGSEGV: rank 1 was there"),
            BOUND_SEC + 1,
            "after the fault",
        ),
        (ended(TrialStatus.OK, Phase.REPORT, ""), 1.0, "ok in spite of the fault"),
    ],
)
def test_a_record_that_does_not_say_what_happened_is_a_mistake(
    trial, took_sec, mistake, tmp_path
):
    """Wrong rank, earlier phase, no signal, too late, or nothing noticed."""
    (found,) = mistakes(FAULT, trial, tmp_path, took_sec)

    assert mistake in found


def test_a_seed_draws_the_same_faults():
    """Of workers mostly; members are not there where nothing is remote."""

    def draw(launcher):
        rng = random.Random(7)
        return [Fault.draw(rng, launcher) for _ in range(200)]

    assert draw("slurm") == draw("slurm")
    assert {WORKER, FIRST, MEMBER} == {fault.target for fault in draw("slurm")}
    assert {WORKER, FIRST} == {fault.target for fault in draw("local")}


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({"TF_CONFIG": '{"task": {"type": "worker", "index": 1}}'}, 1),
        ({"SLURM_PROCID": "0"}, 0),
        ({}, None),
    ],
)
def test_a_process_knows_its_rank_from_its_launcher(variables, rank):
    """So that the right one gets the signal."""
    assert rank == rank_of(variables)
