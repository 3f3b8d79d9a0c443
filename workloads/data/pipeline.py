"""Input pipelines: read, shard, shuffle, decode, augment, batch.

A batch is a dict: ``image`` [examples, size, size, 3] float32, ``label`` [examples]
int32, ``example_id`` [examples] int64 (a stable hash of the example's TFDS id).

With ``input_dtype`` ``uint8``, a batch has pixels as they are stored, a quarter of the
bytes, and ``on_device`` normalises them in the step, on the device of the replica.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tensorflow_datasets as tfds

import replicator
from workloads.data import images
from workloads.data.sources import TRAIN_SPLIT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workloads.data.sources import Source

_NUM_IDS = 2**62
_MOST_SMALL_PIXELS = 96 * 96
# Random number streams that are derived from one seed.
_SHUFFLE_STREAM, _AUGMENTATION_STREAM = 1, 2
_PREFETCHED_STEPS = 2
_UINT8 = "uint8"
_NUM_LEVELS = 256
_FILES_READ_AT_ONCE = 16
_LARGEST_SEED = 2**31 - 1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PipelineConfig:
    """Settings that determine the batches of a pipeline, besides its data set.

    Attributes:
      per_replica_batch_size: Examples of one batch.
      image_size: Height and width, in pixels.
      seed: Determines order and augmentation.
      shuffle_buffer_size: Examples in the shuffle buffer.
      num_threads: Threads of the pipeline, separate from TensorFlow's own.
      is_cached: Whether the encoded images of a pipeline's shard stay in memory after
        the first epoch; otherwise they are read from their files in every epoch.
      augmentation: How images are augmented and normalised; None for that of the data
        set.
      input_dtype: ``float32``: the pipeline normalises; ``uint8``: the step does.
    """

    per_replica_batch_size: int
    image_size: int
    seed: int
    shuffle_buffer_size: int
    num_threads: int
    is_cached: bool = False
    augmentation: images.Augmentation | None = None
    input_dtype: str = "float32"

    def augmentation_of(self, source: Source | None) -> images.Augmentation:
        """Returns the configured augmentation, or that of the data set.

        Args:
          source: The data set, or None for synthetic data.
        """
        name = "" if source is None else source.name
        return self.augmentation or images.augmentation_of(name)


def shard(source: Source, context: replicator.InputContext) -> Any:
    """Returns the shard of the training split that one pipeline reads.

    Shards are contiguous ranges whose sizes differ by at most one example. TFDS
    shuffled the examples when it wrote them, so each range is a random sample; a
    pipeline skips the other ranges instead of reading and dropping them.

    Args:
      source: The data set.
      context: Which pipeline of how many.

    Raises:
      ValueError: More pipelines than training examples.
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


def train_dataset(
    source: Source, context: replicator.InputContext, config: PipelineConfig
) -> tf.data.Dataset:
    """Creates the infinite training pipeline of one input context.

    Every epoch reads each example of the pipeline's shard once, in a new order. The
    same seed gives the same batches, in the same order, on every backend.

    Args:
      source: The data set.
      context: Which pipeline of how many.
      config: Sizes, seed and threads.

    Returns:
      Batches as described in the module docstring.
    """
    augmentation = config.augmentation_of(source)
    dataset = _read(source, shard(source, context), config, is_training=True)
    if config.is_cached:
        # Cached in encoded form: pixels are many times as large.
        dataset = dataset.cache()
    dataset = dataset.shuffle(
        config.shuffle_buffer_size,
        seed=_fold(config.seed, _SHUFFLE_STREAM, context.input_pipeline_id),
        reshuffle_each_iteration=True,
    ).repeat()
    stream = _fold(config.seed, _AUGMENTATION_STREAM, context.input_pipeline_id)
    if _is_small(source):
        dataset = _map(dataset, _decode_small(source), config)
        dataset = dataset.batch(config.per_replica_batch_size, drop_remainder=True)
        dataset = dataset.enumerate()

        def augment(index: Any, batch: dict[str, Any]) -> dict[str, Any]:
            boxes = images.random_boxes(
                config.per_replica_batch_size, augmentation, _seed(stream, index)
            )
            cropped = images.crop_batch(batch["image"], boxes, config.image_size)
            return {**batch, "image": _sent(cropped, augmentation, config)}

        dataset = _map(dataset, augment, config)
    else:

        def decode_and_augment(index: Any, example: dict[str, Any]) -> dict[str, Any]:
            image = images.decode_random_crop(
                example["image"],
                _seed(stream, index),
                augmentation=augmentation,
                encoding=source.encoding,
                image_size=config.image_size,
            )
            return {**example, "image": _sent(image, augmentation, config)}

        dataset = _map(dataset.enumerate(), decode_and_augment, config)
        dataset = dataset.batch(config.per_replica_batch_size, drop_remainder=True)
    batches_per_step = context.num_replicas_in_sync // context.num_input_pipelines
    dataset = dataset.prefetch(_PREFETCHED_STEPS * max(1, batches_per_step))
    return dataset.with_options(_options(config.num_threads))


def evaluation_dataset(source: Source, config: PipelineConfig) -> tf.data.Dataset:
    """Creates a pipeline of one pass over the held-out split, in stored order.

    Batches have ``config.per_replica_batch_size`` rows: the last one is padded with
    zeros, and ``is_example`` [examples] bool distinguishes examples from padding.
    """
    return whole_split(source, source.evaluation_split, config)


def whole_split(source: Source, split: str, config: PipelineConfig) -> tf.data.Dataset:
    """Creates one pass over a split; see ``evaluation_dataset``."""
    augmentation = config.augmentation_of(source)
    size = config.per_replica_batch_size
    dataset = _read(source, split, config, is_training=False)
    if _is_small(source):
        dataset = _map(dataset, _decode_small(source), config)
        dataset = _map(dataset.batch(size), _pad(size), config)

        def crop(batch: dict[str, Any]) -> dict[str, Any]:
            boxes = images.center_boxes(size, augmentation)
            cropped = images.crop_batch(batch["image"], boxes, config.image_size)
            return {**batch, "image": images.normalise(cropped, augmentation)}

        dataset = _map(dataset, crop, config)
    else:

        def decode(example: dict[str, Any]) -> dict[str, Any]:
            image = images.decode_center_crop(
                example["image"],
                augmentation=augmentation,
                encoding=source.encoding,
                image_size=config.image_size,
            )
            return {**example, "image": images.normalise(image, augmentation)}

        dataset = _map(dataset, decode, config)
        dataset = _map(dataset.batch(size), _pad(size), config)
    return dataset.prefetch(1).with_options(_options(config.num_threads))


def synthetic_dataset(config: PipelineConfig, *, num_classes: int) -> tf.data.Dataset:
    """Creates an infinite pipeline of one cached random batch: no reading, no decoding.

    Its ``example_id`` are -1, because there are no examples to distinguish.
    """
    size = config.per_replica_batch_size
    seed = _seed(_fold(config.seed, _AUGMENTATION_STREAM, 0), 0)
    shape = [size, config.image_size, config.image_size, 3]
    if config.input_dtype == _UINT8:
        levels = tf.random.stateless_uniform(
            shape, seed, maxval=_NUM_LEVELS, dtype=tf.int32
        )
        image = tf.cast(levels, tf.uint8)
    else:
        image = tf.random.stateless_normal(shape, seed)
    batch = {
        "image": image,
        "label": tf.random.stateless_uniform(
            [size], seed, maxval=num_classes, dtype=tf.int32
        ),
        "example_id": tf.fill([size], tf.constant(-1, tf.int64)),
    }
    dataset = tf.data.Dataset.from_tensors(batch).cache().repeat()
    return dataset.with_options(_options(config.num_threads))


def on_device(
    batch: dict[str, Any], augmentation: images.Augmentation
) -> dict[str, Any]:
    """Returns a batch with the normalised images that a network takes.

    Called in the step, so that pixels are sent to the device as they are stored.

    Args:
      batch: Of ``train_dataset`` or ``synthetic_dataset``.
      augmentation: Whose moments images have.
    """
    if batch["image"].dtype != tf.uint8:
        return batch
    pixels = tf.cast(batch["image"], tf.float32)
    return {**batch, "image": images.normalise(pixels, augmentation)}


def read_ids(source: Source, split: Any) -> Iterator[int]:
    """Reads the ids of a split's examples once, without decoding an image.

    Args:
      source: The data set.
      split: A split name or the result of ``shard``.
    """
    dataset = source.builder.as_dataset(
        split=split,
        decoders=tfds.decode.PartialDecoding({"label": True}),
        read_config=_read_config(seed=0, num_threads=1),
    )
    dataset = dataset.map(_with_id).with_options(_options(1))
    return (int(example["example_id"]) for example in dataset.as_numpy_iterator())


def _read(
    source: Source, split: Any, config: PipelineConfig, *, is_training: bool
) -> tf.data.Dataset:
    dataset = source.builder.as_dataset(
        split=split,
        shuffle_files=is_training,
        # Shuffles encoded bytes, not pixels, so the buffer stays small.
        decoders=tfds.decode.PartialDecoding(
            {"image": True, "label": True},
            decoders={"image": tfds.decode.SkipDecoding()},
        ),
        read_config=_read_config(seed=config.seed, num_threads=config.num_threads),
    )
    dataset = _map(dataset, _with_id, config)
    return _map(dataset, _check_label(source.num_classes), config)


def _read_config(*, seed: int, num_threads: int) -> Any:
    return tfds.ReadConfig(
        add_tfds_id=True,
        shuffle_seed=_fold(seed, _SHUFFLE_STREAM, 0),
        try_autocache=False,
        # A data set that is stored in order is shuffled here like any other.
        enable_ordering_guard=False,
        skip_prefetch=True,
        num_parallel_calls_for_decode=num_threads,
        interleave_cycle_length=_FILES_READ_AT_ONCE,
        num_parallel_calls_for_interleave_files=min(num_threads, _FILES_READ_AT_ONCE),
    )


def _with_id(example: dict[str, Any]) -> dict[str, Any]:
    found = dict(example)
    name = found.pop("tfds_id")
    found["example_id"] = tf.strings.to_hash_bucket_fast(name, _NUM_IDS)
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


def _decode_small(source: Source) -> Any:
    def decode(example: dict[str, Any]) -> dict[str, Any]:
        image = images.decode(
            example["image"], encoding=source.encoding, shape=source.image_shape
        )
        return {**example, "image": image}

    return decode


def _is_small(source: Source) -> bool:
    height, width = source.image_shape[:2]
    if height is None or width is None:
        return False
    return height * width <= _MOST_SMALL_PIXELS


def _sent(
    image: tf.Tensor, augmentation: images.Augmentation, config: PipelineConfig
) -> tf.Tensor:
    """Returns images in [0, 255] as they are sent to the devices."""
    if config.input_dtype == _UINT8:
        return tf.saturate_cast(tf.round(image), tf.uint8)
    return images.normalise(image, augmentation)


def _pad(size: int) -> Any:
    def pad(batch: dict[str, Any]) -> dict[str, Any]:
        found = tf.shape(batch["label"])[0]
        padded = {}
        for key, value in batch.items():
            filling = [[0, size - found], *([[0, 0]] * (value.shape.rank - 1))]
            padded[key] = tf.ensure_shape(
                tf.pad(value, filling), (size, *value.shape[1:])
            )
        return {**padded, "is_example": tf.range(size) < found}

    return pad


def _map(dataset: tf.data.Dataset, fn: Any, config: PipelineConfig) -> tf.data.Dataset:
    # One thread needs no parallel map, whose overhead exceeds the work on small images.
    if config.num_threads == 1:
        return dataset.map(fn)
    return dataset.map(fn, num_parallel_calls=config.num_threads, deterministic=True)


def _options(num_threads: int) -> tf.data.Options:
    # The pipeline's own few threads keep it off the replicas' cores.
    return replicator.default_data_options(num_threads=num_threads)


def _fold(seed: int, *parts: int) -> int:
    """Mixes a seed with stream numbers; a plain hash, the same in every process."""
    for part in parts:
        seed = (seed * 1_000_003 + part) & _LARGEST_SEED
    return seed


def _seed(stream: int, index: Any) -> tf.Tensor:
    return tf.stack([tf.constant(stream, tf.int64), tf.cast(index, tf.int64)])
