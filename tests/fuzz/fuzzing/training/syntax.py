"""Trainings as data: a model, an optimizer, its inputs, and what is done with them."""

from __future__ import annotations

import dataclasses

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
