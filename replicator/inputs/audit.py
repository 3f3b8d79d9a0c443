"""Input audit: does every example reach a replica exactly once in an epoch?"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from replicator._tf import data as _tf_data
from replicator.core import validation
from replicator.core.validation import INT64_MAX, format_value, is_integer
from replicator.errors import InputAuditError
from replicator.inputs.batches import can_fill
from replicator.inputs.iterator import to_pipeline

if TYPE_CHECKING:
    from replicator.inputs.context import InputContext, InputFn

NUM_SHOWN = 5
_NO_SHARES = (
    "give each pipeline its own shard with dataset.shard(ctx.num_input_pipelines, "
    "ctx.input_pipeline_id) before batch(), and leave out repeat()"
)
_CHECK_SHARES = ": check shard() and take(), and use batch(..., drop_remainder=False)"
_SHUFFLE_APART = (
    "each pipeline shuffles all examples in an order of its own and then takes its "
    "share, so that shares overlap: write shuffle(..., seed=...) with the same seed in "
    "all pipelines, or shard() before shuffle()"
)
_MAX_PASSES = 3  # a pipeline that yields an example this often is endless


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class InputAudit:
    """What one epoch of all input pipelines fed to all replicas.

    Attributes:
      num_replicas: Replicas that were fed.
      num_pipelines: Calls of the input function.
      num_batches: Batches that each pipeline yielded.
      num_steps: Steps that ``run`` takes: those for which every replica had a batch,
        and all others where what is left for a step is divided.
      num_examples: Distinct examples, as passed or as yielded by the pipelines.
      num_fed: Distinct examples that a step consumed.
      num_missing: Examples that no step consumed, including ``unfed``.
      repeated: Key and pipelines of the examples that were fed more than once.
      unfed: Key and pipelines of examples that were read, but belong to a step for
        which another replica had no batch: ``run`` ends before such a step.
    """

    num_replicas: int
    num_pipelines: int
    num_batches: tuple[int, ...]
    num_steps: int
    num_examples: int
    num_fed: int
    num_missing: int
    repeated: dict[Hashable, tuple[int, ...]]
    unfed: dict[Hashable, tuple[int, ...]]

    @property
    def is_exact(self) -> bool:
        """Whether every example was fed exactly once."""
        return not self.num_missing and not self.repeated

    def __str__(self) -> str:
        """One line with the counts."""
        pipelines = f"{self.num_pipelines} pipeline" + "s" * (self.num_pipelines != 1)
        return (
            f"{self.num_steps} steps over {self.num_replicas} replicas from {pipelines}"
            f": {self.num_fed} of {self.num_examples} examples fed, "
            f"{self.num_missing} missing, {len(self.repeated)} repeated"
        )


def audit(
    input_fn: InputFn,
    contexts: Sequence[InputContext],
    num_replicas: int,
    *,
    key_fn: Callable[[Any], Any],
    num_examples: int | None = None,
    divides: bool = True,
) -> InputAudit:
    """Reads one epoch of every pipeline of the whole job and counts its examples.

    See ``Replicator.audit_inputs``. ``contexts`` has one context per pipeline;
    pipeline p feeds the p-th equal share of the replicas, round-robin. ``divides`` says
    whether the backend divides what is left for the last step.
    """
    validation.check_takes_one(key_fn, "audit_inputs", "key_fn", "a batch")
    if num_examples is not None and not is_integer(
        num_examples, least=0, most=INT64_MAX
    ):
        raise ValueError(
            f"num_examples {format_value(num_examples)} must be an integer of at least "
            "0 (the size of the data set), or None to count the examples that are read"
        )
    pipelines = [to_pipeline(input_fn(context)) for context in contexts]
    num_in_turn = num_replicas // len(pipelines)
    batches = [
        list(_keys_of(dataset, key_fn, index))
        for index, dataset in enumerate(pipelines)
    ]
    if divides and all(can_fill(p.element_spec) for p in pipelines):
        num_steps = max(-(-len(keys) // num_in_turn) for keys in batches)
    else:
        num_steps = min(len(keys) // num_in_turn for keys in batches)
    fed: dict[Hashable, list[int]] = collections.defaultdict(list)
    rest: dict[Hashable, list[int]] = collections.defaultdict(list)
    for index, of_pipeline in enumerate(batches):
        for position, keys in enumerate(of_pipeline):
            seen = fed if position < num_steps * num_in_turn else rest
            for key in keys:
                seen[key].append(index)
    unfed = {key: tuple(who) for key, who in rest.items() if key not in fed}
    if num_examples is None:
        num_examples = len(fed) + len(unfed)
    result = InputAudit(
        num_replicas=num_replicas,
        num_pipelines=len(pipelines),
        num_batches=tuple(map(len, batches)),
        num_steps=num_steps,
        num_examples=num_examples,
        num_fed=len(fed),
        num_missing=num_examples - len(fed),
        repeated={key: tuple(who) for key, who in fed.items() if len(who) > 1},
        unfed=unfed,
    )
    if not result.is_exact:
        shares = [set(itertools.chain(*keys)) for keys in batches]
        pairs = itertools.combinations(shares, 2)
        overlap = any(one != other and one & other for one, other in pairs)
        apart = overlap and _tf_data.shuffle_apart(pipelines)
        raise InputAuditError(_explain(result, shuffle_apart=apart), result)
    return result


def _keys_of(
    dataset: tf.data.Dataset, key_fn: Callable[[Any], Any], index: int
) -> Iterator[list[Hashable]]:
    """Yields the keys of each batch of a pipeline; rejects an endless pipeline."""
    passes: collections.Counter[Hashable] = collections.Counter()
    endless = (
        f"input pipeline {index} is endless, so there is no epoch to audit; leave out "
        ".repeat() for the audit"
    )
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise InputAuditError(endless)
    for batch in dataset:
        keys = np.asarray(key_fn(batch))
        if keys.ndim != 1:
            raise InputAuditError(
                f"key_fn returned shape {list(keys.shape)} for a batch, but it must "
                "return one key per example: shape [examples]; for example "
                "lambda batch: batch['id']"
            )
        listed = keys.tolist()
        passes.update(listed)
        if any(passes[key] >= _MAX_PASSES for key in listed) and (
            min(passes.values()) > 1
        ):
            raise InputAuditError(endless)
        yield listed


def _explain(result: InputAudit, *, shuffle_apart: bool) -> str:
    """Says what is wrong with an epoch and how to fix it."""
    parts = [f"input audit: {result}"]
    if result.repeated:
        key, who = next(iter(result.repeated.items()))
        readers = ", ".join(map(str, sorted(set(who))))
        parts.append(
            f"{_some(result.repeated)} were fed more than once (example {key!r} from "
            f"pipelines {readers}): {_SHUFFLE_APART if shuffle_apart else _NO_SHARES}"
        )
    num_unread = result.num_missing - len(result.unfed)
    if result.unfed:
        counts = ", ".join(map(str, result.num_batches))
        parts.append(
            f"{_some(result.unfed)} were read, but not every replica had a batch for "
            f"step {result.num_steps + 1} (pipelines yielded {counts} batches), so "
            "run() ends the epoch before it: leave out drop_remainder=True, or build "
            "the batches with replicator.split_global_batches(dataset, ctx, "
            "global_batch_size)"
        )
    if num_unread > 0:
        parts.append(
            f"no pipeline read {num_unread}" + ("" if shuffle_apart else _CHECK_SHARES)
        )
    if result.num_missing < 0:
        parts.append(
            f"num_examples={result.num_examples!r} is less than the pipelines yielded"
        )
    return "; ".join(parts)


def _some(examples: dict[Hashable, tuple[int, ...]]) -> str:
    shown = ", ".join(repr(key) for key in list(examples)[:NUM_SHOWN])
    return f"{len(examples)} ({shown}{', ...' if len(examples) > NUM_SHOWN else ''})"
