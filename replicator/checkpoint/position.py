"""Position: how far the input pipelines were read, and how to restore it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import tensorflow as tf

from replicator._tf import data as _tf_data
from replicator._tf.workers import reason_of
from replicator.checkpoint import division
from replicator.errors import CheckpointError, CheckpointMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicator.checkpoint.division import Division
    from replicator.inputs.iterator import InputIterator


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """How far the inputs of one worker were read."""

    num_steps: int  # Steps that were fed since the first element.
    num_skipped: int  # Of those, the steps that an earlier restore skipped.
    num_rewinds: int  # Times that the pipelines were rewound: epochs before this one.
    num_pipelines: int  # Pipelines of this worker.
    num_replicas: int  # Replicas of the whole job.
    num_workers: int  # Workers of the whole job.
    # Examples of a whole global batch, if the pipelines say so.
    examples_per_step: int | None
    is_at_end: bool  # Whether some pipeline has no further step.
    # Pipelines of the whole job; None in old checkpoints.
    num_input_pipelines: int | None = None
    # Whether a pipeline, read again, has another order.
    is_shuffled_at_random: bool = False

    def reads_as(self, other: Position) -> bool:
        """Whether the iterators of every worker read the same elements."""
        sizes = {self.examples_per_step, other.examples_per_step} - {None}
        return self._layout == other._layout and len(sizes) <= 1

    def deals_as(self, other: Position) -> bool:
        """Whether the same pipelines of the job feed some replicas."""
        if None in (self.num_input_pipelines, other.num_input_pipelines):
            return self._layout == other._layout
        return self.num_input_pipelines == other.num_input_pipelines

    @property
    def _layout(self) -> tuple[int, int, int]:
        return self.num_pipelines, self.num_replicas, self.num_workers


def current(inputs: InputIterator, num_replicas: int, num_workers: int) -> Position:
    """Reads the position of inputs."""
    size = division.examples_per_element(division.of(inputs), inputs.element_spec)
    return Position(
        num_steps=inputs.num_steps,
        num_skipped=inputs.num_skipped,
        num_rewinds=inputs.num_rewinds,
        num_pipelines=len(inputs.pipelines),
        num_replicas=num_replicas,
        num_workers=num_workers,
        examples_per_step=None if size is None else int(size * num_replicas),
        is_at_end=inputs.is_at_end,
        num_input_pipelines=inputs.num_input_pipelines,
        is_shuffled_at_random=inputs.shuffles_at_random,
    )


def serialize(inputs: InputIterator) -> tuple[list[list[bytes]] | None, str]:
    """Returns the state of every iterator, or None and the reason."""
    if reason := inputs.stateless_reason or inputs.trimmed_reason:
        return None, reason
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
    """Moves inputs to a saved position; returns a description of how."""
    is_same = saved.reads_as(here)
    reason = inputs.stateless_reason or reason
    if states is not None and is_same and not inputs.stateless_reason:
        if saved.is_at_end:  # a skip to the end has no number to repeat it by
            inputs.start(saved.num_steps, num_rewinds=saved.num_rewinds, to_end=True)
            return "exact, at the end of the data"
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
        inputs.num_steps = saved.num_steps
        return "exact, from the state of the iterators"
    # States count elements of one pipeline each. Dealt to other pipelines or replicas,
    # the same examples are other elements; what stays is how many examples all have
    # read.
    divided = division.of(inputs)
    num_steps = steps_here(saved, here, divided)
    is_at_end = has_read_all(saved, divided)
    why = reason if is_same else "the topology or the size of batches has changed"
    is_random = saved.is_shuffled_at_random or here.is_shuffled_at_random
    if num_steps and not is_at_end and is_random:
        raise CheckpointMismatchError(
            "the checkpoint's inputs cannot continue in the middle of an epoch: the "
            f"steps that were read have to be skipped ({why}), but shuffle() without "
            "a seed draws another order each time, so that examples would be repeated "
            "and lost; train with shuffle(..., seed=...), or restore with inputs=None "
            "to restart the data"
        )
    drops: list[int] = []  # examples of the next step that were read, by replica
    if divided.may_begin_smaller and not is_at_end:
        assert saved.examples_per_step and here.examples_per_step  # noqa: PT018
        begun = num_steps * here.examples_per_step
        num_read = saved.num_steps * saved.examples_per_step - begun
        size = min(here.examples_per_step, (divided.num_dealt or 0) - begun)
        replicas = range(inputs.num_replicas + 1)
        ends = [
            int(size * (inputs.first_replica_id + r) // here.num_replicas)
            for r in replicas
        ]
        parts = itertools.pairwise(ends)
        drops = [min(max(num_read - a, 0), b - a) for a, b in parts] if num_read else []
    inputs.start(
        num_steps, num_rewinds=saved.num_rewinds, to_end=is_at_end, drops=drops
    )
    return f"by skipping the {num_steps} steps that were read ({why})"


def steps_here(saved: Position, here: Position, divided: Division) -> int:
    """Converts a saved position to steps of these inputs.

    Every worker gets the same result: it follows from what is the same on all.
    """
    if not saved.num_steps or saved.reads_as(here) or has_read_all(saved, divided):
        return saved.num_steps
    before, now = saved.examples_per_step, here.examples_per_step
    deals = saved.deals_as(here)
    if deals and saved.num_replicas == here.num_replicas and before == now:
        return saved.num_steps  # other workers have the same pipelines
    if before is None or now is None:
        what = "checkpoint does not say" if before is None else "pipelines do not say"
        raise _refused(
            saved,
            f"the {what} how many examples a step has: batches of other sizes than "
            "that of batch(), or from a generator",
        )
    joins = _per_replica(saved) == _per_replica(here)
    if divided.is_global:
        # Every step has the next examples, so the same steps where it has as many.
        deals = joins = before == now
    at_once = divided.num_at_once
    if (
        not deals
        and (_per_replica(here) * here.num_replicas / _pipelines(here)) % at_once
    ):
        raise _refused(
            saved,
            f"shard() deals {at_once} examples at once, of which a step leaves some: "
            "shard before batch()",
        )
    changing = (() if deals else divided.after_dealing) + (
        () if joins else divided.after_joining
    )
    other = sorted({name for name in changing if name != division.REPEAT})
    if other:
        raise _refused(
            saved,
            f"{', '.join(other)} follows on {_dividing(divided)}, so that other "
            "examples than those that were read come first here: shuffle, filter and "
            "skip single examples before they are sharded and batched",
        )
    if changing and not _is_regular(saved, here, divided):
        raise _refused(
            saved,
            f"repeat() follows on {_dividing(divided)}, and the batches of a pass do "
            "not come out even: repeat examples before they are sharded and batched, "
            "or rewind with reinitialize()",
        )
    num_steps, rest = divmod(saved.num_steps * before, now)
    if rest and not divided.may_begin_smaller:
        raise CheckpointMismatchError(
            f"the checkpoint had read {saved.num_steps} steps of {before} examples, "
            f"which is not an integer number of steps of {now} examples; use a global "
            f"batch of {before}, or restore with inputs=None to restart the data"
        )
    return num_steps


def has_read_all(saved: Position, divided: Division) -> bool:
    """Whether the steps that were read have left no example of the pass over the data.

    The last of them may have been smaller, so they are no number of whole steps here.
    """
    if saved.is_at_end or saved.examples_per_step is None:
        return saved.is_at_end
    num_read, count = _num_of_pass(saved, divided)
    return divided.is_one_pass and count is not None and num_read >= count


def _per_replica(position: Position) -> float:
    assert position.examples_per_step is not None
    return position.examples_per_step / position.num_replicas


def _is_regular(saved: Position, here: Position, divided: Division) -> bool:
    """Whether passes over data that repeat after division have no smaller batches."""
    num_read, count = _num_of_pass(saved, divided)
    if count is None or num_read <= count:
        return count is not None
    return all(count % _unit(position, divided) == 0 for position in (saved, here))


def _num_of_pass(saved: Position, divided: Division) -> tuple[float, float | None]:
    """Examples of the steps that were read, if all are whole, and those of one pass."""
    assert saved.examples_per_step is not None
    num_read = saved.num_steps * saved.examples_per_step
    if divided.is_global or divided.is_sharded:
        return num_read, divided.num_dealt
    return num_read / _pipelines(saved), divided.num_joining  # each reads all of it


def _unit(position: Position, divided: Division) -> float:
    """Examples that the batches of a pass are made of."""
    assert position.examples_per_step is not None
    if divided.is_global:
        return position.examples_per_step
    return _per_replica(position) * (_pipelines(position) if divided.is_sharded else 1)


def _pipelines(position: Position) -> int:
    """Of the whole job."""
    return position.num_input_pipelines or position.num_pipelines


def _dividing(divided: Division) -> str:
    """What divides examples, as users write it."""
    if divided.is_global:
        return "split_global_batches()"
    return "shard() or batch()" if divided.is_sharded else "batch()"


def _refused(saved: Position, why: str) -> CheckpointMismatchError:
    return CheckpointMismatchError(
        f"the checkpoint had read {saved.num_steps} steps of {saved.num_replicas} "
        f"replicas, which cannot be found in these pipelines: {why}. Restore on as "
        "many replicas, workers and examples per batch as have saved it, or with "
        "inputs=None to restart the data"
    )
