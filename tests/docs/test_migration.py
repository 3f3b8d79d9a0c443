"""The messages that ``docs/migration.md`` quotes are those that come, and more."""

import re
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADING = "## What people write, and what the message says\n"
# What people write, the message, and what to write instead: one line of code each.
_ROW = re.compile(r"^\| `(?P<wrong>.+?)` \| `(?P<message>.+?)` \| `(?P<right>.+?)` \|$")
# Rows in which the message says everything, so that the document leaves them out.
_MORE = r"""
| `repl.run(step_of_two, *batch)` | `run() does not take 1 extra arguments` | `repl.run(train_step, batch)` |
| `repl.run(train_step)` | `takes arguments, but run() got no inputs` | `repl.run(train_step, inputs)` |
| `repl.run(train_step, dataset)` | `inputs must be an InputIterator from make_input_iterator(), a nest of PerReplica, or None` | `repl.run(train_step, inputs)` |
| `repl.reduce("mean", words)` | `of string is not defined; reductions take numbers` | `list(words)` |
| `repl.reduce("sum", ragged)` | `of a 'RaggedTensor' is not defined; reduce a tensor that the step computes from it` | `repl.reduce("sum", repl.run(tf.reduce_sum, ragged))` |
| `repl.run(lambda x: x, ragged)` | `returned a 'RaggedTensor'; a step returns a nest of tensors` | `repl.run(tf.reduce_sum, ragged)` |
| `optimizer.apply([1.0], model.trainable_variables[1:])` | `was called in cross-replica context, but it needs a replica: call it inside the step function` | `repl.run(lambda: optimizer.apply([tf.ones([1])], model.trainable_variables[1:]))` |
| `repl.wrap_optimizer(optimizer)` | `an optimizer that is already wrapped` | `repl.wrap_optimizer(keras.optimizers.Adam(0.01))` |
"""  # noqa: E501 (a row is a line)


def matched(lines):
    found = [_ROW.match(line) for line in lines.splitlines()]
    return [match.groupdict() for match in found if match]


def rows(text):
    return [*matched(text.partition(HEADING)[2]), *matched(_MORE)]


@pytest.fixture(scope="module")
def text():
    return str((ROOT / "docs" / "migration.md").read_text(encoding="utf-8"))


@pytest.fixture
def names():
    """What the lines of the table refer to, made as the document says."""
    import keras
    import tensorflow as tf

    import replicator

    repl = replicator.create("in_graph", num_replicas=2)
    with repl.context():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        optimizer = repl.wrap_optimizer(keras.optimizers.Adam(0.01))
    per_replica = replicator.PerReplica
    examples = tf.data.Dataset.from_tensors((tf.ones([4]), tf.ones([1]))).repeat()
    dataset = examples.batch(2)

    def train_step(batch):
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        return loss

    return {
        "keras": keras,
        "tf": tf,
        "repl": repl,
        "model": model,
        "optimizer": optimizer,
        "dataset": dataset,
        "input_fn": lambda ctx: examples.batch(ctx.get_per_replica_batch_size(4)),
        "inputs": repl.make_input_iterator(lambda ctx: dataset),
        "train_step": train_step,
        "step_of_two": lambda x, y: tf.reduce_sum(x) + tf.reduce_sum(y),
        "batch": (
            per_replica([tf.ones([2, 4]), tf.zeros([2, 4])]),
            per_replica([tf.ones([2, 1]), tf.ones([2, 1])]),
        ),
        "flags": per_replica([tf.constant(True), tf.constant(False)]),
        "words": per_replica([tf.constant("a"), tf.constant("b")]),
        "ragged": per_replica([tf.ragged.constant([[1], [2, 3]])] * 2),
        "total": tf.Variable(0.0, name="total"),
    }


def said(line, names):
    """What a line of code is answered: an error's message, or a warning's."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            exec(line, names)
        except Exception as error:  # noqa: BLE001 (whatever comes is compared)
            return str(error)
    return "\n".join(str(warning.message) for warning in seen)


def test_what_the_table_quotes_is_said(text, names):
    """Every line of the first column is answered with the words of the second."""
    answers = {row["wrong"]: said(row["wrong"], names) for row in rows(text)}

    missing = {
        row["wrong"]: answers[row["wrong"]]
        for row in rows(text)
        if row["message"] not in answers[row["wrong"]]
    }
    assert {} == missing


def test_what_is_to_be_written_instead_works(text, names):
    """Every line of the third column runs, without a word."""
    answers = {row["right"]: said(row["right"], dict(names)) for row in rows(text)}

    assert {} == {line: answer for line, answer in answers.items() if answer}


def test_every_row_of_the_table_is_found(text):
    table = text.partition(HEADING)[2].partition("\n\n| ")[2].partition("\n\n")[0]
    lines = [line for line in table.splitlines() if line.startswith("| `")]

    assert len(lines) == len(matched(text.partition(HEADING)[2])) > 5
    assert 8 == len(matched(_MORE))
