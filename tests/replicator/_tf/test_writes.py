"""A variable tells of what Python writes to it, and stays the variable that it was."""

import copy

import pytest
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from replicator._tf import writes

TOLD = []
SLICES = tf.IndexedSlices(tf.constant([1.0]), tf.constant([0]))
PLACES, VALUES = tf.constant([[0]]), tf.constant([1.0])
RESTORED = {"VARIABLE_VALUE": tf.ones([2])}
CALLS = {
    "assign": lambda v: v.assign([1.0, 2.0]),
    "assign_add": lambda v: v.assign_add([1.0, 2.0]),
    "assign_sub": lambda v: v.assign_sub([1.0, 2.0]),
    "_strided_slice_assign": lambda v: v[:1].assign([1.0]),
    "_restore_from_tensors": lambda v: v._restore_from_tensors(RESTORED),
    "batch_scatter_update": lambda v: v.batch_scatter_update(SLICES),
}


def _told(variable):
    TOLD.append(variable)


@pytest.fixture
def variable():
    TOLD.clear()
    made = tf.Variable([0.0, 0.0])
    writes.tell_of_writes(made, _told)
    return made


def test_no_method_that_writes_is_missing():
    """Every public one that TensorFlow's class takes an update in, and no other."""
    names = dir(resource_variable_ops.BaseResourceVariable)
    kinds = ("assign", "scatter", "batch_scatter")

    found = {name for name in names if name.startswith(kinds)}

    assert found == {name for name in writes.WRITES if not name.startswith("_")}


@pytest.mark.parametrize("name", writes.WRITES)
def test_each_write_is_told_once_it_is_done(variable, name):
    def call():
        if name in CALLS:
            return CALLS[name](variable)
        if "_nd_" in name:
            return getattr(variable, name)(PLACES, VALUES)
        return getattr(variable, name)(SLICES)

    call()

    assert any(told is variable for told in TOLD)
    assert name.endswith(("_min", "_mul", "_div")) or any(variable.numpy())


def test_reads_and_writes_in_graphs_are_not_told(variable):
    """Nor is a write that fails."""
    variable.numpy()
    variable.is_initialized()
    variable.sparse_read([0])
    tf.function(lambda: variable.assign_add([1.0, 1.0]))()
    with pytest.raises(ValueError, match="shape"):
        variable.assign([1.0])

    assert not TOLD


def test_it_is_still_a_variable(variable, tmp_path):
    """To saved models, copies, tapes and functions that take variables."""
    writes.tell_of_writes(variable, _told)
    module = tf.Module()
    module.variable = variable
    module.call = tf.function(lambda: 2.0 * variable, input_signature=[])
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(variable)

    assert "ResourceVariable" == type(variable).__name__
    assert [0.0, 0.0] == loaded.call().numpy().tolist()
    assert [0.0, 0.0] == copy.deepcopy(variable).numpy().tolist()
    assert [1.0, 1.0] == tape.gradient(total, variable).numpy().tolist()
    assert 0.0 == float(tf.function(lambda v: v[0])(variable))
    assert not TOLD
