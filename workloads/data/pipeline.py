"""Input pipelines: shuffle, decode, augment and batch what ``reading.py`` reads.

A batch is a dict: ``image`` [examples, size, size, 3] float32, ``label`` [examples]
int32, ``example_id`` [examples] int64 (a stable hash of the example's TFDS id).

With ``input_dtype`` ``uint8``, a batch has pixels as they are stored, a quarter of the
bytes, and ``on_device`` normalises them in the step, on the device of the replica.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from workloads.data import images, reading

if TYPE_CHECKING:
    import replicator
    from workloads.data.sources import Source

_MOST_SMALL_PIXELS = 96 * 96
# The random numbers of augmentation; see ``reading.SHUFFLE_STREAM``.
_AUGMENTATION_STREAM = 2
_PREFETCHED_STEPS = 2
_UINT8 = "uint8"
_NUM_LEVELS = 256


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PipelineConfig:
    """Settings that determine the batches of a pipeline, besides its data set."""

    per_replica_batch_size: int  # Examples of one batch.
    image_size: int  # Height and width, in pixels.
    seed: int  # Determines order and augmentation.
    shuffle_buffer_size: int  # Examples in the shuffle buffer.
    num_threads: int  # Threads of the pipeline, separate from TensorFlow's own.
    # Whether the encoded images of a pipeline's shard stay in memory after the first
    # epoch; otherwise they are read from their files in every epoch.
    is_cached: bool = False
    # How images are augmented and normalised; None for that of the data set.
    augmentation: images.Augmentation | None = None
    # ``float32``: the pipeline normalises; ``uint8``: the step does.
    input_dtype: str = "float32"

    def augmentation_of(self, source: Source | None) -> images.Augmentation:
        """Returns the configured augmentation, or that of the data set."""
        name = "" if source is None else source.name
        return self.augmentation or images.augmentation_of(name)


def train_dataset(
    source: Source, context: replicator.InputContext, config: PipelineConfig
) -> tf.data.Dataset:
    """Creates the infinite training pipeline of one input context.

    Every epoch reads each example of the pipeline's shard once, in a new order. The
    same seed gives the same batches, in the same order, on every backend.
    """
    augmentation = config.augmentation_of(source)
    dataset = reading.read(
        source, reading.shard(source, context), config, is_training=True
    )
    if config.is_cached:
        # Cached in encoded form: pixels are many times as large.
        dataset = dataset.cache()
    dataset = dataset.shuffle(
        config.shuffle_buffer_size,
        seed=reading.fold(
            config.seed, reading.SHUFFLE_STREAM, context.input_pipeline_id
        ),
        reshuffle_each_iteration=True,
    ).repeat()
    stream = reading.fold(config.seed, _AUGMENTATION_STREAM, context.input_pipeline_id)
    if _is_small(source):
        dataset = reading.map_in_order(dataset, _decode_small(source), config)
        dataset = dataset.batch(config.per_replica_batch_size, drop_remainder=True)
        dataset = dataset.enumerate()

        def augment(index: Any, batch: dict[str, Any]) -> dict[str, Any]:
            boxes = images.random_boxes(
                config.per_replica_batch_size, augmentation, _seed(stream, index)
            )
            cropped = images.crop_batch(batch["image"], boxes, config.image_size)
            return {**batch, "image": _sent(cropped, augmentation, config)}

        dataset = reading.map_in_order(dataset, augment, config)
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

        dataset = reading.map_in_order(dataset.enumerate(), decode_and_augment, config)
        dataset = dataset.batch(config.per_replica_batch_size, drop_remainder=True)
    batches_per_step = context.num_replicas_in_sync // context.num_input_pipelines
    dataset = dataset.prefetch(_PREFETCHED_STEPS * max(1, batches_per_step))
    return dataset.with_options(reading.options(config.num_threads))


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
    dataset = reading.read(source, split, config, is_training=False)
    if _is_small(source):
        dataset = reading.map_in_order(dataset, _decode_small(source), config)
        dataset = reading.map_in_order(dataset.batch(size), _pad(size), config)

        def crop(batch: dict[str, Any]) -> dict[str, Any]:
            boxes = images.center_boxes(size, augmentation)
            cropped = images.crop_batch(batch["image"], boxes, config.image_size)
            return {**batch, "image": images.normalise(cropped, augmentation)}

        dataset = reading.map_in_order(dataset, crop, config)
    else:

        def decode(example: dict[str, Any]) -> dict[str, Any]:
            image = images.decode_center_crop(
                example["image"],
                augmentation=augmentation,
                encoding=source.encoding,
                image_size=config.image_size,
            )
            return {**example, "image": images.normalise(image, augmentation)}

        dataset = reading.map_in_order(dataset, decode, config)
        dataset = reading.map_in_order(dataset.batch(size), _pad(size), config)
    return dataset.prefetch(1).with_options(reading.options(config.num_threads))


def synthetic_dataset(config: PipelineConfig, *, num_classes: int) -> tf.data.Dataset:
    """Creates an infinite pipeline of one cached random batch: no reading, no decoding.

    Its ``example_id`` are -1, because there are no examples to distinguish.
    """
    size = config.per_replica_batch_size
    seed = _seed(reading.fold(config.seed, _AUGMENTATION_STREAM, 0), 0)
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
    return dataset.with_options(reading.options(config.num_threads))


def on_device(
    batch: dict[str, Any], augmentation: images.Augmentation
) -> dict[str, Any]:
    """Returns a batch with the normalised images that a network takes.

    Called in the step, so that pixels are sent to the device as they are stored.
    """
    if batch["image"].dtype != tf.uint8:
        return batch
    pixels = tf.cast(batch["image"], tf.float32)
    return {**batch, "image": images.normalise(pixels, augmentation)}


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


def _seed(stream: int, index: Any) -> tf.Tensor:
    return tf.stack([tf.constant(stream, tf.int64), tf.cast(index, tf.int64)])
