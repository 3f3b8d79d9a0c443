"""Checks that replicas are fed each training example exactly once per epoch."""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Any

from workloads.data import sources
from workloads.data.sources import TRAIN_SPLIT
from workloads.spec import SanityCheck

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import replicator
    from workloads.data.sources import Examples

CONSUMED = "no_example_twice_in_an_epoch"
"""Name of the check of the examples that steps consumed."""

_MOST_IDS_READ = 100_000


def check_shards(
    source: Examples, contexts: Sequence[replicator.InputContext]
) -> SanityCheck:
    """Checks that the pipelines' shards cover the training split exactly once.

    Reads the ids of one epoch over all pipelines (no image is decoded). A split of more
    than 100,000 examples is checked only by its ranges, and the detail says so.
    """
    name = "each_training_example_once_per_epoch"
    contexts = [*contexts]
    num_pipelines = contexts[0].num_input_pipelines
    if len(contexts) < num_pipelines:  # others are in other processes of the job
        own_ids = {context.input_pipeline_id for context in contexts}
        contexts += [
            dataclasses.replace(contexts[0], input_pipeline_id=index)
            for index in sorted(set(range(num_pipelines)) - own_ids)
        ]
    shards = [sources.shard(source, context) for context in contexts]
    if source.num_train_examples > _MOST_IDS_READ:
        return _check_ranges(name, source, shards)
    expected = collections.Counter(sources.read_ids(source, TRAIN_SPLIT))
    found: collections.Counter[int] = collections.Counter()
    for shard in shards:
        found.update(sources.read_ids(source, shard))
    missing = sum((expected - found).values())
    surplus = sum((found - expected).values())
    total = source.num_train_examples
    detail = (
        f"{len(contexts)} input pipelines read {found.total()} ids in one epoch of "
        f"{total} examples: {missing} missing, {surplus} read more than once"
    )
    is_passed = not missing and not surplus and expected.total() == total
    return SanityCheck(name=name, is_passed=is_passed, detail=detail)


def check_consumed(
    steps: Iterable[tuple[int, Sequence[int]]], *, first_epoch_size: int
) -> SanityCheck:
    """Checks that no example reached two replicas, or two steps, within an epoch."""
    seen: set[int] = set()
    num_ids = num_repeated = num_steps = num_looked_at = 0
    for num_consumed, ids in steps:
        num_steps += 1
        if num_consumed > first_epoch_size:
            continue
        num_looked_at += 1
        num_ids += len(ids)
        num_repeated += len(ids) - len(set(ids) - seen)
        seen.update(ids)
    return SanityCheck(
        name=CONSUMED,
        is_passed=num_steps > 0 and num_repeated == 0,
        detail=(
            f"{num_ids} examples in {num_looked_at} steps of the first epoch "
            f"({num_steps} recorded), {num_repeated} of them seen before in it"
        ),
    )


def _check_ranges(name: str, source: Examples, shards: Sequence[Any]) -> SanityCheck:
    splits = source.builder.info.splits
    total = source.num_train_examples
    ranges = sorted(
        # TFDS writes None for the ends of a split.
        (part.from_ or 0, total if part.to is None else part.to)
        for instruction in shards
        for part in instruction.to_absolute(splits)
    )
    reached = 0
    for start, stop in ranges:
        if start != reached:
            break
        reached = stop
    return SanityCheck(
        name=name,
        is_passed=reached == total,
        detail=(
            f"{len(ranges)} ranges cover {reached} of {total} examples without gap or "
            "overlap (ranges checked, ids not read: the split is large)"
        ),
    )
