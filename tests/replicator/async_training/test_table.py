"""Which server holds a variable, and what the workers share of it."""

import threading

import numpy as np
import pytest
import tensorflow as tf

from replicator.async_training import table as table_lib
from replicator.async_training.commit import NUM_BINS, CommitState
from replicator.async_training.table import SCALAR_BYTES, Placement
from replicator.variables.kinds import Kind


def test_a_copy_per_replica_is_on_the_server_of_the_variable(make_job):
    """Also that of replica 0, whose worker is no more than another one."""
    pairs = make_job(share=2)
    with tf.device(pairs.cpus[3]):
        variable = tf.Variable([1.0, 2.0], trainable=False)
    entry = pairs.table.require(variable, Kind.LOCAL)

    assert 5 == len({id(variable), *map(id, entry.copies)})
    assert [pairs.cpus[3]] * 4 == [copy.device for copy in entry.copies]
    assert [[1.0, 2.0]] * 4 == [copy.numpy().tolist() for copy in entry.copies]
    assert not any(copy.trainable for copy in entry.copies)


def test_what_servers_count_starts_at_zero_there(job):
    """Whatever device the caller is on."""
    with tf.device(job.cpus[0]):
        made = CommitState(job.cpus[2], 3, "commit_state of a test")

    variables = [made.clock, made.update_counts, *made.sequence_numbers]
    assert [(job.cpus[2], tf.int64, False)] * 5 == [
        (variable.device, variable.dtype, variable.trainable) for variable in variables
    ]
    assert [0] * 5 == [int(tf.reduce_sum(variable)) for variable in variables]
    assert [NUM_BINS] == made.update_counts.shape


def local(job):
    """A statistic, of which both replicas have copies: 1 and 3 after some steps."""
    variable = tf.Variable([0.0], trainable=False)
    mine = job.table.require(variable, Kind.LOCAL).copies
    job.table.is_published = False
    for copy, value in zip(mine, (1.0, 3.0), strict=True):
        copy.assign([value])
    return variable, mine


def values(variables):
    return [float(variable[0]) for variable in variables]


def test_what_was_published_is_not_taken_for_a_change(job):
    """The copies continue from what each of them had."""
    variable, mine = local(job)

    job.table.publish()
    job.table.refresh()

    assert ([2.0], [1.0, 3.0]) == (values([variable]), values(mine))


def test_what_was_set_outside_reaches_all_copies(job):
    """Before the next steps, also of variables that a later step was traced with.

    Copies of other variables stay as they are.
    """
    local(job)
    job.table.publish()
    job.table.refresh()
    (variable, mine), (_, others) = local(job), local(job)

    variable.assign([7.0])
    job.table.refresh()

    assert [7.0, 7.0] == values(mine)
    assert [1.0, 3.0] == values(others)


def test_functions_are_made_once_for_the_same_variables(job, monkeypatch):
    """Every dispatch asks; none are made of shared variables, which have no copies."""
    made = []
    original = table_lib.Coherence

    def make(*args):
        made.append(args)
        return original(*args)

    monkeypatch.setattr(table_lib, "Coherence", make)
    job.table.require(tf.Variable([1.0]), Kind.MIRRORED)
    job.table.is_published = False
    job.table.publish()
    assert job.table.is_published
    for num_made in range(3):
        for _ in range(3):
            job.table.refresh()
        assert num_made == len(made)
        local(job)


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
