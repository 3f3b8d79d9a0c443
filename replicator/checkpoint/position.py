"""Position: how far the input pipelines were read, and how to restore it.

A restore on other replicas has to know which examples were read. After S steps of G
examples those are the first S G, if every pipeline reads its share of them in order:
shards (``shard``, which deals examples to pipelines), then batches. That is read off
the transformations of ``tf.data``, before anything is changed. One that follows after
the examples were dealt or joined, such as ``shuffle``, makes other examples the first
ones, unless who deals and joins them is the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import data as _tf_data
from replicator._tf.workers import reason_of
from replicator.collectives import reductions
from replicator.core.validation import ReplicatorId
from replicator.errors import CheckpointError, CheckpointMismatchError
from replicator.inputs.context import bounds
from replicator.variables.values import combine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from fractions import Fraction

    from replicator._tf.data import Transformation
    from replicator.inputs.iterator import InputIterator
    from replicator.variables.table import LocalState


REPEAT = "Repeat"
# These keep what an element consists of, and the order.
_IN_ORDER = {
    "AssertCardinality",
    "Cache",
    "DenseToRagged",
    "Map",
    "Options",
    "Prefetch",
    "Restructured",
    "Take",
    "Zip",
}
# These keep what an element consists of. After all others it is something else.
_OF_ONE_PASS = {"Filter", "Shuffle", "Skip"}
_OF_ELEMENTS = {REPEAT, *_OF_ONE_PASS}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Division:
    """What is known of one pipeline."""

    # Sizes of the batches that an element consists of, the innermost first; None if
    # pipelines that are zipped differ.
    joined: tuple[int | Fraction, ...] | None = ()
    is_sharded: bool = False  # Whether examples are dealt to pipelines.
    num_at_once: int | Fraction = 1  # Examples that are dealt at once, to one pipeline.
    # Whether it is the work of ``split_global_batches``: every step then has the next
    # examples, whatever the replicas.
    is_global: bool = False
    # Whether the first step here may be a rest of one, as its examples are counted.
    may_begin_smaller: bool = False
    # Transformations that follow on examples that were dealt.
    after_dealing: tuple[str, ...] = ()
    # Those that follow on examples that were joined.
    after_joining: tuple[str, ...] = ()
    # Examples in one pass over what is dealt; None if not known.
    num_dealt: float | None = None
    # Examples in one pass of a pipeline over what is joined.
    num_joining: float | None = None

    @property
    def num_joined(self) -> int | Fraction:
        """Examples of an element, as far as batches have joined them."""
        return math.prod(self.joined or ())

    @property
    def is_one_pass(self) -> bool:
        """Whether examples are read in a single pass over what is divided."""
        return _OF_ONE_PASS.issuperset(self.after_dealing + self.after_joining)


def division_of(inputs: InputIterator) -> Division:
    """How the pipelines of an iterator divide examples."""
    division = _merge(
        [
            division_of_dataset(pipeline)
            if isinstance(pipeline, tf.data.Dataset)
            else pipeline.division  # known since it was traced
            for pipeline in inputs.pipelines
        ]
    )
    is_here = all(isinstance(p, tf.data.Dataset) for p in inputs.pipelines)
    is_counted = division.is_global and division.num_dealt is not None
    divides = inputs.divides_steps and is_here and is_counted
    return dataclasses.replace(division, may_begin_smaller=divides)


def examples_per_element(
    division: Division, element_spec: Any
) -> int | Fraction | None:
    """Examples of a whole batch of one replica, or None if that is not known."""
    if division.joined:
        return division.num_joined
    leaves: list[Any] = tf.nest.flatten(element_spec)
    if not leaves or leaves[0].shape.rank is None:
        return None
    if leaves[0].shape.rank == 0:
        return 1
    size = leaves[0].shape[0]
    return None if size is None else int(size)


def division_of_dataset(dataset: tf.data.Dataset) -> Division:
    """How one pipeline divides examples; without counts, if it is being traced."""
    split = reductions.global_batches_of(dataset)
    if split is not None:
        count = _count(split.dataset)
        return Division(joined=(split.share,), is_global=True, num_dealt=count)
    last = _tf_data.last_transformation(dataset)
    if not last.inputs:
        return Division()
    before = _merge([division_of_dataset(part) for part in last.inputs])
    change = _CHANGES.get(last.name, _other)
    return before if last.name in _IN_ORDER else change(before, last)


def _join(before: Division, last: Transformation) -> Division:
    if before.joined is None:
        return before
    if last.num_joined is None:  # drawn, or read, while it runs
        return dataclasses.replace(before, joined=None)
    is_first = not before.joined
    return dataclasses.replace(
        before,
        joined=(*before.joined, last.num_joined),
        num_joining=_count(last.inputs[0]) if is_first else before.num_joining,
    )


def _take_apart(before: Division, last: Transformation) -> Division:
    if before.is_global or not before.joined:
        return _other(before, last)
    rest = before.joined[:-1]
    return dataclasses.replace(
        before,
        joined=rest,
        after_joining=before.after_joining if rest else (),
        num_joining=before.num_joining if rest else None,
    )


def _deal(before: Division, last: Transformation) -> Division:
    if before.is_sharded:
        return before
    count = _count(last.inputs[0])
    return dataclasses.replace(
        before,
        is_sharded=True,
        num_at_once=before.num_joined,
        num_dealt=None if count is None else count * before.num_joined,
    )


def _other(before: Division, last: Transformation) -> Division:
    """Adds what may change the order, or what an element consists of."""
    is_sharded = before.is_sharded or before.is_global
    is_joined = before.joined != ()
    changed = dataclasses.replace(
        before,
        after_dealing=before.after_dealing + (last.name,) * is_sharded,
        after_joining=before.after_joining + (last.name,) * is_joined,
    )
    if last.name in _OF_ELEMENTS:
        return changed
    return dataclasses.replace(
        changed,
        joined=(),
        is_sharded=is_sharded,
        is_global=False,
        after_joining=(),
        num_joining=None,
    )


_CHANGES = {"Batch": _join, "Shard": _deal, "Unbatch": _take_apart}


def _merge(parts: Sequence[Division]) -> Division:
    """What several pipelines that are read together have in common."""
    first, *others = parts
    for other in others:
        # What is zipped to batches may be numbers, as those of ``enumerate``.
        sizes = {first.joined, other.joined} - {()}
        first = Division(
            joined=sizes.pop() if len(sizes) == 1 else (None if sizes else ()),
            is_sharded=first.is_sharded or other.is_sharded,
            num_at_once=max(first.num_at_once, other.num_at_once),
            is_global=first.is_global or other.is_global,
            after_dealing=first.after_dealing + other.after_dealing,
            after_joining=first.after_joining + other.after_joining,
            num_dealt=first.num_dealt or other.num_dealt,
            num_joining=first.num_joining or other.num_joining,
        )
    return first


def _count(dataset: tf.data.Dataset) -> float | None:
    if not tf.executing_eagerly():
        return None
    count = _tf_data.cardinality(dataset)
    if count == tf.data.INFINITE_CARDINALITY:
        return float("inf")
    return None if count == tf.data.UNKNOWN_CARDINALITY else count


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
    size = examples_per_element(division_of(inputs), inputs.element_spec)
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
    divided = division_of(inputs)
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
        first = inputs.first_replica_id
        for replica in range(first, first + inputs.num_replicas) if num_read else ():
            start, stop = bounds(int(size), replica, here.num_replicas)
            drops.append(min(max(num_read - start, 0), stop - start))
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
    other = sorted({name for name in changing if name != REPEAT})
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


class Job:
    """The job of a ``Replicator``, and its state in addition to the users' variables.

    By default there is none: every variable exists once, with all state to save.
    """

    num_replicas: int
    first_replica_id: int = 0
    num_workers: int = 1
    worker_id: int = 0
    logical_devices_per_replica: int = 1
    without_communication: bool = False
    _wraps_alike: bool = True
    also_writes = False  # Whether this process writes checkpoints as the chief does.

    @functools.cached_property
    def replicator_id(self) -> ReplicatorId:
        """What the optimizers, inputs and values of this replicator carry."""
        return ReplicatorId(
            name=type(self).__name__,
            num_replicas=self.num_replicas,
            wraps_alike=self._wraps_alike and not self.without_communication,
        )

    @property
    def num_local_replicas(self) -> int:
        """Replicas that this process runs."""
        return self.num_replicas

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas whose updates are aggregated each step."""
        return self.num_replicas

    @property
    def num_programs(self) -> int:
        """Processes that run the user's program, without workers that only serve."""
        return self.num_workers

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the job's checkpoints and logs."""
        return self.worker_id == 0

    if TYPE_CHECKING:

        def context(self) -> contextlib.AbstractContextManager[Any]:
            """The scope for creating variables, which every replicator has."""

    def gather_bytes(self, payload: bytes) -> list[bytes]:
        """Gathers a byte string of every worker on all, by worker id; a barrier."""
        return [payload]

    def local_state(self) -> list[LocalState]:
        """Variables whose copies differ, with the values of this process's replicas."""
        return []

    def restore_local_state(self, saved: Sequence[LocalState]) -> None:
        """Sets such variables to what the values of all replicas are outside steps.

        Backends with copies set those too if the number of replicas is the same.
        """
        for state in saved:
            values = [tf.constant(value) for value in state.values]
            state.variable.assign(combine(state.variable, state.kind, values))

    @contextlib.contextmanager
    def consolidated_state(self, variables: Sequence[Any]) -> Iterator[None]:
        """Inside it, variables to save contain all state that a checkpoint needs.

        Per-replica sums are replaced by their mean; state that other workers own is
        gathered on the chief. Every worker calls it, with variables in the same order.
        """
        del variables
        yield

    def restored(self, variables: Sequence[Any]) -> None:
        """Frees state of restored variables that belongs to other workers."""
        del variables

    def check_alive(self) -> None:
        """Checks that all processes that the job depends on are alive.

        Raises:
          ClusterError: One is lost; the message names it.
        """
