"""Placement: each variable goes to the parameter server with the fewest bytes."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from replicator.async_training.placement import SCALAR_BYTES, Placement

CPU = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(3)]


@pytest.fixture
def placement():
    made = Placement(2)
    made.devices = tuple(CPU[1:])
    return made


def servers(placement, *values, **kwargs):
    with placement.scope():
        made = [tf.Variable(value, **kwargs) for value in values]
    return [placement.server_of(variable) for variable in made]


def test_servers_are_the_tasks_of_the_job_ps():
    """One CPU each."""
    devices = Placement(2).devices

    assert "/job:ps/replica:0/task:1/device:CPU:0" == devices[1]
    assert 2 == len(devices)


def zeros(*sizes):
    return [tf.zeros([size]) for size in sizes]


@pytest.mark.parametrize(
    ("values", "options", "expected", "num_bytes"),
    [
        # Of two equal ones to the first.
        (zeros(4, 1, 2, 5, 1), {}, [0, 1, 1, 0, 1], [16 + 20, 8 + 2 * SCALAR_BYTES]),
        # However loaded the first one is: updates need all scalars.
        (
            [*zeros(100), 1.0, np.int64(3), *zeros(2)],
            {},
            [0, 0, 0, 1],
            [400 + 2 * SCALAR_BYTES, 8],
        ),
        # So many empty or tiny ones do not all go to one server.
        (zeros(0, 0, 0, 0), {}, [0, 1, 0, 1], [2 * SCALAR_BYTES] * 2),
        # Also where the type is not that of the value.
        ([np.zeros(3), [1.0] * 4], {"dtype": tf.float64}, [0, 1], [24, 32]),
    ],
    ids=["least loaded", "scalars together", "at least a scalar", "bytes of the type"],
)
def test_each_variable_goes_to_the_server_with_fewest_bytes(
    placement, values, options, expected, num_bytes
):
    assert expected == servers(placement, *values, **options)
    assert num_bytes == placement.num_bytes


def test_initial_values_may_be_functions(placement):
    """As Keras gives them; each is called once."""
    calls = []

    def initial():
        calls.append(1)
        return tf.ones([2])

    assert [0] == servers(placement, initial)
    assert [1] == calls


def test_a_device_of_the_user_does_not_count(placement):
    """It would be one of this process."""
    with tf.device(CPU[0]):
        assert [0, 1] == servers(placement, tf.zeros([1]), tf.zeros([1]))


def test_variables_can_be_put_on_one_server(placement):
    """Scalars too; afterwards the balance decides, which has counted them."""
    with placement.on(CPU[2]):
        assert [1, 1, 1] == servers(placement, 1.0, tf.zeros([4]), tf.zeros([4]))
        with placement.on(CPU[1]):
            assert [0] == servers(placement, 1.0)
        assert [1] == servers(placement, tf.zeros([1]))

    assert [0, 0] == servers(placement, tf.zeros([8]), 1.0)


def test_a_forced_server_holds_in_its_thread_only(placement):
    """Another thread may make a model meanwhile."""
    found = []
    with placement.on(CPU[2]):
        thread = threading.Thread(
            target=lambda: found.extend(servers(placement, tf.zeros([1])))
        )
        thread.start()
        thread.join()

    assert [0] == found


def test_what_is_elsewhere_has_no_server(placement):
    """Variables that were made outside the scope."""
    with tf.device(CPU[0]):
        assert placement.server_of(tf.Variable(1.0)) is None
