"""Position: how far the input pipelines were read, and how to restore it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import data as _tf_data
from replicator._tf.messages import reason_of
from replicator.errors import CheckpointError, CheckpointMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.inputs.iterator import InputIterator


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """How far the inputs of one worker were read.

    Attributes:
      num_steps: Steps that were fed since the first element.
      num_skipped: Of those, the steps that an earlier restore skipped.
      num_rewinds: Times that the pipelines were rewound: epochs before this one.
      num_pipelines: Pipelines of this worker.
      num_replicas: Replicas of the whole job.
      num_workers: Workers of the whole job.
      examples_per_step: Examples of the global batch, if the shape is static.
      is_at_end: Whether some pipeline has no further step.
      is_shuffled_at_random: Whether a pipeline, read again, has another order.
    """

    num_steps: int
    num_skipped: int
    num_rewinds: int
    num_pipelines: int
    num_replicas: int
    num_workers: int
    examples_per_step: int | None
    is_at_end: bool
    is_shuffled_at_random: bool = False


def current(inputs: InputIterator, num_replicas: int, num_workers: int) -> Position:
    """Reads the position of inputs."""
    return Position(
        num_steps=inputs.num_steps,
        num_skipped=inputs.num_skipped,
        num_rewinds=inputs.num_rewinds,
        num_pipelines=len(inputs.pipelines),
        num_replicas=num_replicas,
        num_workers=num_workers,
        examples_per_step=_examples_per_step(inputs, num_replicas),
        is_at_end=inputs.is_at_end,
        is_shuffled_at_random=inputs.shuffles_at_random,
    )


def serialize(inputs: InputIterator) -> tuple[list[list[bytes]] | None, str]:
    """Returns the state of every iterator, or None and the reason."""
    if inputs.stateless_reason:
        return None, inputs.stateless_reason
    try:
        return [_tf_data.serialize_iterator(i) for i in inputs.iterators], ""
    except tf.errors.OpError as error:
        return None, reason_of(error)


def restore(
    inputs: InputIterator,
    saved: Position,
    states: Sequence[Sequence[bytes]] | None,
    reason: str,
    here: Position,
) -> str:
    """Moves inputs to a saved position; returns a description of how.

    Args:
      inputs: New inputs of the same input function, or those that were saved.
      saved: The position in the checkpoint.
      states: The states of this worker's iterators; None if they are unknown.
      reason: Why ``states`` is None.
      here: The position of ``inputs``; only its topology is used.

    Raises:
      CheckpointMismatchError: The examples of the checkpoint do not fill whole steps
        of these inputs, or have to be skipped and are in no order of their own.
      CheckpointError: The iterators belong to another dataset.
    """
    is_same = _layout(saved) == _layout(here)
    reason = inputs.stateless_reason or reason
    if states is not None and is_same and not inputs.stateless_reason:
        # A state fits the dataset that it was saved of, and a skip is part of that.
        inputs.start(saved.num_skipped, num_rewinds=saved.num_rewinds)
        try:
            for iterator, state in zip(inputs.iterators, states, strict=True):
                _tf_data.deserialize_iterator(iterator, state)
        except tf.errors.OpError as error:
            raise CheckpointError(
                "the state of the input iterators does not fit these pipelines "
                f"({reason_of(error)}): the input function builds another dataset "
                "than when it was saved; restore with inputs=None to restart the data"
            ) from error
        inputs.num_steps, inputs.is_at_end = saved.num_steps, saved.is_at_end
        return "exact, from the state of the iterators"
    # States count elements of one pipeline each. Dealt to other pipelines or replicas,
    # the same examples are other elements; what stays is how many steps all have read,
    # the same on every worker (record 0014).
    num_steps = _steps_here(saved, here)
    why = reason if is_same else "the topology has changed"
    if num_steps and not saved.is_at_end:
        _check_order(saved, here, why)
    inputs.start(num_steps, num_rewinds=saved.num_rewinds, to_end=saved.is_at_end)
    return f"by skipping the {num_steps} steps that were read ({why})"


def _check_order(saved: Position, here: Position, why: str) -> None:
    """Rejects inputs that would not skip the examples that were read."""
    if saved.is_shuffled_at_random or here.is_shuffled_at_random:
        raise CheckpointMismatchError(
            "the checkpoint's inputs cannot continue in the middle of an epoch: the "
            f"steps that were read have to be skipped ({why}), but shuffle() without "
            "a seed draws another order each time, so that examples would be repeated "
            "and lost; train with shuffle(..., seed=...), or restore with inputs=None "
            "to restart the data"
        )


def _layout(position: Position) -> tuple[int, int, int]:
    return position.num_pipelines, position.num_replicas, position.num_workers


def _steps_here(saved: Position, here: Position) -> int:
    """Converts a number of steps to another global batch size."""
    before, now = saved.examples_per_step, here.examples_per_step
    if before is None or now is None or before == now:
        return saved.num_steps
    num_steps, rest = divmod(saved.num_steps * before, now)
    if rest:
        raise CheckpointMismatchError(
            f"the checkpoint had read {saved.num_steps} steps of {before} examples, "
            f"which is not an integer number of steps of {now} examples; use a global "
            f"batch of {before}, or restore with inputs=None to restart the data"
        )
    return num_steps


def _examples_per_step(inputs: InputIterator, num_replicas: int) -> int | None:
    leaves: list[Any] = tf.nest.flatten(inputs.element_spec)
    if not leaves or not leaves[0].shape.rank:
        return None
    size = leaves[0].shape[0]
    return None if size is None else int(size) * num_replicas
