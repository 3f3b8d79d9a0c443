"""Reading of stored examples: which ones a pipeline reads, their labels and ids.

Images stay encoded; ``pipeline.py`` makes batches of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tensorflow_datasets as tfds

import replicator
from workloads.data.sources import TRAIN_SPLIT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workloads.data.pipeline import PipelineConfig
    from workloads.data.sources import Examples, Source

# The random numbers of the order, of all those that are derived from one seed.
SHUFFLE_STREAM = 1
_NUM_IDS = 2**62
_FILES_READ_AT_ONCE = 16
_IDS_AT_ONCE = 1024
_LARGEST_SEED = 2**31 - 1


def shard(source: Examples, context: replicator.InputContext) -> Any:
    """Returns the shard of the training split that one pipeline reads.

    Shards are contiguous ranges whose sizes differ by at most one example. TFDS
    shuffled the examples when it wrote them, so each range is a random sample; a
    pipeline skips the other ranges instead of reading and dropping them.
    """
    total, count = source.num_train_examples, context.num_input_pipelines
    if count > total:
        raise ValueError(
            f"data {source.name!r} has {total} training examples for {count} input "
            "pipelines: every pipeline needs at least one; use fewer replicas or "
            "another data set"
        )
    start = context.input_pipeline_id * total // count
    stop = (context.input_pipeline_id + 1) * total // count
    return tfds.core.ReadInstruction(TRAIN_SPLIT, from_=start, to=stop, unit="abs")


def read_ids(source: Examples, split: Any) -> Iterator[int]:
    """Reads the ids of a split's examples once, without decoding all of them."""
    dataset = source.builder.as_dataset(
        split=split,
        decoders=tfds.decode.PartialDecoding({source.smallest_feature: True}),
        read_config=read_config(seed=0, num_threads=1),
    )
    # Many at once: bringing one element to Python takes longer than reading it.
    dataset = dataset.map(lambda example: with_id(example)["example_id"])
    dataset = dataset.batch(_IDS_AT_ONCE).with_options(options(1))
    return (found for ids in dataset.as_numpy_iterator() for found in ids.tolist())


def read(
    source: Source, split: Any, config: PipelineConfig, *, is_training: bool
) -> tf.data.Dataset:
    """Reads examples with their ids and checked labels, in the order of their files."""
    dataset = source.builder.as_dataset(
        split=split,
        shuffle_files=is_training,
        # Shuffles encoded bytes, not pixels, so the buffer stays small.
        decoders=tfds.decode.PartialDecoding(
            {"image": True, "label": True},
            decoders={"image": tfds.decode.SkipDecoding()},
        ),
        read_config=read_config(seed=config.seed, num_threads=config.num_threads),
    )
    dataset = map_in_order(dataset, with_id, config)
    return map_in_order(dataset, _check_label(source.num_classes), config)


def read_config(*, seed: int, num_threads: int) -> Any:
    """Returns how TFDS reads files: in an order of the seed, with ids of examples."""
    return tfds.ReadConfig(
        add_tfds_id=True,
        shuffle_seed=fold(seed, SHUFFLE_STREAM, 0),
        try_autocache=False,
        # A data set that is stored in order is shuffled here like any other.
        enable_ordering_guard=False,
        skip_prefetch=True,
        num_parallel_calls_for_decode=num_threads,
        interleave_cycle_length=_FILES_READ_AT_ONCE,
        num_parallel_calls_for_interleave_files=min(num_threads, _FILES_READ_AT_ONCE),
    )


def with_id(example: dict[str, Any]) -> dict[str, Any]:
    """Returns an example with ``example_id``, a stable hash of its TFDS id."""
    found = dict(example)
    name = found.pop("tfds_id")
    found["example_id"] = tf.strings.to_hash_bucket_fast(name, _NUM_IDS)
    if "label" in found:
        found["label"] = tf.cast(found["label"], tf.int32)
    return found


def _check_label(num_classes: int) -> Any:
    def check(example: dict[str, Any]) -> dict[str, Any]:
        label = example["label"]
        is_inside = (label >= 0) & (label < num_classes)
        text = tf.strings.join(
            ["label outside the classes: ", tf.strings.as_string(label)]
        )
        with tf.control_dependencies([tf.debugging.Assert(is_inside, [text])]):
            return {**example, "label": tf.identity(label)}

    return check


def map_in_order(
    dataset: tf.data.Dataset, fn: Any, config: PipelineConfig
) -> tf.data.Dataset:
    """Maps a function over elements with the pipeline's threads, in their order."""
    # One thread needs no parallel map, whose overhead exceeds the work on small images.
    if config.num_threads == 1:
        return dataset.map(fn)
    return dataset.map(fn, num_parallel_calls=config.num_threads, deterministic=True)


def options(num_threads: int) -> tf.data.Options:
    """Returns the options of a pipeline with threads of its own."""
    # The pipeline's own few threads keep it off the replicas' cores.
    return replicator.default_data_options(num_threads=num_threads)


def fold(seed: int, *parts: int) -> int:
    """Mixes a seed with stream numbers; a plain hash, the same in every process."""
    for part in parts:
        seed = (seed * 1_000_003 + part) & _LARGEST_SEED
    return seed
