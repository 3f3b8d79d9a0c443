"""Every public function with every kind of argument works, or says what is wrong.

A call leaves one argument of a function open.
"""

import ast
import functools
import inspect
import re
import traceback
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import pytest
import tensorflow as tf

import replicator

PAIR = replicator.PerReplica([tf.constant([1.0]), tf.constant([2.0])])


def _pipeline(ctx):
    return tf.data.Dataset.range(8).batch(2)


def _context():
    return replicator.InputContext(
        num_input_pipelines=1, input_pipeline_id=0, num_replicas_in_sync=2
    )


def _identity(batch):
    return batch


def _audit(repl, input_fn=_pipeline, key_fn=_identity, **options):
    return repl.audit_inputs(input_fn, key_fn=key_fn, **options)


def _make_inputs(repl, input_fn=_pipeline, *mode, **options):
    return repl.make_input_iterator(input_fn, *mode, **options)


def _on_mesh(**options):
    return replicator.create("dtensor", **options)


def _wrap(repl, **options):
    return repl.wrap_optimizer(keras.optimizers.SGD(0.1), **options)


def _manager(repl, folder, **options):
    given = {"weight": tf.Variable(1.0), **options}
    return repl.make_checkpoint_manager(folder, **given)


def _elastic(repl, **options):
    given = {"weight": tf.Variable(1.0), **options}
    return replicator.ElasticState(repl, **given)


def _batch():
    rows = tf.reshape(tf.range(8.0), [4, 2])
    return rows, rows[:, :1]


def _model(repl):
    with repl.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.build([None, 2])
    return model


# Inside a step on two replicas; what it returns is returned.
IN_STEP = {
    **{
        f"{name}(value)": getattr(replicator, name)
        for name in (
            "all_sum",
            "all_mean",
            "all_min",
            "all_max",
            "all_gather",
            "reduce_scatter",
            "all_to_all",
        )
    },
    "reduce_scatter(x, value)": lambda v: replicator.reduce_scatter(tf.ones([2]), v),
    "permute(value, pairs)": lambda v: replicator.permute(v, [(0, 1)]),
    "permute(x, value)": lambda v: replicator.permute(1.0, v),
    "permute(x, [value])": lambda v: replicator.permute(1.0, [v]),
    "permute(x, [(0, value)])": lambda v: replicator.permute(1.0, [(0, v)]),
    "all_reduce(x, value)": lambda v: replicator.all_reduce(1.0, v),
    "all_reduce(x, compression=value)": lambda v: replicator.all_reduce(
        1.0, compression=v
    ),
    "broadcast(value)": replicator.broadcast,
    "broadcast(x, value)": lambda v: replicator.broadcast(1.0, v),
    "map_reduce(value, items)": lambda v: replicator.map_reduce(v, [1.0, 2.0]),
    "map_reduce(fn, value)": lambda v: replicator.map_reduce(
        lambda _: tf.constant(1.0), v
    ),
    "map_reduce(fn, items) of value": lambda v: replicator.map_reduce(
        lambda _: v, [1, 2, 3]
    ),
    "map_reduce(fn, items, value)": lambda v: replicator.map_reduce(
        lambda x: x, [1.0, 2.0], v
    ),
    "map_gather(value, fn)": lambda v: replicator.map_gather(
        v, lambda _: tf.constant(1.0)
    ),
    "map_gather(items, value)": lambda v: replicator.map_gather([1.0], v),
    "map_gather(items, fn) of value": lambda v: replicator.map_gather(
        [1, 2], lambda _: v
    ),
    "mean_over_examples(value)": replicator.mean_over_examples,
    "logical_device(value)": lambda v: replicator.logical_device(v).__enter__(),
    "a step's return value": lambda v: v,
}
# There too, with a weight of two numbers and its optimizer.
OF_OPTIMIZERS = {
    "apply_gradients(value)": lambda o, w, v: o.apply_gradients(v),
    "apply_gradients([(value, w)])": lambda o, w, v: o.apply_gradients([(v, w)]),
    "apply_gradients([(g, value)])": lambda o, w, v: o.apply_gradients(
        [(tf.ones([2]), v)]
    ),
    "apply(value, [w])": lambda o, w, v: o.apply(v, [w]),
    "apply([g], value)": lambda o, w, v: o.apply([tf.ones([2])], v),
    "scale_loss(value)": lambda o, w, v: o.scale_loss(v),
}
# In cross-replica context.
OUTSIDE = {
    "PerReplica(value)": lambda repl, v: replicator.PerReplica(v),
    "create(value)": lambda repl, v: replicator.create(v),
    **{
        f"create({name}=value)": lambda repl, v, name=name: replicator.create(
            "in_graph", **{name: v}
        )
        for name in (
            "num_replicas",
            "devices",
            "variable_placement",
            "external_writes",
            "timeout_sec",
            "logical_devices_per_replica",
        )
    },
    "StrategyReplicator(value)": lambda repl, v: replicator.StrategyReplicator(v),
    "run(value)": lambda repl, v: repl.run(v),
    "run(step, value)": lambda repl, v: repl.run(_identity, v),
    "run(step, [value])": lambda repl, v: repl.run(_identity, [v]),
    "run(step, PerReplica([value, value]))": lambda repl, v: repl.run(
        _identity, replicator.PerReplica([v, v])
    ),
    "run(step, num_steps=value)": lambda repl, v: repl.run(
        lambda: tf.constant(1.0), num_steps=v
    ),
    "reduce(value, x)": lambda repl, v: repl.reduce(v, PAIR),
    **{
        f"reduce({op!r}, PerReplica([value, value]))": lambda repl, v, op=op: (
            repl.reduce(op, replicator.PerReplica([v, v]))
        )
        for op in ("sum", "mean", "min")
    },
    "reduce('sum', value)": lambda repl, v: repl.reduce("sum", v),
    "make_input_iterator(value)": _make_inputs,
    "make_input_iterator(input_fn of value)": lambda repl, v: _make_inputs(
        repl, lambda ctx: v
    ),
    "make_input_iterator(input_fn, value)": lambda repl, v: _make_inputs(
        repl, _pipeline, v
    ),
    "make_input_iterator(prefetch_to_device=value)": lambda repl, v: _make_inputs(
        repl, prefetch_to_device=v
    ),
    "audit_inputs(value)": _audit,
    "audit_inputs(input_fn of value)": lambda repl, v: _audit(repl, lambda ctx: v),
    "audit_inputs(key_fn=value)": lambda repl, v: _audit(repl, key_fn=v),
    "audit_inputs(key_fn of value)": lambda repl, v: _audit(repl, key_fn=lambda _: v),
    "audit_inputs(num_examples=value)": lambda repl, v: _audit(repl, num_examples=v),
    "verify_fit(value, batch)": lambda repl, v: repl.verify_fit(v, _batch()),
    "verify_fit(model, value)": lambda repl, v: repl.verify_fit(_model(repl), v),
    "verify_fit(model, batch, value)": lambda repl, v: repl.verify_fit(
        _model(repl), _batch(), v
    ),
    "wrap_optimizer(value)": lambda repl, v: repl.wrap_optimizer(v),
    **{
        f"wrap_optimizer({name}=value)": lambda repl, v, name=name: _wrap(
            repl, **{name: v}
        )
        for name in (
            "compression",
            "accumulation_steps",
            "global_clipnorm",
            "sharded_update",
            "loss_scale",
        )
    },
    "optimizer.build(value)": lambda repl, v: _wrap(repl).build(v),
    "repl.logical_device(value)": lambda repl, v: repl.logical_device(v),
    "get_per_replica_batch_size(value)": lambda repl, v: (
        _context().get_per_replica_batch_size(v)
    ),
    "split_global_batches(value, ctx, 4)": lambda repl, v: (
        replicator.split_global_batches(v, _context(), 4)
    ),
    "split_global_batches(dataset, value, 4)": lambda repl, v: (
        replicator.split_global_batches(tf.data.Dataset.range(8), v, 4)
    ),
    "split_global_batches(dataset, ctx, value)": lambda repl, v: (
        replicator.split_global_batches(tf.data.Dataset.range(8), _context(), v)
    ),
    "split_global_batches(uneven=value)": lambda repl, v: (
        replicator.split_global_batches(
            tf.data.Dataset.range(8), _context(), 4, uneven=v
        )
    ),
    "ElasticState(value)": lambda repl, v: replicator.ElasticState(
        v, weight=tf.Variable(1.0)
    ),
    **{
        f"ElasticState({name}=value)": lambda repl, v, name=name: _elastic(
            repl, **{name: v}
        )
        for name in ("inputs", "batches", "scale_learning_rate", "weight")
    },
    "steps(value)": lambda repl, v: _elastic(repl).steps(v),
    "steps(1, commit_every=value)": lambda repl, v: _elastic(repl).steps(
        1, commit_every=v
    ),
    "Pipeline(value)": lambda repl, v: replicator.Pipeline(v, num_microbatches=2),
    "Pipeline(num_microbatches=value)": lambda repl, v: replicator.Pipeline(
        [_identity], num_microbatches=v
    ),
    "Pipeline(schedule=value)": lambda repl, v: replicator.Pipeline(
        [_identity], num_microbatches=2, schedule=v
    ),
    "named(value)": lambda repl, v: replicator.named(v, "rows"),
    "named(w, value)": lambda repl, v: replicator.named(tf.Variable([1.0]), v),
    "create('dtensor', mesh=value)": lambda repl, v: _on_mesh(mesh=v),
    "create('dtensor', layout=value)": lambda repl, v: _on_mesh(layout=v),
    "create('dtensor', names=value)": lambda repl, v: _on_mesh(names=v),
    "balance_stages(value, 1)": lambda repl, v: replicator.balance_stages(v, 1),
    "make_stages(value)": lambda repl, v: replicator.make_stages(
        v, tf.TensorSpec([1, 1]), 1
    ),
    "make_stages(example)": lambda repl, v: replicator.make_stages(
        [lambda: keras.layers.Dense(1)], v, 1
    ),
    "make_stages(balance)": lambda repl, v: replicator.make_stages(
        [lambda: keras.layers.Dense(1)], tf.TensorSpec([1, 1]), 1, balance=v
    ),
    "balance_stages([1], value)": lambda repl, v: replicator.balance_stages([1], v),
    "CrossReplicaBatchNormalization(variance_form=value)": lambda repl, v: (
        replicator.CrossReplicaBatchNormalization(variance_form=v)
    ),
    **{
        f"ShardedEmbedding({name}=value)": lambda repl, v, name=name: (
            replicator.ShardedEmbedding(
                **{"num_rows": 4, "num_columns": 2, "num_parts": 2, name: v}
            )
        )
        for name in ("num_rows", "num_columns", "num_parts")
    },
    "set_determinism(value)": lambda repl, v: (
        None if v is None else replicator.set_determinism(v)
    ),
    **{
        f"default_data_options({name}=value)": lambda repl, v, name=name: (
            replicator.default_data_options(**{name: v})
        )
        for name in ("deterministic", "autotune", "num_threads")
    },
}
# With a folder of their own.
IN_FOLDER = {
    "make_checkpoint_manager(value)": lambda repl, v, folder: _manager(repl, v),
    "make_checkpoint_manager(weight=value)": lambda repl, v, folder: _manager(
        repl, folder, weight=v
    ),
    "make_checkpoint_manager(max_to_keep=value)": lambda repl, v, folder: _manager(
        repl, folder, max_to_keep=v
    ),
    "make_checkpoint_manager(inputs=value)": lambda repl, v, folder: _manager(
        repl, folder, inputs=v
    ),
    "timeline(value)": lambda repl, v, folder: repl.timeline(v),
    "save(value)": lambda repl, v, folder: _manager(repl, folder).save(v),
    "restore(value)": lambda repl, v, folder: _manager(repl, folder).restore(v),
    "read_metadata(value)": lambda repl, v, folder: _manager(
        repl, folder
    ).read_metadata(v),
}
NAMES = [*IN_STEP, *OF_OPTIMIZERS, *OUTSIDE, *IN_FOLDER]


def call(name, repl, value, folder):
    if name in IN_FOLDER:
        return IN_FOLDER[name](repl, value, folder)
    if name in OUTSIDE:
        return OUTSIDE[name](repl, value)
    if name in IN_STEP:
        return repl.run(lambda: IN_STEP[name](value))
    with repl.context():
        weight = tf.Variable([1.0, 2.0])
        optimizer = _wrap(repl)
        optimizer.build([weight])
    return repl.run(lambda: OF_OPTIMIZERS[name](optimizer, weight, value))


class Pair(NamedTuple):
    left: tf.Tensor
    right: tf.Tensor


def _indexed_slices():
    return tf.IndexedSlices(
        tf.constant([[1.0], [2.0]]), tf.constant([0, 0]), tf.constant([3, 1])
    )


KINDS = {
    "None": lambda: None,
    "a Python float": lambda: 2.5,
    "a Python int": lambda: 3,
    "a negative int": lambda: -1,
    "a Python bool": lambda: True,
    "a NaN": lambda: float("nan"),
    "a huge int": lambda: 10**30,
    "a Python string": lambda: "text",
    "bytes": lambda: b"bytes",
    "an empty list": list,
    "an empty dict": dict,
    "a list with None": lambda: [None, 1.0],
    "a dict of lists": lambda: {"a": [tf.constant(1.0)], "b": (tf.constant([2]),)},
    "a namedtuple": lambda: Pair(tf.constant(1.0), tf.constant(2.0)),
    "a set": lambda: {1.0, 2.0},
    "a generator": lambda: (x for x in (1.0, 2.0)),
    "a function": lambda: lambda *_: tf.constant(1.0),
    "an object": object,
    "an exception": lambda: ValueError("an argument"),
    "float32": lambda: tf.constant([1.0, 2.0]),
    "float64": lambda: tf.constant([1.0], tf.float64),
    "float16": lambda: tf.constant([1.0], tf.float16),
    "bfloat16": lambda: tf.constant([1.0], tf.bfloat16),
    "complex64": lambda: tf.constant([1.0 + 2.0j], tf.complex64),
    "int64": lambda: tf.constant([1, 2], tf.int64),
    "uint8": lambda: tf.constant([1, 2], tf.uint8),
    "bool": lambda: tf.constant([True, False]),
    "string": lambda: tf.constant(["a", "b"]),
    "an empty tensor": lambda: tf.zeros([0, 2]),
    "ragged": lambda: tf.ragged.constant([[1.0], [2.0, 3.0]]),
    "ragged strings": lambda: tf.ragged.constant([["a"], ["b", "c"]]),
    "sparse": lambda: tf.sparse.from_dense([[0.0, 1.0], [2.0, 0.0]]),
    "IndexedSlices": _indexed_slices,
    "a tf.Variable": lambda: tf.Variable([1.0, 2.0]),
    "a Keras variable": lambda: keras.Variable([1.0, 2.0]),
    "NumPy floats": lambda: np.ones([2], np.float32),
    "NumPy objects": lambda: np.array([object(), None]),
    "NumPy strings": lambda: np.array(["a", "b"]),
    "a large array": lambda: np.arange(3000.0).reshape(50, 60),
    "a long text": lambda: "a line\n" * 500,
    "an integer of 6000 digits": lambda: 10**6000,
    "a TensorSpec": lambda: tf.TensorSpec([2]),
    "a dataset": lambda: tf.data.Dataset.range(3),
    "a dataset's iterator": lambda: iter(tf.data.Dataset.range(3)),
    "a PerReplica": lambda: replicator.PerReplica([tf.constant(1.0), tf.constant(2.0)]),
    "a nested PerReplica": lambda: replicator.PerReplica(
        [replicator.PerReplica([1.0]), replicator.PerReplica([2.0])]
    ),
    "a Keras layer": lambda: keras.layers.Dense(1),
    "a Keras optimizer": lambda: keras.optimizers.SGD(0.1),
}


# Errors of what the user passed, when it is called: they must come through.
ERRORS_OF_USERS = {
    ("run(value)", "a Keras layer"),
    ("map_reduce(value, items)", "a Keras layer"),
    ("map_gather(items, value)", "a Keras layer"),
    ("audit_inputs(key_fn=value)", "a Keras layer"),
    ("make_input_iterator(value)", "a Keras layer"),
    ("audit_inputs(value)", "a Keras layer"),
}
# Every sixth kind of argument: neighbours are of one sort. ``make test`` takes the
# parts in turn; functions that share their checks follow each other.
NUM_PARTS = 6
PARTS = [list(KINDS)[first::NUM_PARTS] for first in range(NUM_PARTS)]
CALLS = [
    pytest.param(
        name,
        part,
        id=f"{name}-{part}",
        marks=[] if part == number % NUM_PARTS else pytest.mark.full,
    )
    for number, name in enumerate(NAMES)
    for part in range(NUM_PARTS)
]
FOLDER = str(Path(replicator.__file__).parent)
_LAST_LINE = re.compile(r"\n\n    \w+: ")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def complaint(error):
    """Says what is wrong with an error; None if the library raised it itself.

    An error of Python's that passes through the library (``'NoneType' object is not
    callable``) has its last frame there, too, but at a line that does not raise.
    """
    if not isinstance(error, (replicator.ReplicatorError, TypeError, ValueError)):
        return f"a {type(error).__name__} from {place_of(error)}"
    path, line = place_of(error)
    if not path.startswith(FOLDER):
        return f"raised in {path}:{line}"
    if not any(first <= line <= last for first, last in _raise_statements(path)):
        return f"passed through {Path(path).name}:{line}"
    if "\n" in message_of(error):
        return "a message of several lines"
    return None


def message_of(error):
    """What an error says; AutoGraph puts it behind the lines that lead there."""
    text = str(error)
    if "in user code:" not in text:
        return text
    return _LAST_LINE.split(text)[-1].strip()


def place_of(error):
    """File and line where an error comes from; AutoGraph hides it in the message."""
    frames = _FRAME.findall(str(error).partition("in user code:")[2])
    if frames:
        path, line = frames[-1]
        return path, int(line)
    last = traceback.extract_tb(error.__traceback__)[-1]
    return last.filename, last.lineno or 0


@functools.cache
def _raise_statements(path):
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    return [
        (node.lineno, node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)
    ]


def _answers(name, part, folder):
    found = {}
    for kind in PARTS[part]:
        make = KINDS[kind]
        repl = replicator.create("in_graph", num_replicas=2)
        place = folder / kind.replace(" ", "_").replace("'", "")
        try:
            call(name, repl, make(), str(place))
        except Exception as error:  # noqa: BLE001 - judged, whatever it is
            said = complaint(error)
            if said and (name, kind) not in ERRORS_OF_USERS:
                found[kind] = f"{said}: {error}"
    return found


@pytest.mark.parametrize(("name", "part"), CALLS)
def test_any_argument_is_taken_or_refused_by_the_library(
    name, part, tmp_path, monkeypatch
):
    """A ReplicatorError, TypeError or ValueError of its own, in one line."""
    monkeypatch.chdir(tmp_path)  # any string is a valid path

    found = _answers(name, part, tmp_path)
    replicator.set_determinism(None)

    assert not found, "\n".join(f"{kind}: {text}" for kind, text in found.items())


def test_every_public_function_is_called():
    # Results and contexts, which users do not make.
    made_by_the_library = {
        "CheckpointManager",
        "InputAudit",
        "InputIterator",
        "ReplicaContext",
        "ReplicatedOptimizer",
        "Replicator",
        "RestoredCheckpoint",
    }
    # Enumerations, records, and what takes no argument.
    without_arguments = {
        "InputContext",
        "InputReplicationMode",
        "backend_names",
        "get_replica_context",
    }
    # ``create`` makes them.
    backends = {n for n in replicator.__all__ if n.endswith("Replicator")}
    backends -= {"StrategyReplicator"}
    # The library raises them.
    errors = {n for n in replicator.__all__ if n.endswith(("Error", "Warning"))}
    called = {re.sub(r"^\w+\.|\(.*", "", name) for name in NAMES}
    asked = set(replicator.__all__) - made_by_the_library - without_arguments
    asked -= backends | errors

    assert set() == asked - called

    methods = {
        name
        for name, member in inspect.getmembers(replicator.Replicator)
        if inspect.isfunction(member) and not name.startswith("_")
    }
    # Without arguments of users: they describe, check, and serve checkpoints.
    of_the_library = {
        "as_strategy",
        "assert_in_sync",
        "check_alive",
        "context",
        "counts",
        "explain",
        "summary",
        "gather_bytes",
        "local_state",
        "restored",
        "restore_local_state",
        "scope",
        "consolidated_state",
    }

    assert set() == methods - of_the_library - called
