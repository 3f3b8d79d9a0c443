"""Replicas on two workers train like one replica with the joined batch."""

import re

import numpy as np
import pytest

import replicator

pytestmark = pytest.mark.processes

# Sums over 12 examples in another order, twelve steps deep: a few float32 roundings.
RTOL_FLOAT32 = 3e-5


@pytest.fixture(scope="module")
def reference(cases):
    return cases.wide_training(replicator.create("single"))


def assert_same(expected, actual):
    np.testing.assert_allclose(
        expected["losses"], actual["losses"], rtol=RTOL_FLOAT32, atol=1e-6
    )
    for one, other in zip(expected["weights"], actual["weights"], strict=True):
        np.testing.assert_allclose(one, other, rtol=RTOL_FLOAT32, atol=1e-5)


def test_gradients_that_are_sent_together_train_as_if_each_was_sent_alone(client):
    """Bit by bit: packing changes no sum, nor its order."""
    found = client.value("packed_and_alone")

    assert found["packed"] == found["alone"]


@pytest.mark.parametrize("mode", ["PER_REPLICA", "SINGLE"])
def test_every_input_mode_feeds_the_same_examples(client, reference, mode):
    """Pipelines on the workers or on the client; a step is fed one global batch."""
    actual = client.value("input_modes")[mode]

    assert_same(reference, actual)


def test_a_replica_that_is_split_over_workers_trains_as_one_device(client, cases):
    """Each worker has one of two layers, and what lies between them crosses."""
    alone = cases.split_training(
        replicator.create(
            "single", devices=["CPU:0", "CPU:0"], logical_devices_per_replica=2
        )
    )
    expected = {"losses": alone.run(cases.NUM_STEPS), "weights": alone.weights()}
    actual = client.value("split_over_workers")
    tasks = [re.search(r"task:(\d)", name)[1] for name in actual["devices"]]

    assert ["0", "0", "1", "1"] == tasks
    assert_same(expected, actual)


def test_an_uneven_epoch_on_workers_is_that_of_one_device(client, check_epoch):
    """Three of four replicas have no example in its last step."""
    check_epoch([client.value("an_uneven_epoch")])


def test_workers_of_a_control_train_alone(client):
    """Each worker's losses are those of its own batch and variables."""
    actual = client.value("without_communication")

    assert np.transpose(actual["losses"]) == pytest.approx(
        np.array([[2.0, 1.8, 1.6], [4.0, 3.2, 2.4]])
    )
    assert "Nothing is communicated" in actual["explained"]
    assert "sends nothing but inputs to other workers" in actual["explained"]


def test_steps_per_execution_in_one_dispatch_are_the_same_steps(client, reference):
    """The loop runs over remote devices; its runs return the last step's loss."""
    actual = client.value("input_modes")["loop"]

    assert_same({**reference, "losses": reference["losses"][3::4]}, actual)
