"""Random steps give what R copies in lock step give, and trainings what NumPy gives."""

import dataclasses
import re
import sys
from pathlib import Path

import covering
import pytest
from fuzzing import operations, series, training_runs, trainings
from fuzzing.syntax import Verdict

import replicator

SEED, SEED_OF_TRAININGS = 2019, 3
# `make fuzz` draws thousands; the full run has those of this run and more.
NUM_PROGRAMS = 200 if covering.is_full() else 40
NUM_TRAININGS = 80 if covering.is_full() else 16
NUM_PROGRAMS_ON_WORKERS = 20


@pytest.mark.parametrize(
    ("grammar", "num_programs", "seed"),
    [
        (series.STEPS, NUM_PROGRAMS, SEED),
        (series.TRAININGS, NUM_TRAININGS, SEED_OF_TRAININGS),
    ],
    ids=["steps", "trainings"],
)
def test_random_programs_agree(capsys, grammar, num_programs, seed):
    """Values, variables, gradients and refusals; models, epochs, writes and failures.

    ``tests/mutants/conformance.toml`` has faults that they find. The full run makes a
    program that shows a difference small, which takes minutes.
    """
    found = series.run_series(
        seed, num_programs, grammar=grammar, is_shrunk=covering.is_full()
    )

    with capsys.disabled():
        sys.stdout.write(f"\n{found}\n")
    assert not found.differences, "\n".join(found.differences)
    assert num_programs == found.verdicts.total()
    num_judged = num_programs - found.verdicts[Verdict.NOT_JUDGED]
    assert num_programs // 2 < num_judged


def test_the_grammar_has_every_collective_that_users_call():
    """A new one is drawn and interpreted, too."""
    stub = Path(replicator.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    public = re.findall(
        r"from \.collectives\.(?!layers|reductions)\w+ import (?!map_)(\w+) as", stub
    )

    assert {*public, "all_reduce"} == set(operations.COLLECTIVES)


def test_after_a_smaller_last_step_other_batches_begin_the_next_epoch():
    """Of 10 examples, 3 steps of 4 have read all, which are no whole steps of 3."""
    target = trainings.Target(num_replicas=2, is_mirrored=False)
    other = dataclasses.replace(target, num_replicas=3)
    training = trainings.Training(
        layers=(),
        optimizer=trainings.Optimizer(name="sgd"),
        inputs=trainings.Inputs(
            num_examples=10,
            batch=4,
            is_split=True,
            is_generator=False,
            mode="PER_WORKER",
            prefetch=0,
        ),
        target=target,
        actions=(
            trainings.Run(num_steps=3),
            trainings.Restore(target=other, batch=3),
            *[trainings.Run()] * 3,
        ),
        poison=None,
        dtype="float64",
        seed=0,
    )

    assert Verdict.SAME is training_runs.check(training)


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize("backend", series.RUNNERS)
def test_random_programs_agree_on_workers(tmp_path, backend):
    """Two workers of two replicas."""
    for verdicts, found in series.run_on_workers(
        backend, tmp_path, SEED, NUM_PROGRAMS_ON_WORKERS
    ):
        assert [] == found
        assert NUM_PROGRAMS_ON_WORKERS == sum(verdicts.values())
        assert NUM_PROGRAMS_ON_WORKERS // 2 < verdicts["the same"]
