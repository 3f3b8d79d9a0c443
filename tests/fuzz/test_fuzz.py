"""Random steps give what R copies in lock step give, and trainings what NumPy gives."""

import dataclasses
import re
import sys
from pathlib import Path

import covering
import on_clusters
import pytest
from fuzzing import (
    checking,
    collectives,
    series,
)
from fuzzing.training import checking as training_checking
from fuzzing.training import syntax as training_syntax

import replicator
from replicator.collectives import reductions
from replicator.collectives.kinds import AllReduce
from replicator.engine.graph import trace

# `make fuzz` draws thousands; the full run has those of this run and more.
NUM_PROGRAMS = 100 if covering.is_full() else 10
NUM_PROGRAMS_ON_WORKERS = 20
NUM_PROGRAMS_WITH_A_FAULT = 100  # at most: the series ends where the fault is found
NUM_TRAININGS = 40 if covering.is_full() else 4
SEED = 2019


def test_random_programs_agree(capsys):
    """Values, variables, gradients and refusals, in every placement of variables."""
    found = series.run_series(SEED, NUM_PROGRAMS)

    with capsys.disabled():
        sys.stdout.write(f"\n{found}\n")
    assert not found.differences, "\n".join(found.differences)
    assert NUM_PROGRAMS == found.verdicts.total()
    assert NUM_PROGRAMS // 2 < found.verdicts[checking.Verdict.SAME]


def test_a_fault_of_the_library_is_found(monkeypatch):
    """A minimum that is a sum: a program that shows the difference comes back."""
    right = trace.TraceContext.communicate

    def wrong(self, kind, *arguments, **options):
        kind = AllReduce(op="sum") if kind == AllReduce(op="min") else kind
        return right(self, kind, *arguments, **options)

    monkeypatch.setattr(trace.TraceContext, "communicate", wrong)

    found = series.run_series(SEED, NUM_PROGRAMS_WITH_A_FAULT, is_shrunk=False)

    assert 1 == len(found.differences)
    assert "'min')" in found.differences[0]


def test_the_grammar_has_every_collective_that_users_call():
    """A new one is drawn and interpreted, too."""
    stub = Path(replicator.__file__).with_suffix(".pyi").read_text(encoding="utf-8")
    public = set(
        re.findall(
            r"from \.collectives\.(?!layers|mapping|reductions)\w+ import (\w+) as",
            stub,
        )
    )

    assert public | {"all_reduce"} == set(collectives.COLLECTIVES)


def _training(**changes):
    defaults = {
        "layers": (),
        "optimizer": training_syntax.Optimizer(name="sgd"),
        "inputs": training_syntax.Inputs(
            num_examples=7,
            batch=7,
            is_split=True,
            is_generator=False,
            mode="PER_WORKER",
            prefetch=0,
        ),
        "target": training_syntax.Target(num_replicas=2, is_mirrored=False),
        "actions": (training_syntax.Run(),),
        "poison": None,
        "dtype": "float64",
        "seed": 0,
    }
    return training_syntax.Training(**(defaults | changes))


def test_random_trainings_agree(capsys):
    """Models, optimizers, epochs, writes and failures, against NumPy."""
    found = series.run_series(SEED, NUM_TRAININGS, grammar=series.TRAININGS)

    with capsys.disabled():
        sys.stdout.write(f"\n{found}\n")
    assert not found.differences, "\n".join(found.differences)
    num_judged = NUM_TRAININGS - found.verdicts[checking.Verdict.NOT_JUDGED]
    assert NUM_TRAININGS // 2 < num_judged
    assert NUM_TRAININGS == found.verdicts.total()


def test_after_a_smaller_last_step_other_batches_begin_the_next_epoch():
    """Of 10 examples, 3 steps of 4 have read all, which are no whole steps of 3."""
    inputs = dataclasses.replace(_training().inputs, num_examples=10, batch=4)
    target = training_syntax.Target(num_replicas=3, is_mirrored=False)
    actions = (
        training_syntax.Run(num_steps=3),
        training_syntax.Restore(target=target, batch=3),
        *[training_syntax.Run()] * 3,
    )

    same = training_checking.check(_training(inputs=inputs, actions=actions))

    assert checking.Verdict.SAME is same


def test_a_fault_in_a_training_is_found(monkeypatch):
    """Gradients of one replica alone: the first training shows it."""
    monkeypatch.setattr(reductions, "all_reduce", lambda values, *_, **__: values)

    found = series.run_series(
        SEED, NUM_TRAININGS, grammar=series.TRAININGS, is_shrunk=False, features=()
    )

    assert 1 == len(found.differences)


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize("backend", on_clusters.RUNNERS)
def test_random_programs_agree_on_workers(tmp_path, backend):
    """Two workers of two replicas."""
    for verdicts, found in on_clusters.run(
        backend, tmp_path, SEED, NUM_PROGRAMS_ON_WORKERS
    ):
        assert [] == found
        assert NUM_PROGRAMS_ON_WORKERS == sum(verdicts.values())
        assert NUM_PROGRAMS_ON_WORKERS // 2 < verdicts["the same"]
