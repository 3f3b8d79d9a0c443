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
CONTEXT = replicator.InputContext(
    num_input_pipelines=1, input_pipeline_id=0, num_replicas_in_sync=2
)
NUMBERS = tf.data.Dataset.range(8)
SIZES = {"num_rows": 4, "num_columns": 2, "num_parts": 2}


def _pipeline(ctx):
    return NUMBERS.batch(2)


def _identity(batch):
    return batch


def _one():
    return tf.constant(1.0)


def _wrap(repl, **options):
    return repl.wrap_optimizer(keras.optimizers.SGD(0.1), **options)


def _manager(repl, folder, **options):
    given = {"weight": tf.Variable(1.0), **options}
    return repl.make_checkpoint_manager(folder, **given)


def _elastic(repl, **options):
    return replicator.ElasticState(repl, **{"weight": tf.Variable(1.0), **options})


def _layer():
    return keras.layers.Dense(1)


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
# In cross-replica context, as Python: what it returns is dropped.
OUTSIDE = (
    "replicator.PerReplica(value)",
    "replicator.create(value)",
    *(
        f"replicator.create('in_graph', {option}=value)"
        for option in (
            "num_replicas",
            "devices",
            "variable_placement",
            "external_writes",
            "timeout_sec",
            "logical_devices_per_replica",
        )
    ),
    "replicator.StrategyReplicator(value)",
    "repl.run(value)",
    "repl.run(_identity, value)",
    "repl.run(_identity, [value])",
    "repl.run(_identity, replicator.PerReplica([value, value]))",
    "repl.run(_one, num_steps=value)",
    "repl.reduce(value, PAIR)",
    *(
        f"repl.reduce({op!r}, replicator.PerReplica([value, value]))"
        for op in ("sum", "mean", "min")
    ),
    "repl.reduce('sum', value)",
    "repl.make_input_iterator(value)",
    "repl.make_input_iterator(lambda ctx: value)",
    "repl.make_input_iterator(_pipeline, value)",
    "repl.make_input_iterator(_pipeline, prefetch_to_device=value)",
    "repl.audit_inputs(value, key_fn=_identity)",
    "repl.audit_inputs(lambda ctx: value, key_fn=_identity)",
    "repl.audit_inputs(_pipeline, key_fn=value)",
    "repl.audit_inputs(_pipeline, key_fn=lambda _: value)",
    "repl.audit_inputs(_pipeline, key_fn=_identity, num_examples=value)",
    "repl.verify_fit(value, _batch())",
    "repl.verify_fit(_model(repl), value)",
    "repl.verify_fit(_model(repl), _batch(), value)",
    "repl.wrap_optimizer(value)",
    *(
        f"_wrap(repl, {option}=value)"
        for option in (
            "compression",
            "accumulation_steps",
            "global_clipnorm",
            "sharded_update",
            "loss_scale",
        )
    ),
    "_wrap(repl).build(value)",
    "repl.logical_device(value)",
    "CONTEXT.get_per_replica_batch_size(value)",
    "replicator.split_global_batches(value, CONTEXT, 4)",
    "replicator.split_global_batches(NUMBERS, value, 4)",
    "replicator.split_global_batches(NUMBERS, CONTEXT, value)",
    "replicator.split_global_batches(NUMBERS, CONTEXT, 4, uneven=value)",
    "replicator.ElasticState(value, weight=tf.Variable(1.0))",
    *(
        f"_elastic(repl, {option}=value)"
        for option in ("inputs", "batches", "scale_learning_rate", "weight")
    ),
    "_elastic(repl).steps(value)",
    "_elastic(repl).steps(1, commit_every=value)",
    "replicator.Pipeline(value, num_microbatches=2)",
    "replicator.Pipeline([_identity], num_microbatches=value)",
    "replicator.Pipeline([_identity], num_microbatches=2, schedule=value)",
    "replicator.named(value, 'rows')",
    "replicator.named(tf.Variable([1.0]), value)",
    *(
        f"replicator.create('dtensor', {option}=value)"
        for option in ("mesh", "layout", "names")
    ),
    "replicator.balance_stages(value, 1)",
    "replicator.make_stages(value, tf.TensorSpec([1, 1]), 1)",
    "replicator.make_stages([_layer], value, 1)",
    "replicator.make_stages([_layer], tf.TensorSpec([1, 1]), 1, balance=value)",
    "replicator.balance_stages([1], value)",
    "replicator.CrossReplicaBatchNormalization(variance_form=value)",
    *(
        f"replicator.ShardedEmbedding(**{{**SIZES, {option!r}: value}})"
        for option in SIZES
    ),
    "None if value is None else replicator.set_determinism(value)",
    *(
        f"replicator.default_data_options({option}=value)"
        for option in ("deterministic", "autotune", "num_threads")
    ),
    "repl.make_checkpoint_manager(value, weight=tf.Variable(1.0))",
    *(
        f"_manager(repl, folder, {option}=value)"
        for option in ("weight", "max_to_keep", "inputs")
    ),
    "repl.timeline(value)",
    *(
        f"_manager(repl, folder).{method}(value)"
        for method in ("save", "restore", "read_metadata")
    ),
)
NAMES = [*IN_STEP, *OF_OPTIMIZERS, *OUTSIDE]


def call(name, repl, value, folder):
    if name in OUTSIDE:
        given = {"repl": repl, "value": value, "folder": folder}
        return eval(name, {**globals(), **given})
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
    ("repl.run(value)", "a Keras layer"),
    ("map_reduce(value, items)", "a Keras layer"),
    ("map_gather(items, value)", "a Keras layer"),
    ("repl.audit_inputs(_pipeline, key_fn=value)", "a Keras layer"),
    ("repl.make_input_iterator(value)", "a Keras layer"),
    ("repl.audit_inputs(value, key_fn=_identity)", "a Keras layer"),
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
    called = {found for name in NAMES for found in re.findall(r"(\w+)\(", name)}
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
