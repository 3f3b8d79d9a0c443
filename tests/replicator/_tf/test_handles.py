"""Every way to write a variable from Python is noticed, and it stays a variable.

Who else can write one is seen in ``tests/replicator/variables``, and how one moves to
another device in ``tests/replicator/optimizer/test_sharded_update.py``.
"""

import copy

import tensorflow as tf

SLICES = tf.IndexedSlices(tf.constant([7.0]), tf.constant([0]))
KINDS = ("assign", "scatter", "batch_scatter")
# Whatever method of a variable takes an update, also in a new TensorFlow.
METHODS = [name for name in dir(tf.Variable) if name.startswith(KINDS)]
WRITES = {
    **{name: lambda v, name=name: getattr(v, name)(SLICES) for name in METHODS},
    **{
        name: lambda v, name=name: getattr(v, name)([[0]], [7.0])
        for name in METHODS
        if "_nd_" in name
    },
    **{
        name: lambda v, name=name: getattr(v, name)([7.0, 8.0])
        for name in METHODS
        if name.startswith("assign")
    },
    "slice": lambda v: v[:1].assign([7.0]),
    "restore": lambda v: v._restore_from_tensors({"VARIABLE_VALUE": 7.0 * tf.ones(2)}),
}


def test_each_write_of_python_reaches_every_replica(mirrored):
    """Without a check of values: only the write itself says so."""
    repl = mirrored(external_writes="never")
    with repl.context():
        variable = tf.Variable([1.0, 2.0])

    def step():
        return variable.read_value()

    repl.run(step)
    found, changed = {}, {}
    for name, write in WRITES.items():
        variable.assign([20.0, 2.0] if "min" in name else [2.0, 2.0])
        before = variable.numpy().tolist()
        repl.run(step)
        write(variable)
        changed[name] = before != variable.numpy().tolist()
        found[name] = [value.numpy().tolist() for value in repl.run(step)]
        assert [variable.numpy().tolist()] * 2 == found[name], name

    assert len(METHODS) > 10
    assert dict.fromkeys(WRITES, True) == changed


def test_a_watched_variable_is_still_a_variable(mirrored, tmp_path):
    repl = mirrored()
    with repl.context():
        variable = tf.Variable([0.0, 0.0])
    repl.run(lambda: variable.assign_add([1.0, 1.0]))
    module = tf.Module()
    module.variable = variable
    module.call = tf.function(lambda: 2.0 * variable, input_signature=[])
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(variable)

    assert "ResourceVariable" == type(variable).__name__
    assert isinstance(variable, tf.Variable)
    assert [2.0, 2.0] == loaded.call().numpy().tolist()
    assert [1.0, 1.0] == copy.deepcopy(variable).numpy().tolist()
    assert [1.0, 1.0] == tape.gradient(total, variable).numpy().tolist()
    assert 1.0 == float(tf.function(lambda v: v[0])(variable))
