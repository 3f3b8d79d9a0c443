"""Opens data sets: prepares the embedded one, finds the others, reads all with TFDS."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tensorflow_datasets as tfds

import replicator
from workloads.data import builders, names

if TYPE_CHECKING:
    from collections.abc import Iterator

TRAIN_SPLIT = names.TRAIN_SPLIT
# The message of the pipeline; see ``images.py``.
_OUTSIDE = re.compile(r"label outside the classes: (?P<label>-?\d+)")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Examples:
    """A prepared data set."""

    name: str  # The name it was opened by.
    builder: Any  # The TFDS builder that reads it.
    evaluation_split: str  # Name of the held-out split.
    smallest_feature: str  # What is read of an example whose id is looked at.

    @property
    def num_train_examples(self) -> int:
        """Examples of the training split."""
        return int(self.builder.info.splits[TRAIN_SPLIT].num_examples)

    @property
    def num_evaluation_examples(self) -> int:
        """Examples of the held-out split."""
        return int(self.builder.info.splits[self.evaluation_split].num_examples)

    def explain(self, error: Exception) -> str | None:  # noqa: ARG002 - of subclasses
        """Describes how the data made a step fail, in one line; None otherwise."""
        return None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Source(Examples):
    """A prepared data set of labelled images."""

    smallest_feature: str = "label"

    @property
    def num_classes(self) -> int:
        """Distinct labels."""
        return int(self.builder.info.features["label"].num_classes)

    @property
    def encoding(self) -> str | None:
        """How images are stored: ``png``, ``jpeg``, or None if that varies."""
        image = self.builder.info.features["image"]
        encoding: str | None = image._encoding_format  # noqa: SLF001 - no public reader
        return encoding

    @property
    def image_shape(self) -> tuple[int | None, ...]:
        """Stored height, width and channels; None where images differ."""
        return tuple(self.builder.info.features["image"].shape)

    def explain(self, error: Exception) -> str | None:
        """Describes in one line how the data made a step fail; see ``Examples``."""
        outside = _OUTSIDE.search(str(error))
        if outside:
            return (
                f"data {self.name!r} has an example with label {outside['label']}, "
                f"which is outside its {self.num_classes} classes (0 to "
                f"{self.num_classes - 1}): fix its labels, or use another data set"
            )
        find = getattr(self.builder, "find_unreadable", None)
        path = find() if find is not None else None
        if path is None:
            return None
        return (
            f"data {self.name!r}: file {path!r} cannot be decoded as an image: replace "
            "or remove it"
        )


def open_source(name: str) -> Source:
    """Opens a data set by name; the embedded digits are prepared on first use."""
    if names.is_folder(name):
        builder = builders.FolderBuilder(*names.read_folder(name))
    elif name == names.DIGITS:
        builder = tfds.builder_from_directory(builders.prepare(builders.Digits))
    else:
        builder = tfds.builder_from_directory(names.find_prepared(name))
    splits = builder.info.splits
    # The first that exists is used; the test labels of ImageNet are not public.
    held_out = next((s for s in names.EVALUATION_SPLITS if s in splits), None)
    if TRAIN_SPLIT not in splits or held_out is None:
        raise ValueError(
            f"data {name!r} has the splits {sorted(splits)}, but training needs "
            f"{TRAIN_SPLIT!r} and evaluation one of {list(names.EVALUATION_SPLITS)}"
        )
    return Source(name=name, builder=builder, evaluation_split=held_out)


# The random numbers of the order, of all those that are derived from one seed.
SHUFFLE_STREAM = 1
_NUM_IDS = 2**62
_FILES_READ_AT_ONCE = 16
_IDS_AT_ONCE = 1024
_LARGEST_SEED = 2**31 - 1
_PREFETCHED_STEPS = 2


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
    dataset = dataset.batch(_IDS_AT_ONCE)
    dataset = dataset.with_options(replicator.default_data_options(num_threads=1))
    return (found for ids in dataset.as_numpy_iterator() for found in ids.tolist())


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
    return found


def shuffled(
    dataset: tf.data.Dataset, buffer_size: int, seed: int, pipeline_id: int
) -> tf.data.Dataset:
    """Returns the examples of a pipeline without end, each epoch in a new order."""
    return dataset.shuffle(
        buffer_size,
        seed=fold(seed, SHUFFLE_STREAM, pipeline_id),
        reshuffle_each_iteration=True,
    ).repeat()


def prefetched(
    dataset: tf.data.Dataset, context: replicator.InputContext, num_threads: int
) -> tf.data.Dataset:
    """Prefetches the batches of some steps of a pipeline with threads of its own."""
    batches_per_step = context.num_replicas_in_sync // context.num_input_pipelines
    dataset = dataset.prefetch(_PREFETCHED_STEPS * max(1, batches_per_step))
    # The pipeline's own few threads keep it off the replicas' cores.
    options = replicator.default_data_options(num_threads=num_threads)
    return dataset.with_options(options)


def repeated(batch: dict[str, tf.Tensor], size: int, threads: int) -> tf.data.Dataset:
    """Returns one cached batch without end: no reading, no decoding.

    Its ``example_id`` are -1, because there are no examples to distinguish.
    """
    ids = tf.fill([size], tf.constant(-1, tf.int64))
    dataset = tf.data.Dataset.from_tensors({**batch, "example_id": ids})
    options = replicator.default_data_options(num_threads=threads)
    return dataset.cache().repeat().with_options(options)


def fold(seed: int, *parts: int) -> int:
    """Mixes a seed with stream numbers; a plain hash, the same in every process."""
    for part in parts:
        seed = (seed * 1_000_003 + part) & _LARGEST_SEED
    return seed
