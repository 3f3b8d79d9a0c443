"""Does a training with the library and in NumPy, and says whether they agree."""

from __future__ import annotations

import math

import numpy as np

from fuzzing.checking import Verdict
from fuzzing.comparing import DifferenceError
from fuzzing.training import engine, syntax
from fuzzing.training.numpy_model import Model, make_data, parts_of
from replicator import errors

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
    for number, event in enumerate(engine.events(training)):
        verdict = judge.follow(f"action {number}, {event.action}", event)
        if verdict is not None:
            return verdict
    return Verdict.SAME


def _must_refuse(training, num_replicas):
    """Errors of which one must refuse the first step on so many replicas."""
    kinds = {type(layer) for layer in training.layers}
    found = set()
    if num_replicas > 1 and (syntax.Queue in kinds or training.optimizer.clips_before):
        # State of each replica in a gradient; gradients clipped by each on its own.
        found.add(errors.UnsynchronisedUpdateError)
    if syntax.Recomputed in kinds:
        found.add(errors.RecomputationError)
    return found


def _check_refused(training):
    num_replicas = training.target.num_replicas
    for event in engine.events(training):
        if isinstance(event.action, syntax.Restore) and event.error is None:
            num_replicas = event.action.target.num_replicas
        if isinstance(event.action, syntax.Run) and not event.ended:
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
        has_norm = any(isinstance(layer, syntax.Norm) for layer in training.layers)
        if training.optimizer.name != "sgd" or has_norm:
            self._tolerance = max(self._tolerance, TOLERANCE_OF_RATES)

    def follow(self, place, event):
        """Compares one action; a verdict if the training ends with it."""
        action = event.action
        if isinstance(action, syntax.Foreign):
            return self._foreign(place, action, event)
        if isinstance(action, syntax.Restore):
            if not self._restore(place, action, event):
                return Verdict.REFUSED
        elif isinstance(action, syntax.Run):
            self._run(place, action, event)
        else:
            _check_error(place, event.error)
        if isinstance(action, syntax.Assign):
            self._assign(action)
        if isinstance(action, syntax.Single):
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
        elif engine.FAILURE not in str(event.error):
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
            model.assign(index, engine.assigned(action.kind, values[index]))

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
        if is_between and isinstance(event.error, errors.ReplicatorError):
            return False
        _check_error(place, event.error)
        self._num_replicas = action.target.num_replicas
        self._batch = action.batch
        for model in self._models:
            model.spread(self._num_replicas)
        return True

    def _foreign(self, place, action, event):
        if isinstance(event.error, errors.ReplicatorError):
            return Verdict.REFUSED
        if action.what == "optimizer" and self._training.poison is None:
            # An optimizer that updates alike may be taken, with a state of its own.
            for model in self._models:
                for slot in (s for slots in model.slots for s in slots):
                    slot[...] = 0
                model.num_updates = 0
            self._run(place, syntax.Run(), event)
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
