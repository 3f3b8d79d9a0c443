"""Trainings as data (a model, its inputs, what is done with them), and their draw."""

from __future__ import annotations

import dataclasses

from fuzzing.drawing import Choices
from hypothesis import strategies as st

NUM_FEATURES = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dense:
    """``keras.layers.Dense``; ``units`` outputs through ``activation``."""

    units: int
    activation: str = "linear"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Norm:
    """Batch norm: of all replicas, or Keras' own, of each replica by itself."""

    is_global: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dropout:
    """``keras.layers.Dropout(0.0)``: the only rate that draws nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Queue:
    """Adds the mean of the last batch, which each replica keeps for itself."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recomputed:
    """Dropout that the backward pass draws again, by TensorFlow or by Keras.

    It follows on weights: otherwise no gradient needs it.
    """

    by: str


Layer = Dense | Norm | Dropout | Queue | Recomputed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    name: str  # ``sgd``, ``momentum``, ``nesterov`` or ``adam``.
    clip: float | None = None  # ``global_clipnorm``, or None.
    loss_scale: float | str | None = None  # As ``wrap_optimizer`` takes it.
    # Function of TensorFlow by which each replica clips its gradients before they are
    # averaged, or None.
    clips_before: str | None = None
    accumulation: int = 1  # ``accumulation_steps``.
    sharded: str | bool = False  # ``sharded_update``.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inputs:
    num_examples: int  # Of an epoch.
    batch: int  # Examples of a step on all replicas.
    is_split: bool  # Whether by ``split_global_batches``, which leaves no example out.
    is_generator: bool  # Whether a Python generator gives them.
    mode: str  # An ``InputReplicationMode``.
    prefetch: int  # ``prefetch_to_device``.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """Replicas, and whether each has a device and copies of its own."""

    num_replicas: int
    is_mirrored: bool

    @property
    def placement(self):
        return "mirrored" if self.is_mirrored else "shared"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Steps in one dispatch; or one step of a batch that ``next`` gives."""

    num_steps: int = 1
    is_next: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assign:
    """Assigns one of the model's variables: its own value, zeros or others."""

    index: int
    kind: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restore:
    """Saves, and goes on from the checkpoint on another target, batch by batch."""

    target: Target
    batch: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Single:
    """One step of another batch on ``single``, with the optimizer as it is wrapped."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Foreign:
    """Something of another replicator in ``run``: it must be refused."""

    what: str  # ``inputs``, ``values`` or ``optimizer``.
    num_replicas: int  # Of the other one.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Full:
    """Sets the counter of a dynamic loss scale so that the next step doubles it."""


Action = Run | Assign | Restore | Single | Foreign | Full


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    layers: tuple[Layer, ...]  # Followed by a dense layer with one output.
    optimizer: Optimizer  # Updates the model.
    inputs: Inputs  # Of every epoch.
    target: Target  # On which it begins.
    actions: tuple[Action, ...]  # In order; at the end of an epoch the next one begins.
    poison: int | None  # The example whose step fails in every epoch, or None.
    dtype: str  # Of the model and of the data.
    seed: int  # Of data and weights.


FEATURES = (
    "clips",
    "failures",
    "foreign",
    "norms",
    "options",
    "precision",
    "queues",
    "recomputed",
    "restores",
)
MAX_ACTIONS = 5
LEVELS = ("state", "gradients", "parameters")


@st.composite
def trainings(draw, features=FEATURES):
    return _Drawer(draw, features).training()


class _Drawer(Choices):
    def _choose(self, *options):
        return self.choose(options)

    def training(self):
        target = self._target()
        inputs = self._inputs(target)
        layers = [self._layer() for _ in range(self._choose(1, 2, 0))]
        if self._choose(*[False] * 9, *self.also("recomputed", True)):
            by = self._choose("tf", "keras")
            layers += [Dense(units=2), Recomputed(by=by)]
        optimizer = self._optimizer()
        count = self._choose(*range(1, MAX_ACTIONS + 1))
        actions = [self._action(inputs, optimizer) for _ in range(count)]
        # What a failed step leaves of an accumulation is not documented.
        can_fail = optimizer.accumulation == 1
        is_poisoned = can_fail and self._choose(False, *self.also("failures", True))
        return Training(
            layers=tuple(layers),
            optimizer=optimizer,
            inputs=inputs,
            target=target,
            actions=tuple(actions),
            poison=self._choose(*range(inputs.num_examples)) if is_poisoned else None,
            dtype=self._choose("float32", *self.also("precision", "float64")),
            seed=self._choose(*range(20)),
        )

    def _target(self):
        return Target(
            num_replicas=self._choose(2, 3, 1), is_mirrored=self._choose(False, True)
        )

    def _batch(self, target):
        return target.num_replicas * self._choose(1, 2, 3)

    def _inputs(self, target):
        return Inputs(
            num_examples=self._choose(*range(4, 20)),
            batch=self._batch(target),
            is_split=self._choose(True, False),
            is_generator=self._choose(False, *self.also("failures", True)),
            mode=self._choose("PER_WORKER", "PER_REPLICA", "SINGLE"),
            prefetch=self._choose(0, 0, 2),
        )

    def _layer(self):
        activation = self._choose("tanh", "sigmoid", "linear")
        return self._choose(
            Dense(units=2, activation=activation),
            Dropout(),
            *self.also("norms", Norm(), Norm(is_global=False)),
            *self.also("queues", Queue()),
        )

    def _optimizer(self):
        options = "options" in self.features
        clips = self.also("clips", "clip_by_global_norm", "clip_by_norm")
        return Optimizer(
            name=self._choose("sgd", "momentum", "nesterov", "adam"),
            clip=self._choose(None, 0.5) if options else None,
            loss_scale=self._choose(None, 1024.0, "dynamic") if options else None,
            clips_before=self._choose(*[None] * 9, *clips),
            accumulation=self._choose(1, 1, 1, 2, 3) if options else 1,
            sharded=self._choose(*[False] * 3, *LEVELS) if options else False,
        )

    def _action(self, inputs, optimizer):
        target = self._target()
        batch = self._batch(target)
        restore = Restore(target=target, batch=batch)
        is_of_one = optimizer.accumulation == 1 and not optimizer.sharded
        foreign = "foreign" if is_of_one else "none"
        return self._choose(
            Run(),
            Run(num_steps=self._choose(2, 3, 6)),
            Run(is_next=True),
            Assign(
                index=self._choose(0, 1, 2, 3, 4, 5),
                kind=self._choose("same", "zeros", "new"),
            ),
            *self.also("restores", *[restore] * 2),
            *self.also(
                foreign,
                Single(),
                Foreign(
                    what=self._choose("inputs", "values", "optimizer"),
                    num_replicas=self._choose(1, 2, 3),
                ),
            ),
            *([Full()] if optimizer.loss_scale == "dynamic" else []),
        )
