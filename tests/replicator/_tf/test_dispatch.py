"""Programs are started by name, with what tf.function would have looked at fixed."""

import contextlib
import ipaddress
import os
import socket

import numpy as np
import pytest
import tensorflow as tf

import replicator
from replicator import PerReplica
from replicator._tf.dispatch import Dispatch, recorded
from replicator.cluster import port_filter
from replicator.cluster.local_cluster import free_ports
from replicator.cluster.port_filter import PRIVATE


def test_an_error_of_a_step_names_its_operation(repl_once):
    def step(x):
        tf.debugging.assert_less(x, 1.0, message="too large")
        return x

    values = PerReplica([tf.constant(2.0)] * repl_once.num_replicas)
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        repl_once.run(step, values)


def test_soft_placement_is_that_of_the_call():
    repl = replicator.create("single")
    before = tf.config.get_soft_device_placement()
    try:
        for is_soft in (False, True):
            tf.config.set_soft_device_placement(is_soft)
            assert 1.0 == float(repl.run(_one)[0])
    finally:
        tf.config.set_soft_device_placement(before)


def _one():
    return tf.constant(1.0)


def test_a_tape_around_run_records_nothing(repl_once):
    weight = tf.Variable(2.0)

    def step():
        return weight * 3.0

    with tf.GradientTape() as tape:
        loss = repl_once.reduce("mean", repl_once.run(step))

    assert 6.0 == float(loss)
    assert tape.gradient(loss, weight) is None


def test_a_stock_strategy_takes_rows_of_other_numbers_in_every_step():
    """Its collectives refuse another shape under the number that they had."""
    repl = replicator.create("tf_mirrored", num_replicas=2, devices=["CPU:0", "CPU:1"])
    with repl.context():
        table = tf.Variable(np.zeros((4, 1), np.float32))
        optimizer = repl.wrap_optimizer(tf.keras.optimizers.SGD(1.0))

    def step(batch):
        ids, count = batch
        rows = ids[:count]
        values = tf.ones([tf.size(rows), 1])
        slices = tf.IndexedSlices(values, rows, tf.constant([4, 1]))
        optimizer.apply_gradients([(slices, table)])

    ids = PerReplica([tf.constant([0, 1, 2, 3])] * 2)
    for counts in ((1, 2), (4, 3), (2, 2)):
        repl.run(step, (ids, PerReplica([tf.constant(c) for c in counts])))

    np.testing.assert_allclose(table.numpy()[:, 0], [-3.0, -2.5, -1.0, -0.5])


def test_nodes_of_a_function_are_counted_in_each_call():
    """Those of a branch too; what is started in a block is recorded there only."""
    called = tf.function(lambda x: tf.sin(tf.cos(x)))

    def nodes(function):
        dispatch = Dispatch(lambda x: [function(x)])
        with recorded() as started:
            dispatch(tf.constant(1.0))
        dispatch(tf.constant(2.0))
        assert [dispatch] == started
        return dispatch.num_nodes()

    once = nodes(called)
    assert 1 == nodes(lambda x: tf.sin(called(x))) - once
    own = nodes(tf.cos)
    body = nodes(lambda x: called(called(x))) - once - 1  # the call is a node
    assert body == once - own
    branch = nodes(lambda x: tf.cond(x > 0, lambda: tf.sin(x), lambda: x))
    more = nodes(lambda x: tf.cond(x > 0, lambda: tf.sin(tf.cos(x)), lambda: x))
    assert 1 == more - branch


WAIT_SEC = 0.3


def reaches(listener, name, source):
    target = (name, listener.getsockname()[1])
    with contextlib.suppress(TimeoutError):
        socket.create_connection(target, WAIT_SEC, source_address=(source, 0)).close()
        return True
    return False


@pytest.fixture
def dual():
    """A socket that listens as TensorFlow's does, for IPv4 and IPv6."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with socket.create_server(
        ("", 0), family=socket.AF_INET6, dualstack_ipv6=True
    ) as listener:
        yield listener


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        (["127.0.0.1/32"], [True, False, False]),
        (["10.0.0.0/8", "127.0.0.2/31"], [False, True, False]),
        (["::/64", "127.0.0.1/32"], [True, False, True]),
        (["0.0.0.0/0", "::/0"], [True, True, True]),
        (list(map(str, PRIVATE)), [True, True, True]),
    ],
)
def test_only_allowed_networks_come_through(dual, allowed, expected):
    program = port_filter.filter_program(list(map(ipaddress.ip_network, allowed)))
    port_filter.attach(dual, program)

    assert expected == [
        reaches(dual, address, address) for address in ("127.0.0.1", "127.0.0.2", "::1")
    ]
    assert len(program) < 256


def test_tensorflow_calls_listen_through_its_tables():
    """Fails where a new TensorFlow does not: its ports could not be closed in time."""
    assert port_filter._slots()


def start(port):
    return tf.distribute.Server(
        {"worker": [f"localhost:{port}"]}, job_name="worker", task_index=0
    )


def test_the_filter_is_there_before_tensorflow_listens():
    (port,) = free_ports(1)
    listened = []

    def close(descriptor):
        with socket.socket(fileno=os.dup(descriptor)) as opened:
            listened.append(opened.getsockname()[1])
            port_filter.attach(opened, port_filter.filter_program([]))

    with port_filter.before_listen(close):
        start(port)

    assert [port] == listened
    with pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", port), WAIT_SEC)


def test_tensorflow_does_not_listen_on_what_cannot_be_prepared():
    (port,) = free_ports(1)

    def fail(_descriptor):
        raise OSError("no filter")

    with port_filter.before_listen(fail), pytest.raises(tf.errors.UnknownError):
        start(port)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), WAIT_SEC)
    kept = start(port)
    socket.create_connection(("127.0.0.1", port), WAIT_SEC).close()
    del kept
