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
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator._tf import data as _tf_data
from replicator._tf.workers import reason_of
from replicator.collectives import reductions
from replicator.core.validation import ReplicatorId
from replicator.errors import CheckpointError, CheckpointMismatchError
from replicator.inputs.batches import bounds
from replicator.variables.kinds import combine

if TYPE_CHECKING:
    from fractions import Fraction

    from replicator.inputs.iterator import InputIterator
    from replicator.variables.table import LocalState, VariableTable


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


@dataclasses.dataclass(kw_only=True, slots=True)
class Division:
    """How pipelines divide examples, as far as that is known."""

    # Sizes of the batches that an element consists of, the innermost first; None if
    # pipelines that are zipped differ.
    joined: tuple[int | Fraction, ...] | None = ()
    is_sharded: bool = False  # Whether examples are dealt to pipelines.
    num_at_once: int | Fraction = 1  # Examples that are dealt at once, to one pipeline.
    # Whether it is the work of ``split_global_batches``: every step then has the next
    # examples, whatever the replicas.
    is_global: bool = False
    # Transformations that follow on examples that were dealt, or joined.
    after_dealing: tuple[str, ...] = ()
    after_joining: tuple[str, ...] = ()
    # Examples in one pass over what is dealt, and of one pipeline over what is joined;
    # None if not known.
    num_dealt: float | None = None
    num_joining: float | None = None

    @property
    def num_joined(self) -> int | Fraction:
        """Examples of an element, as far as batches have joined them."""
        return math.prod(self.joined or ())


def division_of_dataset(dataset: tf.data.Dataset) -> Division:
    """How one pipeline divides examples; without counts, if it is being traced."""
    split = reductions.GLOBAL_BATCHES.get(dataset)
    if split is not None:
        count = _count(split.dataset)
        return Division(joined=(split.share,), is_global=True, num_dealt=count)
    last = _tf_data.last_transformation(dataset)
    if not last.inputs:
        return Division()
    found = _merge([division_of_dataset(part) for part in last.inputs])
    _follow(found, last)
    return found


def _follow(found: Division, last: _tf_data.Transformation) -> None:
    """Adds what a transformation does to examples that are divided so."""
    if last.name == "Batch":
        if found.joined is None or last.num_joined is None:
            found.joined = None  # drawn, or read, while it runs
            return
        if not found.joined:
            found.num_joining = _count(last.inputs[0])
        found.joined += (last.num_joined,)
    elif last.name == "Unbatch" and found.joined and not found.is_global:
        found.joined = found.joined[:-1]
        if not found.joined:
            found.after_joining, found.num_joining = (), None
    elif last.name == "Shard":
        if not found.is_sharded:
            found.is_sharded, found.num_at_once = True, found.num_joined
            count = _count(last.inputs[0])
            found.num_dealt = None if count is None else count * found.num_joined
    elif last.name not in _IN_ORDER:  # it may change the order, or what elements are
        is_dealt = found.is_sharded or found.is_global
        found.after_dealing += (last.name,) * is_dealt
        found.after_joining += (last.name,) * (found.joined != ())
        if last.name not in _OF_ELEMENTS:
            found.is_sharded, found.is_global = is_dealt, False
            found.joined, found.after_joining, found.num_joining = (), (), None


def _merge(parts: Sequence[Division]) -> Division:
    """What several pipelines that are read together have in common."""
    # What is zipped to batches may be numbers, as those of ``enumerate``.
    sizes = {part.joined for part in parts} - {()}
    dealt = [part.num_dealt for part in parts if part.num_dealt is not None]
    joining = [part.num_joining for part in parts if part.num_joining is not None]
    return Division(
        joined=None if len(sizes) > 1 else (*sizes, ())[0],
        is_sharded=any(part.is_sharded for part in parts),
        num_at_once=max(part.num_at_once for part in parts),
        is_global=any(part.is_global for part in parts),
        after_dealing=tuple(name for part in parts for name in part.after_dealing),
        after_joining=tuple(name for part in parts for name in part.after_joining),
        num_dealt=dealt[0] if dealt else None,
        num_joining=joining[0] if joining else None,
    )


def _count(dataset: tf.data.Dataset) -> float | None:
    if not tf.executing_eagerly():
        return None
    count = _tf_data.cardinality(dataset)
    if count == tf.data.INFINITE_CARDINALITY:
        return math.inf
    return None if count == tf.data.UNKNOWN_CARDINALITY else count


def _division_of(inputs: InputIterator) -> Division:
    # A pipeline on another worker is known since it was traced.
    return _merge(
        [
            division_of_dataset(p) if isinstance(p, tf.data.Dataset) else p.division
            for p in inputs.pipelines
        ]
    )


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
    num_input_pipelines: int  # Pipelines of the whole job.
    # Whether a pipeline, read again, has another order.
    is_shuffled_at_random: bool = False


def current(inputs: InputIterator, num_replicas: int, num_workers: int) -> Position:
    """Reads the position of inputs."""
    division = _division_of(inputs)
    size: Any = division.num_joined  # examples of a whole batch of one replica
    if not division.joined:
        shapes = [leaf.shape for leaf in tf.nest.flatten(inputs.element_spec)]
        is_known = bool(shapes) and shapes[0].rank is not None
        size = (*shapes[0], 1)[0] if is_known else None
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


class Continuation:
    """How inputs go on from a saved position; made only where they can."""

    def __init__(
        self,
        inputs: InputIterator,
        saved: Position,
        here: Position,
        states: Sequence[Sequence[bytes]] | None,  # what ``serialize`` returned there
        reason: str,  # why that is None
    ) -> None:
        self._inputs, self._saved, self._here = inputs, saved, here
        self._division = _division_of(inputs)
        sizes = {saved.examples_per_step, here.examples_per_step} - {None}
        layouts = {
            (each.num_pipelines, each.num_replicas, each.num_workers)
            for each in (saved, here)
        }
        # Whether the iterators of every worker read the same elements.
        self._is_same = len(layouts) == 1 and len(sizes) <= 1
        self._is_at_end = self._has_read_all()
        self._num_steps = self._find_steps()
        self._states = None
        if self._is_same and not inputs.stateless_reason:
            self._states = states
        # States count elements of one pipeline each. Dealt to other pipelines or
        # replicas, the same examples are other elements; what stays is how many
        # examples all have read.
        self._why = inputs.stateless_reason or reason
        if not self._is_same:
            self._why = "the topology or the size of batches has changed"
        skips = self._states is None and self._num_steps and not self._is_at_end
        if skips and (saved.is_shuffled_at_random or here.is_shuffled_at_random):
            raise CheckpointMismatchError(
                "the checkpoint's inputs cannot continue in the middle of an epoch: "
                f"the steps that were read have to be skipped ({self._why}), but "
                "shuffle() without a seed draws another order each time, so that "
                "examples would be repeated and lost; train with "
                "shuffle(..., seed=...), or restore with inputs=None to restart the "
                "data"
            )

    def start(self) -> str:
        """Moves the inputs there, and says how."""
        inputs, saved = self._inputs, self._saved
        start = functools.partial(inputs.start, num_rewinds=saved.num_rewinds)
        if self._states is None:
            start(self._num_steps, to_end=self._is_at_end, drops=self._drops())
            return (
                f"by skipping the {self._num_steps} steps that were read ({self._why})"
            )
        if saved.is_at_end:  # a skip to the end has no number to repeat it by
            start(saved.num_steps, to_end=True)
            return "exact, at the end of the data"
        # A state fits the dataset that it was saved of, and a skip is part of that.
        start(saved.num_skipped)
        try:
            for iterator, state in zip(inputs.iterators, self._states, strict=True):
                _tf_data.deserialize_iterator(iterator, state)
        except tf.errors.OpError as error:
            raise CheckpointError(
                "the state of the input iterators does not fit these pipelines "
                f"({reason_of(error)}): the input function builds another dataset "
                "than when it was saved; restore with inputs=None to restart the data"
            ) from error
        inputs.num_steps = saved.num_steps
        return "exact, from the state of the iterators"

    @property
    def _may_begin_smaller(self) -> bool:
        """Whether the first step here may be a rest of one, as examples are counted."""
        inputs, division = self._inputs, self._division
        is_counted = division.is_global and division.num_dealt is not None
        is_here = all(isinstance(p, tf.data.Dataset) for p in inputs.pipelines)
        return inputs.divides_steps and is_here and is_counted

    def _drops(self) -> list[int]:
        """Examples of the next step that were read, by replica."""
        if not self._may_begin_smaller or self._is_at_end:
            return []
        now, here = self._here.examples_per_step or 0, self._inputs
        begun = self._num_steps * now
        num_read = self._saved.num_steps * (self._saved.examples_per_step or 0) - begun
        if not num_read:
            return []
        size = int(min(now, (self._division.num_dealt or 0) - begun))
        first, count = here.first_replica_id, self._here.num_replicas
        shares = [bounds(size, first + r, count) for r in range(here.num_replicas)]
        return [min(max(num_read - start, 0), stop - start) for start, stop in shares]

    def _find_steps(self) -> int:
        """The saved position in steps of these inputs."""
        # Every worker gets the same result: it follows from what is the same on all.
        saved, here, division = self._saved, self._here, self._division
        if not saved.num_steps or self._is_same or self._is_at_end:
            return saved.num_steps
        before, now = saved.examples_per_step, here.examples_per_step
        deals = saved.num_input_pipelines == here.num_input_pipelines
        if deals and saved.num_replicas == here.num_replicas and before == now:
            return saved.num_steps  # other workers have the same pipelines
        if before is None or now is None:
            what = (
                "checkpoint does not say" if before is None else "pipelines do not say"
            )
            raise self._refused(
                f"the {what} how many examples a step has: batches of other sizes than "
                "that of batch(), or from a generator"
            )
        joins = before * here.num_replicas == now * saved.num_replicas
        if division.is_global:
            # Every step has the next examples, so the same steps where it has as many.
            deals = joins = before == now
        at_once = division.num_at_once
        if not deals and now / here.num_input_pipelines % at_once:
            raise self._refused(
                f"shard() deals {at_once} examples at once, of which a step leaves "
                "some: shard before batch()"
            )
        dividing = "shard() or batch()" if division.is_sharded else "batch()"
        if division.is_global:
            dividing = "split_global_batches()"
        changing = {
            *(() if deals else division.after_dealing),
            *(() if joins else division.after_joining),
        }
        if other := sorted(changing - {REPEAT}):
            raise self._refused(
                f"{', '.join(other)} follows on {dividing}, so that other examples "
                "than those that were read come first here: shuffle, filter and skip "
                "single examples before they are sharded and batched"
            )
        if changing and not self._is_regular():
            raise self._refused(
                f"repeat() follows on {dividing}, and the batches of a pass do not "
                "come out even: repeat examples before they are sharded and batched, "
                "or rewind with reinitialize()"
            )
        num_steps, rest = divmod(saved.num_steps * before, now)
        if rest and not self._may_begin_smaller:
            raise CheckpointMismatchError(
                f"the checkpoint had read {saved.num_steps} steps of {before} "
                f"examples, which is not an integer number of steps of {now} examples; "
                f"use a global batch of {before}, or restore with inputs=None to "
                "restart the data"
            )
        return num_steps

    def _has_read_all(self) -> bool:
        """Whether the steps that were read have left no example of the pass."""
        # The last of them may have been smaller, so they are no number of whole steps.
        if self._saved.is_at_end or self._saved.examples_per_step is None:
            return self._saved.is_at_end
        division = self._division
        follows = division.after_dealing + division.after_joining
        num_read, count = self._num_of_pass()
        is_one_pass = _OF_ONE_PASS.issuperset(follows)
        return is_one_pass and count is not None and num_read >= count

    def _num_of_pass(self) -> tuple[float, float | None]:
        """Examples of the steps that were read, if all are whole, and of one pass."""
        saved, division = self._saved, self._division
        num_read = saved.num_steps * (saved.examples_per_step or 0)
        if division.is_global or division.is_sharded:
            return num_read, division.num_dealt
        # Each pipeline reads all of it.
        return num_read / saved.num_input_pipelines, division.num_joining

    def _is_regular(self) -> bool:
        """Whether passes over data that repeat after division have no smaller batch."""
        num_read, count = self._num_of_pass()
        if count is None or num_read <= count:
            return count is not None
        for each in (self._saved, self._here):
            unit: float = each.examples_per_step or 0  # that batches of a pass fill
            if not self._division.is_global:
                unit /= each.num_replicas
                unit *= each.num_input_pipelines if self._division.is_sharded else 1
            if count % unit:
                return False
        return True

    def _refused(self, why: str) -> CheckpointMismatchError:
        saved = self._saved
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
    _table: VariableTable | None = None  # Of variables that replicas have copies of.

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
        return [] if self._table is None else self._table.local_state()

    def restore_local_state(self, saved: Sequence[LocalState]) -> None:
        """Sets such variables to what the values of all replicas are outside steps.

        Backends with copies set those too if the number of replicas is the same.
        """
        for state in saved:
            values = [tf.constant(value) for value in state.values]
            state.variable.assign(combine(state, values))
        if self._table is not None:
            self._table.restore(saved)

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
