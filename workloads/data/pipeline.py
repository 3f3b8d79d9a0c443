"""Input pipelines: read, shuffle, decode, augment and batch.

A batch is a dict: ``image`` [examples, size, size, 3] float32, ``label`` [examples]
int32, ``example_id`` [examples] int64 (a stable hash of the example's TFDS id).

With ``input_dtype`` ``uint8``, a batch has pixels as they are stored, a quarter of the
bytes, and ``on_device`` normalises them in the step, on the device of the replica.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tensorflow_datasets as tfds

import replicator
from workloads.data.sources import TRAIN_SPLIT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from workloads.data.sources import Examples, Source


# There are two paths. Small images of one stored size (digits, CIFAR)
# are cropped and resized a batch at a time by one kernel: op by op they would take more
# time than the step leaves on cores that the replicas use too. Large images are decoded
# one by one, and a JPEG only inside its crop.


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Augmentation:
    """How a training image is augmented, and how every image is normalised."""

    area_range: tuple[float, float]  # Fraction of the area that a random crop keeps.
    aspect_range: tuple[float, float]  # Width over height of it, in stored pixels.
    flips: bool  # Whether half of the images are mirrored.
    # Fraction of height and width that evaluation keeps, centred.
    evaluation_crop: float
    mean: tuple[float, float, float]  # Of each channel, for pixels in [0, 1].
    stddev: tuple[float, float, float]  # The same.


# Scale and aspect-ratio augmentation of Goyal et al. 2017 (after Szegedy et al. 2015).
IMAGENET = Augmentation(
    area_range=(0.08, 1.0),
    aspect_range=(3 / 4, 4 / 3),
    flips=True,
    evaluation_crop=0.875,
    mean=(0.485, 0.456, 0.406),
    stddev=(0.229, 0.224, 0.225),
)
# A mirrored digit is a different symbol, and 8 x 8 pixels leave little to crop. The
# moments are those of scikit-learn's 1,797 digits.
DIGITS = Augmentation(
    area_range=(0.7, 1.0),
    aspect_range=(0.9, 1.1),
    flips=False,
    evaluation_crop=1.0,
    mean=(0.3053, 0.3053, 0.3053),
    stddev=(0.3760, 0.3760, 0.3760),
)

# For generators that end in tanh: pixels as they are, in [-1, 1].
UNCHANGED = Augmentation(
    area_range=(1.0, 1.0),
    aspect_range=(1.0, 1.0),
    flips=False,
    evaluation_crop=1.0,
    mean=(0.5, 0.5, 0.5),
    stddev=(0.5, 0.5, 0.5),
)


def augmentation_of(name: str) -> Augmentation:
    """Returns the augmentation of a data set: the digits have their own."""
    return DIGITS if name == "digits" else IMAGENET


def decode_images(
    encoded: Any, *, encoding: str | None, shape: tuple[int | None, ...]
) -> Any:
    """Decodes one whole image to [height, width, 3], uint8."""
    if encoding == "png":
        image = tf.io.decode_png(encoded, channels=3)
    elif encoding == "jpeg":
        image = tf.io.decode_jpeg(encoded, channels=3)
    else:
        image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    image.set_shape((*shape[:2], 3))
    return image


def random_boxes(
    num_images: int, augmentation: Augmentation, seed: tf.Tensor
) -> tf.Tensor:
    """Draws crops as ``tf.image.crop_and_resize`` takes them.

    Area and log-aspect are uniform; a side longer than the image is clipped to it.
    """
    draws = tf.random.stateless_uniform([5, num_images], seed)
    low, high = augmentation.area_range
    area = low + (high - low) * draws[0]
    low, high = (math.log(aspect) for aspect in augmentation.aspect_range)
    root_aspect = tf.exp(0.5 * (low + (high - low) * draws[1]))
    side = tf.sqrt(area)
    height = tf.minimum(side / root_aspect, 1.0)
    width = tf.minimum(side * root_aspect, 1.0)
    y1 = draws[2] * (1.0 - height)
    x1 = draws[3] * (1.0 - width)
    x2 = x1 + width
    if augmentation.flips:
        flips = draws[4] < 0.5  # noqa: PLR2004 - half of the images
        x1, x2 = tf.where(flips, x2, x1), tf.where(flips, x1, x2)
    return tf.stack([y1, x1, y1 + height, x2], axis=1)


def center_boxes(num_images: int, augmentation: Augmentation) -> tf.Tensor:
    """Returns the evaluation crop for each image, [num_images, 4]."""
    margin = (1.0 - augmentation.evaluation_crop) / 2
    box = [margin, margin, 1.0 - margin, 1.0 - margin]
    return tf.tile(tf.constant([box]), [num_images, 1])


def crop_batch(images: tf.Tensor, boxes: tf.Tensor, image_size: int) -> tf.Tensor:
    """Crops and resizes a batch bilinearly; float32, in [0, 255]."""
    indices = tf.range(tf.shape(images)[0])
    return tf.image.crop_and_resize(images, boxes, indices, [image_size, image_size])


def decode_random_crop(
    encoded: Any,
    seed: tf.Tensor,
    *,
    augmentation: Augmentation,
    encoding: str | None,
    image_size: int,
) -> tf.Tensor:
    """Decodes a random crop of one large image; float32, in [0, 255]."""
    shape, crop = _opened(encoded, encoding)
    begin, size, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        bounding_boxes=tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        seed=seed,
        min_object_covered=0.0,
        aspect_ratio_range=augmentation.aspect_range,
        area_range=augmentation.area_range,
        max_attempts=10,
        use_image_if_no_bounding_boxes=True,
    )
    window = tf.concat([begin[:2], size[:2]], axis=0)
    image = _resize(crop(window), image_size)
    if augmentation.flips:
        image = tf.image.stateless_random_flip_left_right(image, seed)
    return image


def decode_center_crop(
    encoded: Any, *, augmentation: Augmentation, encoding: str | None, image_size: int
) -> tf.Tensor:
    """Decodes the central square of one large image for evaluation.

    The square's side is ``evaluation_crop`` of the shorter side, as published (256 to
    224 pixels). Returns as ``decode_random_crop``.
    """
    shape, crop = _opened(encoded, encoding)
    shorter = tf.cast(tf.minimum(shape[0], shape[1]), tf.float32)
    side = tf.cast(tf.round(shorter * augmentation.evaluation_crop), tf.int32)
    begin = (shape[:2] - side) // 2
    window = tf.stack([begin[0], begin[1], side, side])
    return _resize(crop(window), image_size)


def normalise(images: tf.Tensor, augmentation: Augmentation) -> tf.Tensor:
    """Returns images in [0, 255] with zero mean and unit variance per channel."""
    mean = 255.0 * tf.constant(augmentation.mean)
    stddev = 255.0 * tf.constant(augmentation.stddev)
    return (images - mean) / stddev


def _opened(encoded: Any, encoding: str | None) -> tuple[tf.Tensor, Any]:
    """Returns the shape of an image, and a function that decodes a window of it."""
    if encoding == "jpeg":
        crop = functools.partial(tf.io.decode_and_crop_jpeg, encoded, channels=3)
        return tf.io.extract_jpeg_shape(encoded), crop
    whole = decode_images(encoded, encoding=encoding, shape=(None, None, 3))

    def cut(window: tf.Tensor) -> tf.Tensor:
        return tf.image.crop_to_bounding_box(whole, *tf.unstack(window))

    return tf.shape(whole), cut


def _resize(image: tf.Tensor, image_size: int) -> tf.Tensor:
    resized = tf.image.resize(image, [image_size, image_size], method="bicubic")
    return tf.clip_by_value(resized, 0.0, 255.0)


# Images stay encoded; ``pipeline.py`` makes batches of them.

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
    augmentation: Augmentation | None = None
    # ``float32``: the pipeline normalises; ``uint8``: the step does.
    input_dtype: str = "float32"

    def augmentation_of(self, source: Source | None) -> Augmentation:
        """Returns the configured augmentation, or that of the data set."""
        name = "" if source is None else source.name
        return self.augmentation or augmentation_of(name)


def train_dataset(
    source: Source, context: replicator.InputContext, config: PipelineConfig
) -> tf.data.Dataset:
    """Creates the infinite training pipeline of one input context.

    Every epoch reads each example of the pipeline's shard once, in a new order. The
    same seed gives the same batches, in the same order, on every backend.
    """
    augmentation = config.augmentation_of(source)
    dataset = read(source, shard(source, context), config, is_training=True)
    if config.is_cached:
        # Cached in encoded form: pixels are many times as large.
        dataset = dataset.cache()
    dataset = dataset.shuffle(
        config.shuffle_buffer_size,
        seed=fold(config.seed, SHUFFLE_STREAM, context.input_pipeline_id),
        reshuffle_each_iteration=True,
    ).repeat()
    stream = fold(config.seed, _AUGMENTATION_STREAM, context.input_pipeline_id)
    if _is_small(source):
        dataset = _decoded(source, dataset, config)
        dataset = dataset.batch(config.per_replica_batch_size, drop_remainder=True)
        dataset = dataset.enumerate()

        def augment(index: Any, batch: dict[str, Any]) -> dict[str, Any]:
            boxes = random_boxes(
                config.per_replica_batch_size, augmentation, _seed(stream, index)
            )
            cropped = crop_batch(batch["image"], boxes, config.image_size)
            return {**batch, "image": _sent(cropped, augmentation, config)}

        dataset = map_in_order(dataset, augment, config)
    else:

        def decode_and_augment(index: Any, example: dict[str, Any]) -> dict[str, Any]:
            image = decode_random_crop(
                example["image"],
                _seed(stream, index),
                augmentation=augmentation,
                encoding=source.encoding,
                image_size=config.image_size,
            )
            return {**example, "image": _sent(image, augmentation, config)}

        dataset = map_in_order(dataset.enumerate(), decode_and_augment, config)
        dataset = dataset.batch(config.per_replica_batch_size, drop_remainder=True)
    return finish(dataset, context, config.num_threads)


def finish(
    dataset: tf.data.Dataset, context: replicator.InputContext, num_threads: int
) -> tf.data.Dataset:
    """Prefetches the batches of some steps of a pipeline with threads of its own."""
    batches_per_step = context.num_replicas_in_sync // context.num_input_pipelines
    dataset = dataset.prefetch(_PREFETCHED_STEPS * max(1, batches_per_step))
    return dataset.with_options(options(num_threads))


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
    dataset = read(source, split, config, is_training=False)
    if _is_small(source):
        dataset = _decoded(source, dataset, config)
        dataset = map_in_order(dataset.batch(size), _pad(size), config)

        def crop(batch: dict[str, Any]) -> dict[str, Any]:
            boxes = center_boxes(size, augmentation)
            cropped = crop_batch(batch["image"], boxes, config.image_size)
            return {**batch, "image": normalise(cropped, augmentation)}

        dataset = map_in_order(dataset, crop, config)
    else:

        def decode(example: dict[str, Any]) -> dict[str, Any]:
            image = decode_center_crop(
                example["image"],
                augmentation=augmentation,
                encoding=source.encoding,
                image_size=config.image_size,
            )
            return {**example, "image": normalise(image, augmentation)}

        dataset = map_in_order(dataset, decode, config)
        dataset = map_in_order(dataset.batch(size), _pad(size), config)
    return dataset.prefetch(1).with_options(options(config.num_threads))


def synthetic_dataset(config: PipelineConfig, *, num_classes: int) -> tf.data.Dataset:
    """Creates an infinite pipeline of one cached random batch: no reading, no decoding.

    Its ``example_id`` are -1, because there are no examples to distinguish.
    """
    size = config.per_replica_batch_size
    seed = _seed(fold(config.seed, _AUGMENTATION_STREAM, 0), 0)
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
    return dataset.with_options(options(config.num_threads))


def on_device(batch: dict[str, Any], augmentation: Augmentation) -> dict[str, Any]:
    """Returns a batch with the normalised images that a network takes.

    Called in the step, so that pixels are sent to the device as they are stored.
    """
    if batch["image"].dtype != tf.uint8:
        return batch
    pixels = tf.cast(batch["image"], tf.float32)
    return {**batch, "image": normalise(pixels, augmentation)}


def _decoded(
    source: Source, dataset: tf.data.Dataset, config: PipelineConfig
) -> tf.data.Dataset:
    decode = functools.partial(
        decode_images, encoding=source.encoding, shape=source.image_shape
    )
    return map_in_order(
        dataset, lambda example: {**example, "image": decode(example["image"])}, config
    )


def _is_small(source: Source) -> bool:
    height, width = source.image_shape[:2]
    if height is None or width is None:
        return False
    return height * width <= _MOST_SMALL_PIXELS


def _sent(
    image: tf.Tensor, augmentation: Augmentation, config: PipelineConfig
) -> tf.Tensor:
    """Returns images in [0, 255] as they are sent to the devices."""
    if config.input_dtype == _UINT8:
        return tf.saturate_cast(tf.round(image), tf.uint8)
    return normalise(image, augmentation)


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
