"""Does a training with the library and in NumPy, and says whether they agree."""

from __future__ import annotations

import dataclasses
import math
import tempfile
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from fuzzing import trainings
from fuzzing.engine import make_replicator
from fuzzing.numpy_model import RATE, Model, make_data, parts_of
from fuzzing.syntax import DifferenceError, Verdict

import replicator

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
    layers = [keras.Input((trainings.NUM_FEATURES,), dtype=training.dtype)]
    dtype = training.dtype
    for layer in (*training.layers, trainings.Dense(units=1)):
        match layer:
            case trainings.Dense(units=units, activation=activation):
                layers.append(
                    keras.layers.Dense(units, activation=activation, dtype=dtype)
                )
            case trainings.Norm(is_global=True):
                layers.append(replicator.CrossReplicaBatchNormalization(dtype=dtype))
            case trainings.Norm():
                layers.append(keras.layers.BatchNormalization(dtype=dtype))
            case trainings.Dropout():
                layers.append(keras.layers.Dropout(0.0, dtype=dtype))
            case trainings.Queue():
                layers.append(QueueLayer(dtype=dtype))
            case trainings.Recomputed(by=by):
                layers.append(RecomputedLayer(by, dtype))
    model = keras.Sequential(layers)
    if not any(isinstance(layer, trainings.Queue) for layer in training.layers):
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
    action: trainings.Action  # What was done.
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
                if isinstance(action, trainings.Restore):
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
        case trainings.Run(is_next=True):
            return _mean(repl, repl.run(session.step, next(session.inputs)))
        case trainings.Run(num_steps=count):
            return _mean(repl, repl.run(session.step, session.inputs, num_steps=count))
        case trainings.Assign(index=index, kind=kind):
            variables = variables_of(session.model)
            variable = variables[index % len(variables)]
            variable.assign(assigned(kind, np.asarray(variable)))
        case trainings.Single():
            single = replicator.create("single")
            x, t = make_data(training)
            values = tuple(
                replicator.PerReplica([tf.constant(value)])
                for value in (x, t, np.zeros(len(x), bool))
            )
            return _mean(single, single.run(session.step, values))
        case trainings.Full():
            counter = session.optimizer.loss_scale.num_finite_steps
            if counter is not None:
                counter.assign(1999)
        case trainings.Foreign(what=what, num_replicas=count):
            return _foreign(session, training, what, count)
    return None


def _foreign(session, training, what, num_replicas):
    """A step with something that another replicator made."""
    target = trainings.Target(num_replicas=num_replicas, is_mirrored=False)
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


# Some twenty updates, each through a few layers. Keras rounds momentum, of batch norm
# too, and the decay rates of Adam to float32, whatever the type of the weights.
TOLERANCES = {"float32": 1e-3, "float64": 1e-9}
TOLERANCE_OF_RATES = 1e-4
# Two right answers of this share of the tolerance apart leave too little to judge by.
ILL_CONDITIONED = 0.1


def check(training):
    if _must_refuse(training, math.inf):
        return _check_refused(training)
    judge = _Judge(training)
    for number, event in enumerate(events(training)):
        verdict = judge.follow(f"action {number}, {event.action}", event)
        if verdict is not None:
            return verdict
    return Verdict.SAME


def _must_refuse(training, num_replicas):
    """Errors of which one must refuse the first step on so many replicas."""
    kinds = {type(layer) for layer in training.layers}
    found = set()
    if num_replicas > 1 and (
        trainings.Queue in kinds or training.optimizer.clips_before
    ):
        # State of each replica in a gradient; gradients clipped by each on its own.
        found.add(replicator.UnsynchronisedUpdateError)
    if trainings.Recomputed in kinds:
        found.add(replicator.RecomputationError)
    return found


def _check_refused(training):
    num_replicas = training.target.num_replicas
    for event in events(training):
        if isinstance(event.action, trainings.Restore) and event.error is None:
            num_replicas = event.action.target.num_replicas
        if isinstance(event.action, trainings.Run) and not event.ended:
            break
    else:
        return Verdict.NOT_JUDGED
    must_refuse = _must_refuse(training, num_replicas)
    if not must_refuse:
        return Verdict.NOT_JUDGED
    if isinstance(event.error, tuple(must_refuse)):
        return Verdict.REFUSED
    names = sorted(error.__name__ for error in must_refuse)
    raise DifferenceError(f"{event.error!r} in place of {' or '.join(names)}")


class _Judge:
    """Does in NumPy what the library has done."""

    def __init__(self, training):
        self._training = training
        # The second one says how much rounding matters.
        self._models = [
            Model(training, np.random.default_rng([4, training.seed]), dtype)
            for dtype in (np.float64, np.float32)
        ]
        self._data = make_data(training)
        self._num_replicas = training.target.num_replicas
        self._batch = training.inputs.batch
        self._position = 0
        self._tolerance = TOLERANCES[training.dtype]
        has_norm = any(isinstance(layer, trainings.Norm) for layer in training.layers)
        if training.optimizer.name != "sgd" or has_norm:
            self._tolerance = max(self._tolerance, TOLERANCE_OF_RATES)

    def follow(self, place, event):
        """Compares one action; a verdict if the training ends with it."""
        action = event.action
        if isinstance(action, trainings.Foreign):
            return self._foreign(place, action, event)
        if isinstance(action, trainings.Restore):
            if not self._restore(place, action, event):
                return Verdict.REFUSED
        elif isinstance(action, trainings.Run):
            self._run(place, action, event)
        else:
            _check_error(place, event.error)
        if isinstance(action, trainings.Assign):
            self._assign(action)
        if isinstance(action, trainings.Single):
            self._single(place, event)
        return self._compare(place, event)

    def _run(self, place, action, event):
        losses, ended, fails = None, False, False
        for _ in range(action.num_steps):
            parts = parts_of(
                self._training.inputs, self._batch, self._num_replicas, self._position
            )
            if parts is None:
                ended, self._position = True, 0
                break
            self._position += sum(map(len, parts))
            if self._training.poison in np.concatenate(parts):
                fails = True
                break
            losses = self._step(parts)
        if ended != event.ended:
            raise DifferenceError(
                f"{place}: the epoch ends: {event.ended}, not {ended}"
            )
        if not fails:
            _check_error(place, event.error)
        elif FAILURE not in str(event.error):
            raise DifferenceError(f"{place}: a failing step raised {event.error!r}")
        else:
            self._go_on(place, event)
        if losses is not None and event.loss is not None:
            self._compare_losses(place, event, losses)

    def _step(self, parts):
        x, t = self._data
        return [m.step([(x[own], t[own]) for own in parts]) for m in self._models]

    def _go_on(self, place, event):
        """A failed step may have been counted, and has done nothing else."""
        done = self._models[0].num_updates
        if event.num_updates not in (done, done + 1):
            raise DifferenceError(
                f"{place}: {event.num_updates} updates counted in place of {done}"
            )
        for model in self._models:
            model.num_updates = event.num_updates
            model.reset_local()

    def _assign(self, action):
        for model in self._models:
            values = model.outside()
            index = action.index % len(values)
            model.assign(index, assigned(action.kind, values[index]))

    def _single(self, place, event):
        for model in self._models:
            model.spread(1)
        losses = self._step([np.arange(len(self._data[0]))])
        for model in self._models:
            model.spread(self._num_replicas)
        self._compare_losses(place, event, losses)

    def _restore(self, place, action, event):
        """Whether the checkpoint was restored; it may be refused within a step."""
        inputs = self._training.inputs
        is_between = self._position % action.batch != 0
        if self._position == inputs.num_examples:
            # Nothing is left: only of a generator it is not known.
            is_between = inputs.is_generator
        if is_between and isinstance(event.error, replicator.ReplicatorError):
            return False
        _check_error(place, event.error)
        self._num_replicas = action.target.num_replicas
        self._batch = action.batch
        for model in self._models:
            model.spread(self._num_replicas)
        return True

    def _foreign(self, place, action, event):
        if isinstance(event.error, replicator.ReplicatorError):
            return Verdict.REFUSED
        if action.what == "optimizer" and self._training.poison is None:
            # An optimizer that updates alike may be taken, with a state of its own.
            for model in self._models:
                for slot in (s for slots in model.slots for s in slots):
                    slot[...] = 0
                model.num_updates = 0
            self._run(place, trainings.Run(), event)
            return self._compare(place, event) or Verdict.SAME
        if action.what == "optimizer":
            return Verdict.NOT_JUDGED
        if event.ended and event.loss is None:
            return Verdict.NOT_JUDGED  # its inputs have no whole batch
        raise DifferenceError(f"{place}: accepted, or {event.error!r}")

    def _compare_losses(self, place, event, losses):
        if self._is_ill(*losses):
            return
        if not self._is_close(losses[0], event.loss):
            raise DifferenceError(f"{place}: loss {event.loss} in place of {losses[0]}")

    def _compare(self, place, event):
        wants, rounded = (model.outside() for model in self._models)
        is_judged = True
        for index, (want, other, got) in enumerate(
            zip(wants, rounded, event.outside, strict=True)
        ):
            if self._is_ill(want, other):
                is_judged = False
            elif not self._is_close(want, got) and is_judged:
                raise DifferenceError(
                    f"{place}: variable {index} is {got.tolist()} in place of "
                    f"{want.tolist()}"
                )
        return None if is_judged else Verdict.NOT_JUDGED

    def _is_ill(self, want, rounded):
        """Whether rounding to float32 moves a value too far."""
        if not np.all(np.isfinite(want)):
            return True
        limit = ILL_CONDITIONED * TOLERANCES["float32"] * (1 + np.max(np.abs(want)))
        return bool(np.any(np.abs(want - rounded) > limit))

    def _is_close(self, want, got):
        limit = self._tolerance * (1 + np.max(np.abs(want)))
        return bool(np.all(np.abs(want - np.asarray(got, np.float64)) <= limit))


def _check_error(place, error):
    if error is not None:
        raise DifferenceError(
            f"{place}: {type(error).__name__}: {str(error)[:500]}"
        ) from error


def render(training):
    """A training as the expression that makes it."""
    lines = [f"  {name}={value!r}," for name, value in vars(training).items()]
    return "\n".join(["Training(", *lines, ")"])
