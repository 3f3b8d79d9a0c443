"""Collectives: nests and types, sparse values, derivatives of every order."""

import keras
import ml_dtypes
import numpy as np
import tensorflow as tf
from conformance_cases.cases import case, on_every, share

import replicator

OPS = ("sum", "mean", "min", "max")
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("uint8", "int32", "int64")


def _operands(num_replicas):
    rng = np.random.default_rng(0)
    return [rng.normal(size=(2, 3)).astype(np.float32) for _ in range(num_replicas)]


def _dtype(name):
    return ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)


def _types_of(op):
    return FLOATS if op == "mean" else (*FLOATS, *INTEGERS)


def _typed(num_replicas):
    """Small integers, so that every type adds them exactly."""
    rng = np.random.default_rng(1)
    return {
        name: [
            rng.integers(0, 9, size=(3,)).astype(_dtype(name))
            for _ in range(num_replicas)
        ]
        for name in (*FLOATS, *INTEGERS)
    }


def _reduced(topology):
    values = _typed(topology.num_replicas)
    return {
        op: {
            name: on_every(
                topology,
                getattr(np, op)(np.float64(values[name]), axis=0).astype(_dtype(name)),
            )
            for name in _types_of(op)
        }
        for op in OPS
    }


@case("collectives", reference=_reduced)
def all_reduce_of_every_type(repl):
    """Floats and integers of every width are reduced in their own type, as in NumPy."""

    def step(x):
        return {
            op: replicator.all_reduce({name: x[name] for name in _types_of(op)}, op)
            for op in OPS
        }

    values = _typed(repl.num_replicas)
    return repl.run(step, {name: share(repl, xs) for name, xs in values.items()})


def _nest(num_replicas):
    return [
        {"a": np.int32(1 + 2 * r), "b": (np.int32([40 - 38 * r, 1 + 97 * r]),)}
        for r in range(num_replicas)
    ]


def _nest_results(topology):
    trees = _nest(topology.num_replicas)

    def combine(function):
        return {
            "a": on_every(topology, function([tree["a"] for tree in trees])),
            "b": (on_every(topology, function([tree["b"][0] for tree in trees])),),
        }

    return {
        "sum": combine(lambda xs: np.sum(xs, axis=0, dtype=np.int32)),
        "min": combine(lambda xs: np.min(xs, axis=0)),
        "max": combine(lambda xs: np.max(xs, axis=0)),
        "gather": combine(np.stack),
        "broadcast": combine(lambda xs: np.asarray(xs[-1])),
        "empty": on_every(topology, np.int32(0)),
        "ids": replicator.PerReplica(list(np.arange(len(trees), dtype=np.int32))),
        "num_replicas": [on_every(topology, np.int32(len(trees)))] * 2,
    }


@case("collectives", reference=_nest_results)
def nests_of_mixed_ranks(repl):
    """The worked example of the public design document; ids count from 0."""
    n = repl.num_replicas
    trees = _nest(n)
    values = {
        "a": share(repl, [tree["a"] for tree in trees]),
        "b": (share(repl, [tree["b"][0] for tree in trees]),),
    }

    def step(x):
        context = replicator.get_replica_context()
        return {
            "sum": replicator.all_sum(x),
            "min": replicator.all_min(x),
            "max": replicator.all_max(x),
            "gather": replicator.all_gather(x),
            "broadcast": replicator.broadcast(x, source_replica_id=n - 1),
            "empty": len(replicator.all_sum([])) + len(replicator.all_gather({})),
            "ids": context.replica_id,
            "num_replicas": [context.num_replicas, context.num_replicas_in_sync],
        }

    return repl.run(step, values)


def _slices(num_replicas):
    values = [np.full((2, 3), r + 1, np.float32) for r in range(num_replicas)]
    indices = [np.array([r % 4, 3]) for r in range(num_replicas)]
    return values, indices


def _sums_of_slices(topology):
    n = topology.num_replicas
    values, indices = _slices(n)
    dense = np.zeros((n, 5, 3), np.float32)
    for r in range(n):
        np.add.at(dense[r], indices[r], values[r])
    by_position = (np.sum(values, axis=0) ** 2).sum(axis=0)
    return {
        **{op: on_every(topology, getattr(dense, op)(axis=0)) for op in OPS[:2]},
        "of the same rows": on_every(topology, by_position),
    }


@case("sparse_gradients", reference=_sums_of_slices)
def all_reduce_sparse(repl):
    """IndexedSlices equal the dense result; the same rows are summed one by one."""

    def step(pair):
        rows, indices = pair
        slices = tf.IndexedSlices(rows, indices, dense_shape=tf.constant([5, 3]))
        alike = tf.IndexedSlices(rows, tf.range(2))
        by_position = replicator.all_sum(alike).values
        return {
            **{
                op: tf.convert_to_tensor(replicator.all_reduce(slices, op))
                for op in OPS[:2]
            },
            "of the same rows": tf.reduce_sum(by_position**2, axis=0),
        }

    values, indices = _slices(repl.num_replicas)
    return repl.run(step, (share(repl, values), share(repl, indices)))


def _rows(num_replicas):
    """Per replica, as many rows as there are replicas."""
    rng = np.random.default_rng(2)
    shape = (num_replicas, num_replicas, 3)
    return rng.normal(size=shape).astype(np.float32)


def _pipeline(num_replicas):
    return [(r, r + 1) for r in range(num_replicas - 1)]


def _dealt(topology):
    n = topology.num_replicas
    xs = _rows(n)
    return {
        **{
            f"reduce_scatter {op}": replicator.PerReplica(
                list(getattr(xs, op)(axis=0)[:, None])
            )
            for op in OPS
        },
        "all_to_all": replicator.PerReplica(list(xs.swapaxes(0, 1))),
        "permute": replicator.PerReplica([np.zeros_like(xs[0]), *xs[:-1]]),
        "integers": replicator.PerReplica([np.int32([n * r]) for r in range(n)]),
    }


@case("collectives", reference=_dealt)
def results_of_their_own(repl):
    """Each replica gets its part of a reduction, of all values, or a neighbour's."""
    n = repl.num_replicas

    def step(x):
        return {
            **{f"reduce_scatter {op}": replicator.reduce_scatter(x, op) for op in OPS},
            "all_to_all": replicator.all_to_all(x),
            "permute": replicator.permute(x, _pipeline(n)),
            "integers": replicator.reduce_scatter(tf.range(n)),
        }

    return repl.run(step, share(repl, _rows(n)))


@case(
    "collectives",
    "replica_local_state",
    reference=lambda t: {
        "seen": np.float32(np.mean(np.arange(t.num_replicas))),
        "found": replicator.PerReplica(np.arange(t.num_replicas, dtype=np.float32)),
    },
)
def state_of_what_differs(repl):
    """A variable that is written with such a result keeps a value per replica."""
    with repl.context():
        seen = tf.Variable(
            0.0,
            trainable=False,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.MEAN,
        )
    n = repl.num_replicas

    def step():
        ids = tf.range(n, dtype=tf.float32)
        seen.assign(replicator.reduce_scatter(ids, "mean")[0])
        return seen.read_value()

    found = repl.run(step)
    return {"seen": repl.reduce("mean", found), "found": found}


def _weights(num_replicas):
    return np.arange(1, num_replicas + 1, dtype=np.float32)


def _gradients(topology):
    """Derived by hand for the loss sum_s w_s * |collective(x)_s|^2."""
    n = topology.num_replicas
    xs, total = np.stack(_operands(n)), 2 * _weights(n).sum()
    best, worst = xs.max(axis=0), xs.min(axis=0)
    zero = np.zeros_like(xs[0])
    rows, weights = _rows(n), 2 * _weights(n)
    by_replica = {
        "all_sum": [total * xs.sum(axis=0)] * n,
        "all_mean": [total / n * xs.mean(axis=0)] * n,
        "all_max": [np.where(x == best, total * best, 0) for x in xs],
        "all_min": [np.where(x == worst, total * worst, 0) for x in xs],
        "all_gather": [total * x for x in xs],
        "broadcast": [zero] * (n - 1) + [total * xs[-1]],
        "permute": [weights[r + 1] * xs[r] for r in range(n - 1)] + [zero],
        # Part r is squared on replica r, which weights it.
        "reduce_scatter": [weights[:, None] * rows.sum(axis=0)] * n,
        "all_to_all": [weights[:, None] * x for x in rows],
        # Of |sum x|^2 times the sum of n threes.
        "sum with an integer": [6 * n * n * xs.sum(axis=0)] * n,
    }
    return {
        name: replicator.PerReplica([np.float32(g) for g in grads])
        for name, grads in by_replica.items()
    }


@case("collectives", reference=_gradients)
def gradients(repl):
    """Of each collective by each operand; integers in one call with a float too."""
    n = repl.num_replicas

    def step(batch):
        x, rows, weight = batch
        collectives = {
            "all_sum": replicator.all_sum,
            "all_mean": replicator.all_mean,
            "all_max": replicator.all_max,
            "all_min": replicator.all_min,
            "all_gather": replicator.all_gather,
            "broadcast": lambda v: replicator.broadcast(v, n - 1),
            "permute": lambda v: replicator.permute(v, _pipeline(n)),
            "reduce_scatter": replicator.reduce_scatter,
            "all_to_all": replicator.all_to_all,
        }
        results = {}
        for name, collective in collectives.items():
            source = rows if name in ("reduce_scatter", "all_to_all") else x
            with tf.GradientTape() as tape:
                tape.watch(source)
                loss = weight * tf.reduce_sum(collective(source) ** 2)
            results[name] = tape.gradient(loss, source)
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = replicator.all_sum({"x": x, "count": tf.constant(3)})
            loss = tf.reduce_sum(total["x"] ** 2) * tf.cast(total["count"], tf.float32)
        return {**results, "sum with an integer": tape.gradient(loss, x)}

    values = _operands(n), _rows(n), _weights(n)
    return repl.run(step, tuple(share(repl, of_all) for of_all in values))


@case(
    "collectives",
    reference=lambda t: {
        "numbers": {
            "sum": np.float32(sum(range(2, 2 + t.num_replicas))),
            "mean": np.float32(np.mean(range(2, 2 + t.num_replicas))),
            "min": np.float32(2),
            "max": np.float32(1 + t.num_replicas),
        },
        "flags": {"min": np.bool_(t.num_replicas == 1), "max": np.bool_(True)},
        "others": {"nothing": "none", "text": "z"},
        "counter": np.float32(t.num_replicas),
    },
)
def reduce_outside(repl):
    """reduce() combines results of all replicas; None and other leaves stay."""
    with repl.context():
        counter = tf.Variable(0.0, trainable=False)

    def count():
        counter.assign_add(replicator.all_sum(1.0))

    def step():
        replica_id = replicator.get_replica_context().replica_id
        number = tf.cast(replica_id, tf.float32) + 2
        return {"number": number, "flag": tf.equal(replica_id, 0), "nothing": None}

    assert [None] * repl.num_local_replicas == list(repl.run(count))
    out = repl.run(step)
    others = repl.reduce("max", {"nothing": out["nothing"], "text": "z"})
    others["nothing"] = "none" if others["nothing"] is None else "something"
    return {
        "numbers": {op: repl.reduce(op, out["number"]) for op in OPS},
        "flags": {op: repl.reduce(op, out["flag"]) for op in ("min", "max")},
        "others": others,
        "counter": counter.numpy(),
    }


_NUM_ITEMS = 3


def _items():
    """Matrices of different sizes, as the blocks of a preconditioner are."""
    rng = np.random.default_rng(5)
    return [
        (rng.normal(size=(n, n)) / 8 + np.eye(n)).astype(np.float32)
        for n in range(2, 2 + _NUM_ITEMS)
    ]


def _mapped(topology):
    traces = np.float32([np.trace(item) ** 2 for item in _items()])
    return {
        "gather": [on_every(topology, np.linalg.inv(item)) for item in _items()],
        "sum": on_every(topology, 9 * traces.sum()),
        "mean": on_every(topology, traces.mean()),
        "min": on_every(topology, traces.min()),
        "max": on_every(topology, traces.max()),
        # Replicas share one loss, so their gradients average to that of one device.
        "gradient": np.float32(2 * 3.0 * traces.sum()),
    }


@case("collectives", reference=_mapped, rtol=1e-4, atol=1e-5)
def map_gather_and_map_reduce(repl):
    """Each item is computed on one replica; the gradient reaches a variable."""
    items = _items()
    with repl.context():
        scale = tf.Variable(3.0)

    def step():
        tensors = [tf.constant(x) for x in items]
        results = {
            op: replicator.map_reduce(lambda x: tf.linalg.trace(x) ** 2, tensors, op)
            for op in ("mean", "min", "max")
        }
        with tf.GradientTape() as tape:
            total = replicator.map_reduce(
                lambda x: tf.linalg.trace(scale * x) ** 2, tensors, "sum"
            )
        return {
            "gather": replicator.map_gather(tensors, tf.linalg.inv),
            "sum": total,
            **results,
            "gradient": replicator.all_mean(tape.gradient(total, scale)),
        }

    out = repl.run(step)
    return {**out, "gradient": repl.reduce("max", out["gradient"])}


NUM_ROWS = 4


def _points(num_replicas):
    return np.linspace(-1.0, 1.5, 3 * num_replicas).reshape(num_replicas, 3)


def _derivatives(topology):
    """By hand: t = sum(y^2) with y = all_sum(x); h = |dt/dx|^2 = |2 R y|^2.

    Its derivative: 2 * 2 R y, times 2 R, summed over the replicas: 8 R^3 y.
    """
    n, xs = topology.num_replicas, _points(topology.num_replicas)
    return {
        "second": on_every(topology, 8 * n**3 * xs.sum(axis=0)),
        "tangents": {
            "all_mean": on_every(topology, (2 * xs).mean(axis=0)),
            "all_gather": on_every(topology, 2 * xs),
            "permute": replicator.PerReplica([0 * xs[0], *(2 * xs[:-1])]),
        },
    }


@case("collectives", "higher_derivatives", reference=_derivatives)
def higher_derivatives(repl):
    """The gradient of a gradient, and tangents in forward mode, are of all replicas."""
    pairs = [(r, r + 1) for r in range(repl.num_replicas - 1)]

    def step(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                target = tf.reduce_sum(replicator.all_sum(x) ** 2)
            penalty = tf.reduce_sum(inner.gradient(target, x) ** 2)
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as forward:
            results = {
                "all_mean": replicator.all_mean(x * x),
                "all_gather": replicator.all_gather(x * x),
                "permute": replicator.permute(x * x, pairs),
            }
        return {
            "second": outer.gradient(penalty, x),
            "tangents": {name: forward.jvp(y) for name, y in results.items()},
        }

    return repl.run(step, share(repl, _points(repl.num_replicas)))


def _vectorized(topology):
    xs = _points(topology.num_replicas)
    n = topology.num_replicas
    return {
        "map": on_every(topology, xs.max(axis=0)),
        "jacobian": replicator.PerReplica([np.diag(2 * n * x) for x in xs]),
    }


@case("collectives", "vectorized_collectives", reference=_vectorized)
def vectorized_loops(repl):
    """tf.vectorized_map and tape.jacobian communicate."""

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            joined = replicator.all_sum(x * x)
        return {
            "map": tf.vectorized_map(replicator.all_max, x),
            "jacobian": tape.jacobian(joined, x),
        }

    return repl.run(step, share(repl, _points(repl.num_replicas)))


def _train_table(repl, counts):
    """Adagrad, which squares gradients, on rows that several replicas touch."""
    ids = np.array([[0, 1, 0], [0, 2, 1], [0, 0, 3], [2, 0, 1]])[: repl.num_replicas]
    with repl.context():
        table = tf.Variable(np.linspace(-1.0, 1.0, NUM_ROWS, dtype=np.float32)[:, None])
        optimizer = repl.wrap_optimizer(keras.optimizers.Adagrad(0.1))

    def step(batch):
        rows, count = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sin(tf.gather(table, rows[:count])))
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])

    for _ in range(2):
        repl.run(step, (share(repl, ids), share(repl, np.array(counts))))
    return replicator.PerReplica([table.numpy()] * repl.num_local_replicas)


def _trained_table(counts):
    def reference(topology):
        ids = np.array([[0, 1, 0], [0, 2, 1], [0, 0, 3], [2, 0, 1]])
        n = topology.num_replicas
        table = np.linspace(-1.0, 1.0, NUM_ROWS)[:, None]
        accumulator = np.full_like(table, 0.1)
        for _ in range(2):
            gradient = np.zeros_like(table)
            for rows, count in zip(ids[:n], counts[:n], strict=True):
                np.add.at(gradient, rows[:count], np.cos(table[rows[:count]]) / n)
            accumulator += gradient**2
            table = table - 0.1 * gradient / np.sqrt(accumulator + 1e-7)
        return on_every(topology, np.float32(table))

    return reference


_EVEN, _UNEVEN = (3, 3, 3, 3), (3, 1, 0, 2)


@case("synchronous_training", "shared_rows", reference=_trained_table(_EVEN))
def rows_that_replicas_share(repl):
    """They are summed before a nonlinear update, as in the dense gradient."""
    return _train_table(repl, _EVEN[: repl.num_replicas])


@case(
    "synchronous_training",
    "shared_rows",
    "uneven_rows",
    reference=_trained_table(_UNEVEN),
)
def rows_that_are_not_equally_many(repl):
    """Replicas touch 3, 1, 0 and 2 rows."""
    return _train_table(repl, _UNEVEN[: repl.num_replicas])


def _joined(topology):
    values, places = _uneven_slices(topology.num_replicas)
    dense = np.zeros((NUM_ROWS, 2), np.float32)
    for rows, indices, count in zip(values, places, _UNEVEN, strict=False):
        np.add.at(dense, indices[:count], rows[:count])
    return on_every(topology, dense)


def _uneven_slices(num_replicas):
    values = np.arange(6 * num_replicas, dtype=np.float32).reshape(num_replicas, 3, 2)
    return values, np.arange(3 * num_replicas).reshape(num_replicas, 3) % NUM_ROWS


@case("sparse_gradients", "uneven_rows", reference=_joined)
def slices_that_are_not_equally_many(repl):
    """A sum of them has the rows of all replicas."""
    values, places = _uneven_slices(repl.num_replicas)

    def step(batch):
        rows, indices, count = batch
        slices = tf.IndexedSlices(
            rows[:count], indices[:count], dense_shape=tf.constant([NUM_ROWS, 2])
        )
        return tf.convert_to_tensor(replicator.all_sum(slices))

    counts = np.array(_UNEVEN[: repl.num_replicas])
    return repl.run(
        step, (share(repl, values), share(repl, places), share(repl, counts))
    )


@case("loss_objects", reference=lambda t: on_every(t, np.float32(2.5)))
def a_keras_loss_object(repl):
    """It gives the mean over the batch of a replica, as Keras' loss functions do."""
    loss = keras.losses.MeanSquaredError()

    def step():
        return loss(tf.constant([[1.0], [2.0]]), tf.constant([[0.0], [0.0]]))

    return repl.run(step)
