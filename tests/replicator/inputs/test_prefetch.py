"""Batches that wait on the devices of replicas: where they are, and in which order."""

import pytest
import tensorflow as tf

import replicator
from replicator import InputReplicationMode
from replicator.errors import InputModeError
from replicator.inputs.prefetch import DevicePrefetch, refuse

DEVICES = ["CPU:0", "CPU:1"]
HOST = "/job:localhost/replica:0/task:0/device:CPU:0"


def numbered(num_batches):
    def input_fn(ctx):
        start = 100 * ctx.input_pipeline_id
        return tf.data.Dataset.range(start, start + num_batches)

    return input_fn


def read(inputs, num_steps):
    return [[int(value) for value in inputs.get_next()] for _ in range(num_steps)]


@pytest.fixture(scope="module")
def on_two_devices():
    """Two replicas on virtual devices of the CPU, the second beside the pipelines."""
    return replicator.create("in_graph", num_replicas=2, devices=DEVICES)


@pytest.mark.parametrize("mode", InputReplicationMode)
def test_each_batch_waits_on_the_device_of_its_replica(on_two_devices, mode):
    repl = on_two_devices
    plain = repl.make_input_iterator(numbered(8), mode)
    ahead = repl.make_input_iterator(numbered(8), mode, prefetch_to_device=2)

    batch = ahead.get_next()

    assert list(repl.devices) == [value.device for value in batch]
    assert read(plain, 3) == [[int(value) for value in batch], *read(ahead, 2)]


def test_steps_read_what_waits(on_two_devices):
    """In one dispatch or several, to the end of the data and from its start again."""
    repl = on_two_devices
    inputs = repl.make_input_iterator(numbered(7), prefetch_to_device=2)

    def step(x):
        return replicator.all_sum(x)

    assert [0 + 1, 4 + 5] == [
        int(repl.run(step, inputs, num_steps=n)[0]) for n in (1, 2)
    ]
    with pytest.raises(tf.errors.OutOfRangeError):
        repl.run(step, inputs)
    inputs.reinitialize()
    assert 0 + 1 == int(repl.run(step, inputs)[1])


def test_a_pipeline_works_ahead_of_the_steps():
    """Without prefetching it reads when it is asked, with it before."""
    repl = replicator.create("in_graph", num_replicas=2)
    num_read = {}

    def counting(name):
        def input_fn(_):
            counter = num_read[name] = tf.Variable(0, dtype=tf.int64)
            data = tf.data.Dataset.range(100)
            options = tf.data.Options()
            # tf.data may put a small buffer of its own at the end of a pipeline.
            options.experimental_optimization.inject_prefetch = False
            return data.map(lambda x: x + 0 * counter.assign_add(1)).with_options(
                options
            )

        return input_fn

    plain = repl.make_input_iterator(counting("plain"))
    ahead = repl.make_input_iterator(counting("ahead"), prefetch_to_device=3)
    assert [[0, 1]] == read(plain, 1) == read(ahead, 1)
    while int(num_read["ahead"]) < 2 + 3 * 2:  # a thread fills the buffer
        pass

    assert 2 == int(num_read["plain"])


@pytest.mark.parametrize(
    ("devices", "how"),
    [
        # The state of tf.data holds the buffer.
        (None, "exact, from the state of the iterators"),
        (DEVICES, "by skipping the 3 steps that were read (batches prefetched to"),
    ],
)
def test_training_continues_with_the_batch_behind_the_last_one(tmp_path, devices, how):
    """What waited when the checkpoint was saved is read again, on any device."""
    repl = replicator.create("in_graph", num_replicas=2, devices=devices)
    with repl.context():
        weight = tf.Variable(1.0)
    inputs = repl.make_input_iterator(numbered(20), prefetch_to_device=2)
    manager = repl.make_checkpoint_manager(tmp_path, inputs=inputs, weight=weight)
    read(inputs, 3)
    manager.save(3)
    read(inputs, 4)

    restored = manager.restore()

    assert restored.input_position.startswith(how)
    assert [[6, 7]] == read(inputs, 1)


def test_a_stock_strategy_prefetches_in_its_own_way():
    repl = replicator.create("tf_mirrored", num_replicas=2, devices=DEVICES)
    inputs = repl.make_input_iterator(numbered(8), prefetch_to_device=3)

    assert [[0, 1], [2, 3]] == read(inputs, 2)


@pytest.mark.parametrize("wrong", [-1, True, "2", 1.5])
def test_a_number_of_batches_that_makes_no_sense(on_two_devices, wrong):
    with pytest.raises(ValueError, match=r"prefetch_to_device .* .batches to prefetch"):
        on_two_devices.make_input_iterator(numbered(1), prefetch_to_device=wrong)


def test_workers_that_come_and_go_do_not_prefetch():
    with pytest.raises(InputModeError, match=r"prefetch_to_device=2 .*\.prefetch\(2\)"):
        refuse(2, "SomeReplicator")


def test_only_what_is_elsewhere_is_copied():
    """A replica on its pipeline's own CPU device has its batches there already."""
    gpu = HOST.replace("CPU:0", "GPU:1")
    remote = HOST.replace("localhost", "worker")

    assert not DevicePrefetch(num_batches=1, devices=(HOST, HOST)).copies
    assert DevicePrefetch(num_batches=1, devices=(HOST, gpu)).copies
    assert not DevicePrefetch(
        num_batches=1, devices=(HOST, remote), sources=(HOST, remote)
    ).copies
    # One pipeline feeds two processes: its batches wait where it is.
    assert not DevicePrefetch(
        num_batches=1, devices=(HOST, remote), sources=(HOST,)
    ).copies
