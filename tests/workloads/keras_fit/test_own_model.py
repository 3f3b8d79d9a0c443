"""Anybody's Keras model as a workload: on every backend, and what is refused."""

import functools
import importlib

import keras
import own_keras
import pytest

import replicator
from harness import catalog
from harness.errors import PlanError
from results.records.changes import Change
from results.study import matching as verdict
from workloads import matching
from workloads.keras_fit.own_model import keras_workload, make_config

INFO = own_keras.WORKLOAD
# Losses are float32.
TOLERANCE = 1e-6


def made(repl, **options):
    keras.utils.set_random_seed(1)
    preset = INFO.presets[0]
    return importlib.import_module(INFO.module).WORKLOAD.build(
        repl,
        preset=preset.name,
        data=options.pop("data", preset.data),
        per_replica_batch_size=8 // repl.num_replicas_in_sync,
        seed=1,
        options={**preset.options, **options},
    )


def changes_and_losses(repl, **options):
    changes = []
    program = matching.MatchedProgram(
        made(matching.MatchingReplicator(repl), **INFO.matching.options, **options),
        lambda **fields: changes.append(Change(**fields)),
    )
    losses = [program.run() for _ in range(matching.NUM_STEPS)]
    assert all(check.is_passed for check in program.sanity()), program.sanity()
    program.close()
    return changes, losses


@functools.cache
def of_one():
    return changes_and_losses(replicator.create("single"))


@pytest.mark.parametrize(
    ("backend", "loop"),
    [("in_graph", "run"), ("in_graph", "fit"), ("tf_mirrored", "run")],
)
def test_two_replicas_match_one(backend, loop):
    """Losses and changes, on equal batches."""
    repl = replicator.create(backend, num_replicas=2)
    (one, losses), (two, others) = of_one(), changes_and_losses(repl, loop=loop)
    differences = verdict.change_differences(two, one)

    assert verdict.loss_difference(others, losses) < TOLERANCE
    assert {"model", "optimizer"} == {group for group, _ in differences}
    assert max(differences.values()) < TOLERANCE


def test_a_model_learns_as_it_is_written():
    """Its own optimizer, rate and dropout; its type stays what it is."""
    program = made(replicator.create("in_graph", num_replicas=2))
    losses = [program.run(4) for _ in range(6)]

    assert losses[-1] < losses[0]
    assert "float32" == program.model.layers[0].compute_dtype
    assert 0.5 == program.model.layers[2].rate
    assert 24 == program._num_steps == int(program.optimizer.iterations)
    assert () == program.evaluate()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"model": "own_keras:bare"},
            (
                "own_keras:bare returned Sequential, which is not a compiled model;"
                r" call model\.compile\(\.\.\.\) in it, and return the model"
            ),
        ),
        (
            {"data": "own_keras:bare"},
            "own_keras:bare returned Sequential, which is not a tf.data.Dataset of",
        ),
        (
            {"data": "own_keras:inputs_only"},
            r"returned a dataset of TensorSpec.*; its elements have to be pairs",
        ),
    ],
)
def test_functions_that_return_something_else_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        made(replicator.create("single"), **options)


def test_functions_that_a_trial_cannot_find_are_refused():
    """Such as those of a function, or without a name."""
    with pytest.raises(ValueError, match="cannot be found by the process of a trial"):
        keras_workload("own", lambda: None, own_keras.data)


def test_options_that_contradict_are_refused():
    """By the planner, which asks the same configuration."""
    with pytest.raises(
        ValueError, match="takes a whole step or nothing; use jit 'off'"
    ):
        make_config("own", {"jit": "compute"})
    with pytest.raises(PlanError, match="option loop='fit' does not work on backend"):
        catalog.check_backends(INFO, {"loop": "fit"}, [catalog.backend("async")])
    catalog.check_backends(INFO, {"loop": "run"}, [catalog.backend("async")])
