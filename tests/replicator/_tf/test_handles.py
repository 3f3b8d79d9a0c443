"""Who takes the handle of a variable, and what a variable tells of its writes."""

import copy

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from replicator._tf import compat, handles

_TOLD = []


def _note(variable):
    _TOLD.append(variable)


@pytest.fixture
def watched():
    variable = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    handles.watch(variable, _note)
    _TOLD.clear()
    return variable


def _in_function(use):
    return lambda v: tf.function(lambda: use(v), autograph=False)()


def _gradient(variable):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(variable * variable)
    return tape.gradient(loss, [variable])


def _watched_gradient(variable):
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(variable)
        loss = tf.reduce_sum(variable * variable)
    return tape.gradient(loss, variable)


READS = {
    "value": lambda v: v.value(),
    "read_value": lambda v: v.read_value(),
    "numpy": lambda v: v.numpy(),
    "arithmetic": lambda v: v + 1.0,
    "gather": lambda v: tf.gather(v, [0]),
    "lookup": lambda v: tf.nn.embedding_lookup(v, [1]),
    "gather_nd": lambda v: v.gather_nd([[0, 0]]),
    "device": lambda v: (v.device, v.shape, v.name, v.dtype),
    "slice": lambda v: v[0],
    "initialized": lambda v: v.is_initialized(),
    "gradient": _gradient,
    "watched gradient": _watched_gradient,
}
METHODS = {
    "assign": lambda v: v.assign(v + 1.0),
    "assign_add": lambda v: v.assign_add(v),
    "assign_sub": lambda v: v.assign_sub(v),
    "scatter_add": lambda v: v.scatter_add(tf.IndexedSlices([[1.0, 1.0]], [0])),
    "scatter_nd_update": lambda v: v.scatter_nd_update([[0, 0]], [5.0]),
    "sliced": lambda v: v[0].assign([1.0, 1.0]),
}
ASSIGN = METHODS["assign"]


@pytest.mark.parametrize("name", READS)
@pytest.mark.parametrize("is_graph", [False, True], ids=["eager", "graph"])
def test_reading_tells_nobody(watched, name, is_graph):
    """Eagerly, and in a function that others can call."""
    use = READS[name]
    if is_graph and name in ("numpy", "device"):
        pytest.skip("of a variable outside of graphs only")
    (_in_function(use) if is_graph else use)(watched)

    assert [] == _TOLD


@pytest.mark.parametrize("name", METHODS)
def test_methods_write_eagerly_without_telling_and_tell_in_graphs(watched, name):
    """``tell_of_writes`` tells of the former; the latter writes when it is called."""
    METHODS[name](watched)
    assert [] == _TOLD
    _in_function(METHODS[name])(watched)

    assert watched is _TOLD[0]


def _raw(variable):
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=variable + 1.0)


OTHERS = {
    "result of a write": lambda v: v.assign(v + 1.0).assign_add(v),
    "raw op": _raw,
    "raw op in a function": _in_function(_raw),
    "handle": lambda v: v.handle,
    "argument of a function": tf.function(lambda x: x + 1.0),
    "old scatter": lambda v: tf.compat.v1.scatter_update(v, [0], [[1.0, 1.0]]),
    "fused update": compat.handle,
    "branch": _in_function(
        lambda v: tf.cond(tf.reduce_sum(v) > 0, lambda: v.assign(v), v.value)
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_whatever_else_takes_the_handle_tells(watched, name):
    """Also what would only read: nobody knows."""
    OTHERS[name](watched)

    assert watched is _TOLD[0]


def test_a_generator_tells_of_its_state():
    """Its numbers come from ops that write it."""
    generator = tf.random.Generator.from_seed(1)
    handles.watch(generator._state_var, _note)
    _TOLD.clear()
    generator.normal([2])

    assert generator._state_var is _TOLD[0]


@pytest.mark.parametrize("is_inner", [False, True], ids=["the graph", "a function"])
def test_an_own_graph_writes_without_telling(watched, is_inner):
    """With its branches and loops; not a function in it, which others can call."""

    def write():
        tf.cond(
            tf.reduce_sum(watched) > 0,
            lambda: watched.assign_add(watched),
            watched.value,
        )
        for _ in tf.range(2):
            watched.assign_sub(watched)
        _raw(watched)

    def step():
        with handles.own_graph():
            if is_inner:
                tf.function(write)()
            else:
                tf.autograph.to_graph(write)()

    tf.function(step, autograph=False)()
    assert ([watched] if is_inner else []) == _TOLD[:1]
    _in_function(ASSIGN)(watched)
    assert watched is _TOLD[-1]


def test_the_library_takes_handles_for_itself(watched):
    """And writes in graphs of others, where it says so."""
    assert handles.of(watched) is watched._handle

    def step():
        with handles.own():
            ASSIGN(watched)

    tf.function(step, autograph=False)()
    assert [] == _TOLD


def test_only_plain_variables_are_watched():
    """Others are unknown; a class keeps its name, and is made once."""
    first, second = tf.Variable(1.0), tf.Variable(2.0)
    name = type(first).__name__
    for variable in (first, second, first):
        handles.watch(variable, _note)
    other = object()
    handles.watch(other, _note)

    assert type(first) is type(second)
    assert name == type(first).__name__
    assert isinstance(first, tf.Variable)
    assert [True, True, False] == [
        handles.is_watched(of) for of in (first, second, other)
    ]


@pytest.mark.parametrize("dtype", [tf.float32, tf.int64, tf.bool])
def test_a_variable_moves_with_its_value(dtype):
    """Name, value, reads, writes and checkpoints are those of any variable."""
    values = np.array([[1, 0], [1, 1]])
    variable = tf.Variable(values, dtype=dtype, name="moving")
    keras_variable = keras.Variable(np.ones([2, 2]), dtype=dtype.name)
    before = tf.function(variable.read_value)
    before()

    for one in (variable, compat.unwrap(keras_variable)):
        handles.move(one, "CPU:1")

        assert one.device.endswith("CPU:1")
        assert "moving:0" == variable.name
    np.testing.assert_array_equal(values.astype(dtype.as_numpy_dtype), variable)
    variable.assign(tf.cast(values.T, dtype))
    again = tf.function(variable.read_value)
    np.testing.assert_array_equal(values.T.astype(dtype.as_numpy_dtype), again())
    np.testing.assert_array_equal(np.ones([2, 2]), keras_variable.numpy())
    assert [0] == before().shape.as_list()  # and not what the variable was


def test_a_moved_variable_is_watched_still(watched):
    """Who takes its new handle is told of."""
    handles.move(watched, "CPU:1")
    assert [] == _TOLD

    tf.raw_ops.AssignVariableOp(resource=watched.handle, value=tf.zeros([2, 2]))

    assert [watched is told for told in _TOLD]


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
    handles.tell_of_writes(made, _told)
    return made


def test_no_method_that_writes_is_missing():
    """Every public one that TensorFlow's class takes an update in, and no other."""
    names = dir(resource_variable_ops.BaseResourceVariable)
    kinds = ("assign", "scatter", "batch_scatter")

    found = {name for name in names if name.startswith(kinds)}

    assert found == {name for name in handles.WRITES if not name.startswith("_")}


@pytest.mark.parametrize("name", handles.WRITES)
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
    handles.tell_of_writes(variable, _told)
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
