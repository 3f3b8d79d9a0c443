"""Input pipelines: who reads what, in which order, when it ends, and whole epochs."""

import contextlib

import numpy as np
import tensorflow as tf
from conformance_cases.cases import case, share

import replicator
from replicator import InputReplicationMode

PER_WORKER = InputReplicationMode.PER_WORKER
PER_REPLICA = InputReplicationMode.PER_REPLICA
SINGLE = InputReplicationMode.SINGLE

# A batch says where it comes from: 1e6 x pipelines + 1e3 x pipeline + place in it.
_OF_JOB, _OF_PIPELINE = 1_000_000, 1_000


def _numbered(ctx, num_batches=100):
    start = _OF_JOB * ctx.num_input_pipelines + _OF_PIPELINE * ctx.input_pipeline_id
    return tf.data.Dataset.range(start, start + num_batches).batch(
        1, drop_remainder=True
    )


def _identity(x):
    return tf.identity(x)


def _expected(topology, mode, step):
    """What every replica reads in a step, by the definition of the mode."""
    values = []
    for replica_id in range(topology.num_replicas):
        worker_id, local = divmod(replica_id, topology.num_local_replicas)
        num_pipelines, pipeline, place = {
            PER_WORKER: (
                topology.num_workers,
                worker_id,
                step * topology.num_local_replicas + local,
            ),
            PER_REPLICA: (topology.num_replicas, replica_id, step),
            SINGLE: (1, 0, step * topology.num_replicas + replica_id),
        }[mode]
        start = _OF_JOB * num_pipelines + _OF_PIPELINE * pipeline
        values.append(np.int64([start + place]))
    return replicator.PerReplica(values)


def _steps(mode):
    return lambda t: [_expected(t, mode, step) for step in range(3)]


def _read(repl, mode):
    inputs = repl.make_input_iterator(_numbered, mode)
    return [repl.run(_identity, inputs) for _ in range(3)]


@case("input_per_worker", reference=_steps(PER_WORKER))
def reads_per_worker(repl):
    """A worker's pipeline feeds its replicas round-robin."""
    return _read(repl, PER_WORKER)


@case("input_per_replica", reference=_steps(PER_REPLICA))
def reads_per_replica(repl):
    """Replica r reads pipeline r, in order."""
    return _read(repl, PER_REPLICA)


@case("input_single", reference=_steps(SINGLE))
def reads_single(repl):
    """One pipeline feeds all replicas of the job round-robin."""
    return _read(repl, SINGLE)


@case(
    "steps_per_execution",
    "input_per_replica",
    reference=lambda t: {
        mode.name: [_expected(t, mode, 3), _expected(t, mode, 4)]
        for mode in (PER_WORKER, PER_REPLICA)
    },
)
def steps_of_one_dispatch_read_as_many_batches(repl):
    """After run(num_steps=4), run() reads the batches of the fifth step."""
    results = {}
    for mode in (PER_WORKER, PER_REPLICA):
        inputs = repl.make_input_iterator(_numbered, mode)
        many = repl.run(_identity, inputs, num_steps=4)
        results[mode.name] = [many, repl.run(_identity, inputs)]
    return results


def _count(inputs_error, repl, inputs):
    try:
        repl.run(_identity, inputs)
    except inputs_error as error:
        return type(error).__name__
    return "no error"


@case(
    "end_of_data",
    "input_per_replica",
    reference=lambda t: {
        "first": _expected(t, PER_REPLICA, 0),
        "error": "OutOfRangeError",
        "again": _expected(t, PER_REPLICA, 0),
    },
)
def end_of_data(repl):
    """OutOfRangeError once a replica has no batch; a rewind gives batch 0 again."""
    inputs = repl.make_input_iterator(lambda ctx: _numbered(ctx, 2), PER_REPLICA)
    first = repl.run(_identity, inputs)
    repl.run(_identity, inputs)
    error = _count(tf.errors.OutOfRangeError, repl, inputs)
    inputs.reinitialize()
    return {"first": first, "error": error, "again": repl.run(_identity, inputs)}


def _train_on_unequal_pipelines(repl, longer, num_batches, num_steps):
    """Replica r's batches are all r; one replica, or none, has two batches more."""
    with repl.context():
        total = tf.Variable(0, dtype=tf.int64, trainable=False)
        # Depends on no batch: only the step as a whole can hold it back.
        num_run = tf.Variable(0, dtype=tf.int64, trainable=False)

    def input_fn(ctx):
        index = ctx.input_pipeline_id
        same = tf.data.Dataset.from_tensors(tf.constant([index], tf.int64))
        return same.repeat(num_batches + (2 if index == longer else 0))

    def step(x):
        total.assign_add(replicator.all_sum(tf.reduce_sum(x)))
        num_run.assign_add(1)
        return x

    inputs = repl.make_input_iterator(input_fn, PER_REPLICA)
    error = "no error"
    try:
        for _ in range(num_batches + 1):
            repl.run(step, inputs, num_steps=num_steps)
    except tf.errors.OutOfRangeError as end:
        error = type(end).__name__
    found = {"total": total.numpy(), "num_run": num_run.numpy(), "error": error}
    inputs.reinitialize()
    return {**found, "again": repl.run(step, inputs)}


def _of_whole_steps(num_steps):
    return lambda t: {
        "total": np.int64(num_steps * sum(range(t.num_replicas))),
        "num_run": np.int64(num_steps),
        "error": "OutOfRangeError",
        "again": replicator.PerReplica(list(np.arange(t.num_replicas)[:, None])),
    }


@case("whole_steps", "input_per_replica", reference=_of_whole_steps(2))
def a_step_behind_the_last_counts_nothing(repl):
    """All data ends with the second step: the third updates not even a counter."""
    return _train_on_unequal_pipelines(repl, longer=None, num_batches=2, num_steps=1)


@case("whole_steps", "input_per_replica", reference=_of_whole_steps(1), min_replicas=2)
def a_step_that_cannot_be_fed_changes_nothing(repl):
    """Replica 0 has a second batch, the others have none: no replica runs."""
    return _train_on_unequal_pipelines(repl, longer=0, num_batches=1, num_steps=1)


@case(
    "whole_steps",
    "steps_per_execution",
    "input_per_replica",
    reference=_of_whole_steps(3),
    min_replicas=2,
)
def a_dispatch_ends_where_the_data_of_one_ends(repl):
    """run(num_steps=4) over three batches, of which the last replica has five."""
    longer = repl.num_replicas - 1
    return _train_on_unequal_pipelines(repl, longer, num_batches=3, num_steps=4)


@case(
    "input_per_worker",
    "batches_outside_steps",
    reference=lambda t: {
        "read": [_expected(t, PER_WORKER, step) for step in range(3)],
        "negative": replicator.PerReplica([-x for x in _expected(t, PER_WORKER, 1)]),
        "loop": [_expected(t, PER_WORKER, step) for step in range(3, 5)],
        "num_steps": np.int64(5),
        "again": _expected(t, PER_WORKER, 0),
    },
)
def batches_can_be_read_without_a_step(repl):
    """next(), get_next(), a loop and run() share one position and the same end."""
    num_batches = 5 * repl.num_replicas // repl.num_workers
    inputs = repl.make_input_iterator(
        lambda ctx: _numbered(ctx, num_batches).map(lambda i: {"x": i, "y": -i})
    )

    def step(batch):
        return tf.identity(batch["x"])

    first, second = next(inputs), inputs.get_next()
    third = repl.run(step, inputs)
    rest = [repl.run(step, batch) for batch in inputs]
    assert [] == list(inputs), "an iterator of Python stays at its end"
    num_steps = inputs.num_steps
    inputs.reinitialize()
    return {
        "read": [first["x"], second["x"], third],
        "negative": second["y"],
        "loop": rest,
        "num_steps": np.int64(num_steps),
        "again": next(inputs)["x"],
    }


@case(
    "input_per_worker",
    "batches_outside_steps",
    "whole_steps",
    reference=lambda t: [_expected(t, PER_WORKER, step) for step in range(2)],
)
def a_loop_ends_together(repl):
    """If one worker has fewer batches, the loops of all end after the same step."""
    num_local = repl.num_replicas // repl.num_workers
    inputs = repl.make_input_iterator(
        lambda ctx: _numbered(ctx, (2 + ctx.input_pipeline_id) * num_local)
    )

    def step(x):
        replicator.all_sum(x)
        return tf.identity(x)

    return [repl.run(step, batch) for batch in inputs]


def _dealt(topology):
    """Which batch each replica gets where pipelines of workers take every other."""
    num_local = topology.num_local_replicas
    return [
        replica_id // num_local + (replica_id % num_local) * topology.num_workers
        for replica_id in range(topology.num_replicas)
    ]


_ROWS = [[1, 2], [3], [4, 5, 6], [7]] * 4


@case(
    "ragged_inputs",
    reference=lambda t: {
        "sums": replicator.PerReplica(
            [np.int32([6, 22][index % 2]) for index in _dealt(t)]
        ),
        "lengths": replicator.PerReplica(
            [np.int64([[2, 1], [3, 1]][index % 2]) for index in _dealt(t)]
        ),
    },
)
def ragged_batches(repl):
    """Composite tensors are not converted: rows [1, 2], [3], then [4, 5, 6], [7]."""

    def input_fn(ctx):
        rows = tf.data.Dataset.from_tensor_slices(tf.ragged.constant(_ROWS))
        return rows.batch(2).shard(ctx.num_input_pipelines, ctx.input_pipeline_id)

    inputs = repl.make_input_iterator(input_fn)

    def step(x):
        return {"sums": tf.reduce_sum(x), "lengths": x.row_lengths()}

    return repl.run(step, inputs)


_RAGGED = [[[1, 2], [3]], [[4], [5, 6, 7], [8]]]
_SPARSE = [[[0, 1], [0, 0]], [[2, 0], [0, 3]]]


@case(
    "fixed_inputs",
    "ragged_inputs",
    reference=lambda t: {
        "ragged": replicator.PerReplica(
            [np.int32([6, 30][r % 2]) for r in range(t.num_replicas)]
        ),
        "sparse": replicator.PerReplica(
            [np.int32([1, 5][r % 2]) for r in range(t.num_replicas)]
        ),
    },
)
def ragged_and_sparse_values(repl):
    """Each replica gets its own value, whose number of rows may differ."""
    count = repl.num_replicas
    ragged = [tf.ragged.constant(_RAGGED[r % 2]) for r in range(count)]
    sparse = [tf.sparse.from_dense(_SPARSE[r % 2]) for r in range(count)]

    def step(batch):
        x, y = batch
        return {"ragged": tf.reduce_sum(x), "sparse": tf.sparse.reduce_sum(y)}

    return repl.run(step, (share(repl, ragged), share(repl, sparse)))


@case(
    "fixed_inputs",
    reference=lambda t: replicator.PerReplica(
        [np.float32([r * 2 + 1]) for r in range(t.num_replicas)]
    ),
)
def values_in_place_of_an_iterator(repl):
    """run() takes one value per replica, in any nest."""

    def step(batch):
        return batch["a"] + batch["b"][0]

    ids = [np.float32([r]) for r in range(repl.num_replicas)]
    return repl.run(
        step, {"a": share(repl, ids), "b": (share(repl, [i + 1 for i in ids]),)}
    )


_SHARE = 2  # examples of a replica and step
_NUM_WHOLE_STEPS = 3  # whole ones, before the last


def _num_examples(num_replicas):
    """The last step has a batch of two examples, and one of one for the next worker."""
    return _NUM_WHOLE_STEPS * _SHARE * num_replicas + 3


def _input_fn(repl):
    def input_fn(ctx):
        examples = tf.data.Dataset.range(_num_examples(repl.num_replicas))
        own = examples.shard(ctx.num_input_pipelines, ctx.input_pipeline_id)
        return own.batch(_SHARE).map(lambda i: {"id": i, "one": tf.ones_like(i)})

    return input_fn


def _sum(batch):
    sums = {name: tf.reduce_sum(values) for name, values in batch.items()}
    return replicator.all_sum(sums)


def _total(outputs):
    return {name: np.int64(sum(int(o[name][0]) for o in outputs)) for name in _NAMES}


_NAMES = ("id", "one")


def _totals(topology):
    num_examples = _num_examples(topology.num_replicas)
    each = {
        "id": np.int64(num_examples * (num_examples - 1) // 2),
        "one": np.int64(num_examples),
    }
    return [each, each]


@case(
    "whole_epochs",
    "batches_outside_steps",
    "collectives",
    "input_per_worker",
    reference=_totals,
)
def an_epoch_of_steps_and_one_of_a_loop(repl):
    """run(step, inputs) feeds each example once, and so does a loop over inputs."""
    inputs = repl.make_input_iterator(_input_fn(repl))

    def epoch():
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while True:
                yield repl.run(_sum, inputs)

    totals = [_total(list(epoch()))]
    inputs.reinitialize()
    return [*totals, _total([repl.run(_sum, batch) for batch in inputs])]
