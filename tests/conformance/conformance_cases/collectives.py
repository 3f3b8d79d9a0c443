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


def _typed(num_replicas, names):
    """Small integers, so that every type adds them exactly."""
    rng = np.random.default_rng(1)
    return {
        name: [
            rng.integers(0, 9, size=(3,)).astype(_dtype(name))
            for _ in range(num_replicas)
        ]
        for name in names
    }


def _reduced(topology, names, ops):
    return {
        op: {
            name: on_every(
                topology,
                getattr(np, op)(np.stack(xs).astype(np.float64), axis=0).astype(
                    _dtype(name)
                ),
            )
            for name, xs in _typed(topology.num_replicas, names).items()
        }
        for op in ops
    }


@case("collectives", reference=lambda t: _reduced(t, FLOATS, OPS), rtol=1e-2)
def all_reduce_floats(repl):
    """Sum, mean, minimum and maximum of every floating type are NumPy's."""
    values = _typed(repl.num_replicas, FLOATS)

    def step(x):
        return {op: replicator.all_reduce(x, op) for op in OPS}

    return repl.run(step, {name: share(repl, xs) for name, xs in values.items()})


@case("collectives", reference=lambda t: _reduced(t, INTEGERS, ("sum", "min", "max")))
def all_reduce_integers(repl):
    """Integers of every width are reduced in their own type."""
    values = _typed(repl.num_replicas, INTEGERS)

    def step(x):
        return {
            "sum": replicator.all_sum(x),
            "min": replicator.all_min(x),
            "max": replicator.all_max(x),
        }

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
    }


@case("collectives", reference=_nest_results)
def nests_of_mixed_ranks(repl):
    """The worked example of the public design document, at any number of replicas."""
    n = repl.num_replicas
    trees = _nest(n)
    values = {
        "a": share(repl, [tree["a"] for tree in trees]),
        "b": (share(repl, [tree["b"][0] for tree in trees]),),
    }

    def step(x):
        return {
            "sum": replicator.all_sum(x),
            "min": replicator.all_min(x),
            "max": replicator.all_max(x),
            "gather": replicator.all_gather(x),
            "broadcast": replicator.broadcast(x, source_replica_id=n - 1),
        }

    return repl.run(step, values)


@case(
    "collectives",
    reference=lambda t: {
        "empty": on_every(t, np.int32(0)),
        "id": replicator.PerReplica([np.int32(r) for r in range(t.num_replicas)]),
        "gathered": on_every(t, np.arange(t.num_replicas, dtype=np.int32)),
        "num_replicas": on_every(t, np.int32(t.num_replicas)),
        "num_replicas_in_sync": on_every(t, np.int32(t.num_replicas)),
    },
)
def replica_ids(repl):
    """Ids count from 0, a gather is in their order, and an empty nest passes."""

    def step():
        context = replicator.get_replica_context()
        return {
            "empty": len(replicator.all_sum([])) + len(replicator.all_gather({})),
            "id": context.replica_id,
            "gathered": replicator.all_gather(context.replica_id),
            "num_replicas": context.num_replicas,
            "num_replicas_in_sync": context.num_replicas_in_sync,
        }

    return repl.run(step)


def _slices(num_replicas):
    values = [np.full((2, 3), r + 1, np.float32) for r in range(num_replicas)]
    indices = [np.array([r % 4, 3]) for r in range(num_replicas)]
    return values, indices


def _dense_slices(topology):
    n = topology.num_replicas
    dense = np.zeros((n, 5, 3), np.float32)
    for r, (value, index) in enumerate(zip(*_slices(n), strict=True)):
        np.add.at(dense[r], index, value)
    return {op: on_every(topology, getattr(dense, op)(axis=0)) for op in OPS[:2]}


@case("sparse_gradients", reference=_dense_slices)
def all_reduce_sparse(repl):
    """IndexedSlices are concatenated; densified, they equal the dense result."""
    values, indices = _slices(repl.num_replicas)

    def step(pair):
        slices = tf.IndexedSlices(pair[0], pair[1], dense_shape=tf.constant([5, 3]))
        return {
            op: tf.convert_to_tensor(replicator.all_reduce(slices, op))
            for op in OPS[:2]
        }

    return repl.run(step, (share(repl, values), share(repl, indices)))


def _squares_of_rows(topology):
    values, _ = _slices(topology.num_replicas)
    return on_every(topology, (np.sum(values, axis=0) ** 2).sum(axis=0))


@case("sparse_gradients", reference=_squares_of_rows)
def all_reduce_rows_of_positions(repl):
    """Rows with the same indices on every replica are summed one by one."""
    values, _ = _slices(repl.num_replicas)

    def step(rows):
        slices = tf.IndexedSlices(rows, tf.range(len(values[0])))
        return tf.reduce_sum(replicator.all_sum(slices).values ** 2, axis=0)

    return repl.run(step, share(repl, values))


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
    }
    return {
        name: replicator.PerReplica([np.float32(g) for g in grads])
        for name, grads in by_replica.items()
    }


@case("collectives", reference=_gradients)
def gradients(repl):
    """Each collective's gradient with respect to each replica's operand."""
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
        return results

    values = _operands(n), _rows(n), _weights(n)
    return repl.run(step, tuple(share(repl, of_all) for of_all in values))


@case(
    "collectives",
    # d/dx of (sum x)^2 * sum 3, over n replicas that all hold 2.
    reference=lambda t: on_every(
        t, np.float32(2 * (2 * t.num_replicas) * (3 * t.num_replicas) * t.num_replicas)
    ),
)
def gradient_through_mixed_types(repl):
    """Integers in one call with a float do not stop the float's gradient."""

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            total = replicator.all_sum({"x": x, "count": tf.constant(3)})
            loss = total["x"] ** 2 * tf.cast(total["count"], tf.float32)
        return tape.gradient(loss, x)

    return repl.run(step, share(repl, [np.float32(2)] * repl.num_replicas))


@case(
    "collectives",
    reference=lambda t: {
        "sum": np.float32(sum(range(2, 2 + t.num_replicas))),
        "mean": np.float32(np.mean(range(2, 2 + t.num_replicas))),
        "min": np.float32(2),
        "max": np.float32(1 + t.num_replicas),
    },
)
def reduce_outside(repl):
    """reduce() combines what a step returned over all replicas of the job."""

    def step():
        replica_id = replicator.get_replica_context().replica_id
        return tf.cast(replica_id, tf.float32) + 2

    out = repl.run(step)
    return {op: repl.reduce(op, out) for op in OPS}


@case(
    "collectives",
    reference=lambda t: {
        "reduced": {"a": "none", "b": np.int32(3 * t.num_replicas), "c": "z"},
        "counter": np.float32(t.num_replicas),
    },
)
def steps_may_return_nothing(repl):
    """None stays None on every replica; reduce() returns other leaves unchanged."""
    with repl.context():
        counter = tf.Variable(0.0, trainable=False)

    def count():
        counter.assign_add(replicator.all_sum(1.0))

    def part():
        return {"a": None, "b": tf.constant(3)}

    nothing = repl.run(count)
    assert [None] * repl.num_local_replicas == list(nothing)
    out = repl.run(part)
    reduced = repl.reduce("sum", {**out, "c": "z"})
    reduced["a"] = "none" if reduced["a"] is None else "something"
    return {"reduced": reduced, "counter": counter.numpy()}


_NUM_ITEMS = 5


def _items():
    """Matrices of different sizes, as the blocks of a preconditioner are."""
    rng = np.random.default_rng(5)
    return [
        (rng.normal(size=(n, n)) / 8 + np.eye(n)).astype(np.float32)
        for n in range(2, 2 + _NUM_ITEMS)
    ]


@case(
    "collectives",
    reference=lambda t: [on_every(t, np.linalg.inv(item)) for item in _items()],
    rtol=1e-4,
    atol=1e-5,
)
def map_gather(repl):
    """Each inverse is computed on one replica, and all replicas get all of them."""
    items = _items()

    def step():
        return replicator.map_gather([tf.constant(x) for x in items], tf.linalg.inv)

    return repl.run(step)


def _traces():
    return np.float32([np.trace(item) ** 2 for item in _items()])


@case(
    "collectives",
    reference=lambda t: {
        "sum": on_every(t, _traces().sum()),
        "mean": on_every(t, _traces().mean()),
        "min": on_every(t, _traces().min()),
        "max": on_every(t, _traces().max()),
        # Replicas share one loss, so their gradients average to that of one device.
        "gradient": np.float32(2 * 3.0 * _traces().sum()),
    },
)
def map_reduce(repl):
    """Items are reduced over all replicas, and the gradient reaches a variable."""
    items = _items()
    with repl.context():
        scale = tf.Variable(3.0)

    def step():
        tensors = [tf.constant(x) for x in items]

        def plain(x):
            return tf.linalg.trace(x) ** 2

        results = {
            op: replicator.map_reduce(plain, tensors, op)
            for op in ("sum", "mean", "min", "max")
        }
        with tf.GradientTape() as tape:
            loss = replicator.map_reduce(
                lambda x: tf.linalg.trace(scale * x) ** 2, tensors, "sum"
            )
        gradient = replicator.all_mean(tape.gradient(loss, scale))
        return {**results, "gradient": gradient}

    out = repl.run(step)
    return {**out, "gradient": repl.reduce("max", out["gradient"])}
