"""Division: how pipelines divide examples into the batches of replicas.

A restore on other replicas has to know which examples were read. After S steps of G
examples those are the first S G, if every pipeline reads its share of them in order:
shards (``shard``, which deals examples to pipelines), then batches. This is read off
the transformations of ``tf.data``, before anything is changed or read. A transformation
after the examples were dealt or joined, such as ``shuffle``, makes other examples the
first ones, unless who deals and joins them is the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import data as _tf_data
from replicator.collectives import reductions
from replicator.core.topology import JobFacts
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


def of(inputs: InputIterator) -> Division:
    """How the pipelines of an iterator divide examples."""
    found = _merge(
        [
            of_dataset(pipeline)
            if isinstance(pipeline, tf.data.Dataset)
            else pipeline.division  # known since it was traced
            for pipeline in inputs.pipelines
        ]
    )
    is_here = all(isinstance(p, tf.data.Dataset) for p in inputs.pipelines)
    is_counted = found.is_global and found.num_dealt is not None
    divides = inputs.divides_steps and is_here and is_counted
    return dataclasses.replace(found, may_begin_smaller=divides)


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


def of_dataset(dataset: tf.data.Dataset) -> Division:
    """How one pipeline divides examples; without counts, if it is being traced."""
    split = reductions.global_batches_of(dataset)
    if split is not None:
        count = _count(split.dataset)
        return Division(joined=(split.share,), is_global=True, num_dealt=count)
    last = _tf_data.last_transformation(dataset)
    if not last.inputs:
        return Division()
    before = _merge([of_dataset(part) for part in last.inputs])
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


# ``CheckpointedBackend`` is the part of the backend contract that saves them.


class CheckpointedBackend(JobFacts):
    """State of a backend in addition to the users' variables.

    By default there is none: every variable exists once, and contains all state to
    save.
    """

    also_writes = False  # Whether this process writes checkpoints as the chief does.

    if TYPE_CHECKING:  # that of every replicator; see ``contract``

        def context(self) -> contextlib.AbstractContextManager[Any]:
            """The scope for creating variables."""

    def gather_bytes(self, payload: bytes) -> list[bytes]:
        """Gathers one byte string from every worker on all workers, by worker id.

        Also a barrier: no worker returns before all have called it.
        """
        return [payload]

    def local_state(self) -> list[LocalState]:
        """Variables whose copies differ, with the values of this process's replicas."""
        return []

    def restore_local_state(self, saved: Sequence[LocalState]) -> None:
        """Sets such variables to the values of all replicas of the job.

        Backends with copies set them if the number of replicas is the same. In any
        case the user's own variable becomes the value that it has outside steps.
        """
        for state in saved:
            values = [tf.constant(value) for value in state.values]
            state.variable.assign(combine(state.variable, state.kind, values))

    @contextlib.contextmanager
    def consolidated_state(self, variables: Sequence[Any]) -> Iterator[None]:
        """Inside it, variables contain the complete state that a checkpoint needs.

        Per-replica sums are replaced by their mean; state that other workers own is
        gathered on the chief. A collective: every worker calls it.

        Args:
          variables: The variables to save, in the same order on every worker.
        """
        del variables
        yield

    def restored(self, variables: Sequence[Any]) -> None:
        """Frees state that a checkpoint has restored for other workers.

        Args:
          variables: The restored variables.
        """
        del variables

    def check_alive(self) -> None:
        """Checks that all processes that the job depends on are alive.

        Raises:
          ClusterError: One is lost; the message names it.
        """
