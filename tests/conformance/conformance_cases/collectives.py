"""Collectives: values over nests and types, sparse values, gradients, dealt items."""

import ml_dtypes
import numpy as np
import tensorflow as tf
from conformance_cases.registry import case, on_every, share

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
