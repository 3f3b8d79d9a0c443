"""Every public function with one argument left open."""

from __future__ import annotations

import keras
import tensorflow as tf

import replicator

PAIR = replicator.PerReplica([tf.constant([1.0]), tf.constant([2.0])])


def in_step(function):
    """A call inside a step on two replicas; what it returns is returned."""

    def call(repl, value, folder):
        return repl.run(lambda: function(value))

    return call


def outside(function):
    """A call in cross-replica context."""

    def call(repl, value, folder):
        return function(repl, value)

    return call


def _with_optimizer(method):
    def call(repl, value, folder):
        with repl.context():
            weight = tf.Variable([1.0, 2.0])
            optimizer = repl.wrap_optimizer(keras.optimizers.SGD(0.1))
            optimizer.build([weight])
        return repl.run(lambda: method(optimizer, weight, value))

    return call


def _pipeline(ctx):
    return tf.data.Dataset.range(8).batch(2)


def _context():
    return replicator.InputContext(
        num_input_pipelines=1, input_pipeline_id=0, num_replicas_in_sync=2
    )


def _manager(repl, folder):
    return repl.make_checkpoint_manager(folder, weight=tf.Variable(1.0))


def _identity(batch):
    return batch


IN_STEP = {
    **{
        f"{name}(value)": in_step(getattr(replicator, name))
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
    "reduce_scatter(x, value)": in_step(
        lambda v: replicator.reduce_scatter(tf.ones([2]), v)
    ),
    "permute(value, pairs)": in_step(lambda v: replicator.permute(v, [(0, 1)])),
    "permute(x, value)": in_step(lambda v: replicator.permute(1.0, v)),
    "permute(x, [value])": in_step(lambda v: replicator.permute(1.0, [v])),
    "permute(x, [(0, value)])": in_step(lambda v: replicator.permute(1.0, [(0, v)])),
    "all_reduce(x, value)": in_step(lambda v: replicator.all_reduce(1.0, v)),
    "all_reduce(x, compression=value)": in_step(
        lambda v: replicator.all_reduce(1.0, compression=v)
    ),
    "broadcast(value)": in_step(replicator.broadcast),
    "broadcast(x, value)": in_step(lambda v: replicator.broadcast(1.0, v)),
    "map_reduce(value, items)": in_step(lambda v: replicator.map_reduce(v, [1.0, 2.0])),
    "map_reduce(fn, value)": in_step(
        lambda v: replicator.map_reduce(lambda _: tf.constant(1.0), v)
    ),
    "map_reduce(fn, items) of value": in_step(
        lambda v: replicator.map_reduce(lambda _: v, [1, 2, 3])
    ),
    "map_reduce(fn, items, value)": in_step(
        lambda v: replicator.map_reduce(lambda x: x, [1.0, 2.0], v)
    ),
    "map_gather(value, fn)": in_step(
        lambda v: replicator.map_gather(v, lambda _: tf.constant(1.0))
    ),
    "map_gather(items, value)": in_step(lambda v: replicator.map_gather([1.0], v)),
    "map_gather(items, fn) of value": in_step(
        lambda v: replicator.map_gather([1, 2], lambda _: v)
    ),
    "mean_over_examples(value)": in_step(replicator.mean_over_examples),
    "draw(value)": in_step(replicator.draw),
    "draw(lambda: value)": in_step(lambda v: replicator.draw(lambda: v)),
    "logical_device(value)": in_step(
        lambda v: replicator.logical_device(v).__enter__()
    ),
    "a step's return value": in_step(lambda v: v),
    "apply_gradients(value)": _with_optimizer(lambda o, w, v: o.apply_gradients(v)),
    "apply_gradients([(value, w)])": _with_optimizer(
        lambda o, w, v: o.apply_gradients([(v, w)])
    ),
    "apply_gradients([(g, value)])": _with_optimizer(
        lambda o, w, v: o.apply_gradients([(tf.ones([2]), v)])
    ),
    "apply(value, [w])": _with_optimizer(lambda o, w, v: o.apply(v, [w])),
    "apply([g], value)": _with_optimizer(lambda o, w, v: o.apply([tf.ones([2])], v)),
    "scale_loss(value)": _with_optimizer(lambda o, w, v: o.scale_loss(v)),
}
OUTSIDE = {
    "PerReplica(value)": outside(lambda repl, v: replicator.PerReplica(v)),
    "CompiledStep(value)": outside(lambda repl, v: replicator.CompiledStep(v)),
    "create(value)": outside(lambda repl, v: replicator.create(v)),
    **{
        f"create({name}=value)": outside(
            lambda repl, v, name=name: replicator.create("in_graph", **{name: v})
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
    "StrategyReplicator(value)": outside(
        lambda repl, v: replicator.StrategyReplicator(v)
    ),
    "run(value)": outside(lambda repl, v: repl.run(v)),
    "run(step, value)": outside(lambda repl, v: repl.run(_identity, v)),
    "run(step, [value])": outside(lambda repl, v: repl.run(_identity, [v])),
    "run(step, PerReplica([value, value]))": outside(
        lambda repl, v: repl.run(_identity, replicator.PerReplica([v, v]))
    ),
    "run(step, num_steps=value)": outside(
        lambda repl, v: repl.run(lambda: tf.constant(1.0), num_steps=v)
    ),
    "reduce(value, x)": outside(lambda repl, v: repl.reduce(v, PAIR)),
    **{
        f"reduce({op!r}, PerReplica([value, value]))": outside(
            lambda repl, v, op=op: repl.reduce(op, replicator.PerReplica([v, v]))
        )
        for op in ("sum", "mean", "min")
    },
    "reduce('sum', value)": outside(lambda repl, v: repl.reduce("sum", v)),
    "make_input_iterator(value)": outside(lambda repl, v: repl.make_input_iterator(v)),
    "make_input_iterator(input_fn of value)": outside(
        lambda repl, v: repl.make_input_iterator(lambda ctx: v)
    ),
    "make_input_iterator(input_fn, value)": outside(
        lambda repl, v: repl.make_input_iterator(_pipeline, v)
    ),
    "make_input_iterator(prefetch_to_device=value)": outside(
        lambda repl, v: repl.make_input_iterator(_pipeline, prefetch_to_device=v)
    ),
    "audit_inputs(value)": outside(
        lambda repl, v: repl.audit_inputs(v, key_fn=_identity)
    ),
    "audit_inputs(input_fn of value)": outside(
        lambda repl, v: repl.audit_inputs(lambda ctx: v, key_fn=_identity)
    ),
    "audit_inputs(key_fn=value)": outside(
        lambda repl, v: repl.audit_inputs(_pipeline, key_fn=v)
    ),
    "audit_inputs(key_fn of value)": outside(
        lambda repl, v: repl.audit_inputs(_pipeline, key_fn=lambda _: v)
    ),
    "audit_inputs(num_examples=value)": outside(
        lambda repl, v: repl.audit_inputs(_pipeline, key_fn=_identity, num_examples=v)
    ),
    "wrap_optimizer(value)": outside(lambda repl, v: repl.wrap_optimizer(v)),
    **{
        f"wrap_optimizer({name}=value)": outside(
            lambda repl, v, name=name: repl.wrap_optimizer(
                keras.optimizers.SGD(0.1), **{name: v}
            )
        )
        for name in (
            "compression",
            "accumulation_steps",
            "global_clipnorm",
            "sharded_update",
            "loss_scale",
        )
    },
    "optimizer.build(value)": outside(
        lambda repl, v: repl.wrap_optimizer(keras.optimizers.SGD(0.1)).build(v)
    ),
    "repl.logical_device(value)": outside(lambda repl, v: repl.logical_device(v)),
    "get_per_replica_batch_size(value)": outside(
        lambda repl, v: _context().get_per_replica_batch_size(v)
    ),
    "split_global_batches(value, ctx, 4)": outside(
        lambda repl, v: replicator.split_global_batches(v, _context(), 4)
    ),
    "split_global_batches(dataset, value, 4)": outside(
        lambda repl, v: replicator.split_global_batches(tf.data.Dataset.range(8), v, 4)
    ),
    "split_global_batches(dataset, ctx, value)": outside(
        lambda repl, v: replicator.split_global_batches(
            tf.data.Dataset.range(8), _context(), v
        )
    ),
    "CrossReplicaBatchNormalization(variance_form=value)": outside(
        lambda repl, v: replicator.CrossReplicaBatchNormalization(variance_form=v)
    ),
    **{
        f"ShardedEmbedding({name}=value)": outside(
            lambda repl, v, name=name: replicator.ShardedEmbedding(
                **{"num_rows": 4, "num_columns": 2, "num_parts": 2, name: v}
            )
        )
        for name in ("num_rows", "num_columns", "num_parts")
    },
    "set_determinism(value)": outside(
        lambda repl, v: None if v is None else replicator.set_determinism(v)
    ),
    **{
        f"default_data_options({name}=value)": outside(
            lambda repl, v, name=name: replicator.default_data_options(**{name: v})
        )
        for name in ("deterministic", "autotune", "num_threads")
    },
}
IN_FOLDER = {
    "make_checkpoint_manager(value)": lambda repl, v, folder: (
        repl.make_checkpoint_manager(v, weight=tf.Variable(1.0))
    ),
    "make_checkpoint_manager(weight=value)": lambda repl, v, folder: (
        repl.make_checkpoint_manager(folder, weight=v)
    ),
    "make_checkpoint_manager(max_to_keep=value)": lambda repl, v, folder: (
        repl.make_checkpoint_manager(folder, max_to_keep=v, weight=tf.Variable(1.0))
    ),
    "make_checkpoint_manager(inputs=value)": lambda repl, v, folder: (
        repl.make_checkpoint_manager(folder, inputs=v, weight=tf.Variable(1.0))
    ),
    "save(value)": lambda repl, v, folder: _manager(repl, folder).save(v),
    "restore(value)": lambda repl, v, folder: _manager(repl, folder).restore(v),
    "read_metadata(value)": lambda repl, v, folder: _manager(
        repl, folder
    ).read_metadata(v),
}
CALLS = {**IN_STEP, **OUTSIDE, **IN_FOLDER}
