"""Does a training with the library, and tells an observer what comes of it."""

from __future__ import annotations

import dataclasses
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import replicator
from fuzzing.engine import make_replicator
from fuzzing.training import syntax
from fuzzing.training.numpy_model import RATE, Model, make_data

FAILURE = "the drawn failure"
_OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(RATE),
    "momentum": lambda: keras.optimizers.SGD(RATE, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(RATE, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(RATE),
}


class QueueLayer(keras.layers.Layer):
    """Adds the mean of the batch before, which every replica keeps for itself."""

    def build(self, shape):
        self.last = self.add_weight(
            shape=(shape[-1],), initializer="zeros", trainable=False
        )

    def call(self, inputs):
        outputs = inputs * (1.0 + self.last.value)
        self.last.assign(tf.reduce_mean(inputs, axis=0))
        return outputs


class RecomputedLayer(keras.layers.Layer):
    """Dropout in a function that the backward pass runs again."""

    def __init__(self, by, dtype):
        super().__init__(dtype=dtype)
        again = {"tf": tf.recompute_grad, "keras": keras.remat}[by]
        self._dropped = again(lambda x: tf.nn.dropout(x, 0.5))

    def call(self, inputs):
        return self._dropped(inputs)


class Session:
    """A training on one target."""

    def __init__(self, training, target, batch):
        self._training = training
        self.repl = make_replicator(target.placement, target.num_replicas)
        with self.repl.context():
            self.model = _make_model(training)
            self.optimizer = wrap(self.repl, training.optimizer)
        self.inputs = make_inputs(self.repl, training, batch)
        self.step = make_step(training, self.model, self.optimizer)

    def manager(self, directory):
        return self.repl.make_checkpoint_manager(
            directory,
            inputs=self.inputs,
            model=self.model,
            optimizer=self.optimizer,
        )

    def outside(self):
        """What the model's variables read as, layer by layer."""
        return [np.asarray(variable) for variable in variables_of(self.model)]


def variables_of(model):
    return [variable for layer in model.layers for variable in layer.weights]


def _make_model(training):
    layers = [keras.Input((syntax.NUM_FEATURES,), dtype=training.dtype)]
    dtype = training.dtype
    for layer in (*training.layers, syntax.Dense(units=1)):
        match layer:
            case syntax.Dense(units=units, activation=activation):
                layers.append(
                    keras.layers.Dense(units, activation=activation, dtype=dtype)
                )
            case syntax.Norm(is_global=True):
                layers.append(replicator.CrossReplicaBatchNormalization(dtype=dtype))
            case syntax.Norm():
                layers.append(keras.layers.BatchNormalization(dtype=dtype))
            case syntax.Dropout():
                layers.append(keras.layers.Dropout(0.0, dtype=dtype))
            case syntax.Queue():
                layers.append(QueueLayer(dtype=dtype))
            case syntax.Recomputed(by=by):
                layers.append(RecomputedLayer(by, dtype))
    model = keras.Sequential(layers)
    if not any(isinstance(layer, syntax.Queue) for layer in training.layers):
        first = Model(training, np.random.default_rng([4, training.seed])).outside()
        for variable, value in zip(variables_of(model), first, strict=True):
            variable.assign(value)
    return model


def wrap(repl, optimizer):
    return repl.wrap_optimizer(
        _OPTIMIZERS[optimizer.name](),
        global_clipnorm=optimizer.clip,
        loss_scale=optimizer.loss_scale,
        accumulation_steps=optimizer.accumulation,
        sharded_update=optimizer.sharded,
    )


def make_inputs(repl, training, batch):
    """An iterator over epochs of all examples, with a flag at the poisoned one."""
    x, t = make_data(training)
    flags = np.arange(len(x)) == (-1 if training.poison is None else training.poison)
    inputs = training.inputs

    def input_fn(ctx):
        if inputs.is_generator:
            specs = tuple(
                tf.TensorSpec(column.shape[1:], column.dtype)
                for column in (x, t, flags)
            )
            data = tf.data.Dataset.from_generator(
                lambda: zip(x, t, flags, strict=True), output_signature=specs
            )
        else:
            data = tf.data.Dataset.from_tensor_slices((x, t, flags))
        if inputs.is_split:
            return replicator.split_global_batches(data, ctx, batch)
        data = data.shard(ctx.num_input_pipelines, ctx.input_pipeline_id)
        share = ctx.get_per_replica_batch_size(batch)
        return data.batch(share, drop_remainder=True)

    more = {"prefetch_to_device": inputs.prefetch} if inputs.prefetch else {}
    mode = replicator.InputReplicationMode[inputs.mode]
    return repl.make_input_iterator(input_fn, mode, **more)


def make_step(training, model, optimizer):
    """The step function: the mean over all examples of the squared error."""
    is_scaled = training.optimizer.loss_scale is not None

    def step(batch):
        x, t, flags = batch
        check = tf.debugging.Assert(tf.logical_not(tf.reduce_any(flags)), [FAILURE])
        with tf.control_dependencies([check]):
            x = tf.identity(x)
        with tf.GradientTape() as tape:
            errors = tf.reduce_sum(tf.square(model(x, training=True) - t), axis=1)
            if training.inputs.is_split:
                loss = replicator.mean_over_examples(errors)
            else:
                loss = tf.reduce_mean(errors)
            scaled = optimizer.scale_loss(loss) if is_scaled else loss
        variables = model.trainable_variables
        grads = _clipped(tape.gradient(scaled, variables), training.optimizer)
        optimizer.apply_gradients(zip(grads, variables, strict=True))
        return loss

    return tf.autograph.experimental.do_not_convert(step)


def _clipped(grads, optimizer):
    """Gradients that each replica has clipped, if that is drawn."""
    if optimizer.clips_before == "clip_by_global_norm":
        return tf.clip_by_global_norm(grads, 0.5)[0]
    if optimizer.clips_before == "clip_by_norm":
        return [tf.clip_by_norm(grad, 0.5) for grad in grads]
    return grads


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    action: syntax.Action  # What was done.
    loss: Any = None  # Of the last step, the mean over replicas; None without one.
    ended: bool = False  # Whether the epoch ended, and the next one has begun.
    error: Exception | None = None  # What was raised, or None.
    # The model's variables.
    outside: list[Any] = dataclasses.field(default_factory=list)
    num_updates: int = 0  # Updates that the optimizer has counted.


def events(training):
    session = Session(training, training.target, training.inputs.batch)
    with tempfile.TemporaryDirectory() as directory:
        for number, action in enumerate(training.actions):
            loss, ended, error = None, False, None
            try:
                if isinstance(action, syntax.Restore):
                    folder = f"{directory}/{number}"
                    session.manager(folder).save()
                    other = Session(training, action.target, action.batch)
                    other.manager(folder).restore()
                    session = other
                else:
                    loss = _act(session, training, action)
            except (tf.errors.OutOfRangeError, StopIteration):
                ended = True
                session.inputs.reinitialize()
            except Exception as caught:  # noqa: BLE001 - the observer judges it
                error = caught
                _reset_local(session.model)
            yield Event(
                action=action,
                loss=loss,
                ended=ended,
                error=error,
                outside=session.outside(),
                num_updates=int(session.optimizer.iterations),
            )


def _reset_local(model):
    """What replicas keep for themselves is undefined after a failure: begins anew."""
    for layer in model.layers:
        if type(layer) is keras.layers.BatchNormalization:
            layer.moving_mean.assign(tf.zeros_like(layer.moving_mean.value))
            layer.moving_variance.assign(tf.ones_like(layer.moving_variance.value))


def _act(session, training, action):
    """Does one action; returns the loss of the last step."""
    repl = session.repl
    match action:
        case syntax.Run(is_next=True):
            return _mean(repl, repl.run(session.step, next(session.inputs)))
        case syntax.Run(num_steps=count):
            return _mean(repl, repl.run(session.step, session.inputs, num_steps=count))
        case syntax.Assign(index=index, kind=kind):
            variables = variables_of(session.model)
            variable = variables[index % len(variables)]
            variable.assign(assigned(kind, np.asarray(variable)))
        case syntax.Single():
            single = replicator.create("single")
            x, t = make_data(training)
            values = tuple(
                replicator.PerReplica([tf.constant(value)])
                for value in (x, t, np.zeros(len(x), bool))
            )
            return _mean(single, single.run(session.step, values))
        case syntax.Full():
            counter = session.optimizer.loss_scale.num_finite_steps
            if counter is not None:
                counter.assign(1999)
        case syntax.Foreign(what=what, num_replicas=count):
            return _foreign(session, training, what, count)
    return None


def _foreign(session, training, what, num_replicas):
    """A step with something that another replicator made."""
    target = syntax.Target(num_replicas=num_replicas, is_mirrored=False)
    other = make_replicator(target.placement, target.num_replicas)
    if what == "optimizer":
        with other.context():
            optimizer = wrap(other, training.optimizer)
        step = make_step(training, session.model, optimizer)
        return _mean(session.repl, session.repl.run(step, session.inputs))
    inputs = make_inputs(other, training, 2 * num_replicas)
    source = next(inputs) if what == "values" else inputs
    return _mean(session.repl, session.repl.run(session.step, source))


def assigned(kind, now):
    """What ``Assign`` gives a variable that reads as ``now``."""
    values = {"same": now, "zeros": np.zeros_like(now)}
    return values.get(kind, np.full_like(now, 0.75))


def _mean(repl, losses):
    return repl.reduce("mean", losses).numpy()
