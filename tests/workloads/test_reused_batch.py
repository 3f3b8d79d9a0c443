"""Measuring controls of the workloads: one batch for ever, replicas on their own."""

import numpy as np
import pytest
import tensorflow as tf
from small_programs import build

import replicator
from workloads.reused_batch import ReusingReplicator

# cartpole has a small body; images are the embedded digits.
DATA = {"resnet50": "digits", "sngan": "digits", "d4pg": "cartpole:swingup"}


def _build(name, repl, data=None):
    return build(name, repl, data=data or DATA[name])


def _arrays(batch):
    """The batch of each replica, as lists of arrays."""
    leaves = tf.nest.flatten(batch)
    return [[leaf[r].numpy() for leaf in leaves] for r in range(len(leaves[0]))]


@pytest.mark.parametrize("name", DATA)
def test_every_step_gets_the_first_batch_of_each_replica(name):
    """Two replicas read different batches, each the same one for ever."""
    program = _build(
        name, ReusingReplicator(replicator.create("in_graph", num_replicas=2))
    )
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
    """Its loss is finite; what was read is not checked, and the record says so.

    The full run adds sngan, which reads and checks as resnet50 does.
    """
    program = _build(name, ReusingReplicator(replicator.create("single")))
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
    program = _build(
        "d4pg",
        replicator.create("in_graph", num_replicas=2, without_communication=True),
        data="synthetic",
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
