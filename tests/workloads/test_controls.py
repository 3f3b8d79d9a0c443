"""Measuring controls: no steps, no updates, one batch for ever."""

import re

import numpy as np
import pytest
import tensorflow as tf
from small_programs import build as build_small

import replicator
from workloads.controls import InputOnlyProgram, NotUpdatingReplicator
from workloads.program import ReusingReplicator

# cartpole has a small body; images are the embedded digits.
DATA = {
    "resnet50": "digits",
    "sngan": "digits",
    "d4pg": "cartpole:swingup",
    "transformer": "tensorflow_source",
}


def build(name, wrap=lambda repl: repl, data=None):
    """The smoke preset of a workload on two replicas."""
    repl = wrap(replicator.create("in_graph", num_replicas=2))
    return build_small(name, repl, data=data or DATA[name])


@pytest.mark.parametrize("name", DATA)
def test_batches_are_read_and_nothing_is_trained(name):
    """As many as steps would read; variables stay as they were."""
    program = build(name)
    control = InputOnlyProgram(program)
    before = {key: value.numpy() for key, value in _variables(program).items()}
    control.start_window()
    losses = [control.run(), control.run(3)]
    control.pause()
    after = {key: value.numpy() for key, value in _variables(program).items()}

    assert [0.0, 0.0] == losses
    assert 4 == program._inputs.num_steps
    assert before
    assert all((before[key] == after[key]).all() for key in before)
    if name == "d4pg":
        program.close()


def _variables(program):
    """Those of the networks, by name."""
    found = {}
    for name, trackable in program._trackables().items():
        for variable in getattr(trackable, "trainable_variables", ()):
            found[f"{name}/{variable.path}"] = variable
    return found


def test_its_record_says_that_nothing_was_checked():
    """It is no trial of the case."""
    control = InputOnlyProgram(build("resnet50"))
    (check,) = control.sanity()

    assert check.is_passed
    assert "not checked: this control reads batches and runs no step" == check.detail
    assert () == control.evaluate() == control.losses_of_replicas()
    assert 8 == control.global_batch_size


def test_one_replica_reads_too():
    """A step without variables runs on its backend as well."""
    program = build_small("sngan", replicator.create("single"), data="synthetic")

    assert 0.0 == InputOnlyProgram(program).run(2)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("d4pg", "synthetic"),
        pytest.param("resnet50", "digits", marks=pytest.mark.full),
        pytest.param("sngan", "digits", marks=pytest.mark.full),
    ],
)
def test_steps_run_and_change_no_weight(name, data):
    """Models and optimizers stay as they are; losses are those of a step."""
    program = build(name, NotUpdatingReplicator, data)
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
        _bytes_of_plan(build("d4pg", *wrap, data="synthetic"))
        for wrap in ((), (NotUpdatingReplicator,))
    )

    assert with_update == without > 0


def _bytes_of_plan(program):
    """The bytes that the collectives of a step reduce, from ``explain``."""
    program.run()
    found = re.findall(r"all_reduce\S* .*? (\d+) bytes per replica", program.explain())
    return sum(map(int, found))


def _arrays(batch):
    """The batch of each replica, as lists of arrays."""
    leaves = tf.nest.flatten(batch)
    return [[leaf[r].numpy() for leaf in leaves] for r in range(len(leaves[0]))]


@pytest.mark.parametrize("name", ["resnet50", "sngan", "d4pg"])
def test_every_step_gets_the_first_batch_of_each_replica(name):
    program = build(name, ReusingReplicator)
    batches = program.batches()
    first, second, third = (_arrays(next(batches)) for _ in range(3))

    for later in (second, third):
        for replica in range(2):
            for expected, actual in zip(first[replica], later[replica], strict=True):
                np.testing.assert_array_equal(expected, actual)
    assert any(
        not np.array_equal(a, b) for a, b in zip(first[0], first[1], strict=True)
    )


@pytest.mark.parametrize(
    "name", ["resnet50", pytest.param("sngan", marks=pytest.mark.full), "d4pg"]
)
def test_a_program_that_reuses_its_batch_trains_without_a_pipeline(name):
    """Its loss is finite; what was read is not checked, and the record says so."""
    repl = ReusingReplicator(replicator.create("single"))
    program = build_small(name, repl, data=DATA[name])
    losses = [program.run() for _ in range(2)]
    checks = {check.name: check for check in program.sanity()}

    assert np.isfinite(losses).all()
    assert all(check.is_passed for check in checks.values())
    if name == "d4pg":
        assert program.experiences == []
        assert program.window_metrics() is not None
    else:
        detail = checks["no_example_twice_in_an_epoch"].detail
        assert detail == (
            "not checked: this control repeats the first batch of each replica"
        )


def test_replicas_that_do_not_communicate_are_not_compared():
    """The other checks of a trial hold for this control as well."""
    program = build_small(
        "d4pg",
        replicator.create("in_graph", num_replicas=2, without_communication=True),
    )
    program.run()
    checks = {check.name: check for check in program.sanity()}

    assert all(check.is_passed for check in checks.values())
    assert checks["replicas_in_sync"].detail == (
        "not checked: this control keeps its 2 replicas from communicating, so their "
        "variables differ"
    )


def test_an_input_mode_reaches_the_pipelines():
    """The wrapped replicator passes every argument on."""
    repl = ReusingReplicator(replicator.create("in_graph", num_replicas=2))
    inputs = repl.make_input_iterator(
        lambda context: tf.data.Dataset.range(
            10 * context.input_pipeline_id, 100
        ).batch(1),
        replicator.InputReplicationMode.PER_REPLICA,
    )

    read = [[int(v[0]) for v in inputs.get_next()] for _ in range(3)]

    assert read == [[0, 10]] * 3
