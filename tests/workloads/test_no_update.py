"""The measuring control whose steps sum their gradients and update nothing."""

import re

import numpy as np
import pytest
from small_programs import build as build_small

import replicator
from workloads.no_update import NotUpdatingReplicator

# cartpole has a small body; images are the embedded digits.
DATA = {"resnet50": "digits", "sngan": "digits", "d4pg": "synthetic"}


def build(name):
    """The smoke preset of a workload, without its update."""
    repl = NotUpdatingReplicator(replicator.create("in_graph", num_replicas=2))
    return build_small(name, repl, data=DATA[name])


@pytest.mark.parametrize(
    "name",
    [
        "d4pg",
        pytest.param("resnet50", marks=pytest.mark.full),
        pytest.param("sngan", marks=pytest.mark.full),
    ],
)
def test_steps_run_and_change_no_weight(name):
    """Models and optimizers stay as they are; losses are those of a step.

    d4pg has two optimizers and targets; the full run adds networks with batch
    statistics and averages, whose optimizers are wrapped by the same code.
    """
    program = build(name)
    before = program.trained_values()
    losses = [program.run() for _ in range(3)]
    after = program.trained_values()

    assert np.isfinite(losses).all()
    assert all(check.is_passed for check in program.sanity())
    assert before
    for key, values in before.items():
        for one, other in zip(values, after[key], strict=True):
            np.testing.assert_array_equal(one, other)


def test_the_sums_are_computed_over_all_replicas():
    """The plan still has the communication of the step, and its bytes."""
    with_update, without = (
        _bytes_of_plan(wrap(replicator.create("in_graph", num_replicas=2)))
        for wrap in (lambda repl: repl, NotUpdatingReplicator)
    )

    assert with_update == without > 0


def _bytes_of_plan(repl):
    """The bytes that the collectives of a step of d4pg reduce, from ``explain``."""
    program = build_small("d4pg", repl)
    program.run()
    found = re.findall(r"all_reduce\S* .*? (\d+) bytes per replica", program.explain())
    return sum(map(int, found))
