"""Labelled images as a training reads them: batches, normalisation, held-out split.

A batch is a dict: ``image`` [examples, size, size, 3] float32, ``label`` [examples]
int32, ``example_id`` [examples] int64 (see ``Examples.read``).

With ``input_dtype`` ``uint8``, a batch has pixels as they are stored, a quarter of the
bytes, and ``normalised`` is called in the step, on the device of the replica.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import tensorflow as tf

import replicator
from workloads.data import sources
from workloads.data.sources import TRAIN_SPLIT, fold, open_source, shard
from workloads.spec import SYNTHETIC


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Augmentation:
    """How a training image is augmented, and how every image is normalised."""

    mean: tuple[float, float, float]  # Of each channel, for pixels in [0, 1].
    stddev: tuple[float, float, float]  # The same.
    # Fraction of the area that a random crop keeps.
    area_range: tuple[float, float] = (1.0, 1.0)
    # Width over height of it, in stored pixels.
    aspect_range: tuple[float, float] = (1.0, 1.0)
    flips: bool = False  # Whether half of the images are mirrored.
    # Fraction of height and width that evaluation keeps, centred.
    evaluation_crop: float = 1.0

    def boxes(self, num_images: int, seed: tf.Tensor | None) -> tf.Tensor:
        """Returns crops for ``tf.image.crop_and_resize``: uniform area and log-aspect.

        Without a seed they are central.
        """
        if seed is None:
            margin = (1.0 - self.evaluation_crop) / 2
            box = [margin, margin, 1.0 - margin, 1.0 - margin]
            return tf.tile(tf.constant([box]), [num_images, 1])
        draws = tf.random.stateless_uniform([5, num_images], seed)
        low, high = self.area_range
        area = low + (high - low) * draws[0]
        low, high = (math.log(aspect) for aspect in self.aspect_range)
        root_aspect = tf.exp(0.5 * (low + (high - low) * draws[1]))
        side = tf.sqrt(area)
        height = tf.minimum(side / root_aspect, 1.0)
        width = tf.minimum(side * root_aspect, 1.0)
        y1 = draws[2] * (1.0 - height)
        x1 = draws[3] * (1.0 - width)
        x2 = x1 + width
        if self.flips:
            flips = draws[4] < 0.5  # noqa: PLR2004 - half of the images
            x1, x2 = tf.where(flips, x2, x1), tf.where(flips, x1, x2)
        return tf.stack([y1, x1, y1 + height, x2], axis=1)

    def crop(self, encoded: Any, seed: Any, encoding: str | None, size: int) -> Any:
        """Decodes a crop of one large image, in [0, 255]; central without a seed."""
        if encoding == "jpeg":
            shape = tf.io.extract_jpeg_shape(encoded)
        else:
            whole = decoded(encoded, (None, None, 3))
            shape = tf.shape(whole)
        if seed is None:
            shorter = tf.cast(tf.minimum(shape[0], shape[1]), tf.float32)
            side = tf.cast(tf.round(shorter * self.evaluation_crop), tf.int32)
            begin = (shape[:2] - side) // 2
            window = tf.stack([begin[0], begin[1], side, side])
        else:
            begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
                shape,
                bounding_boxes=tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
                seed=seed,
                min_object_covered=0.0,
                aspect_ratio_range=self.aspect_range,
                area_range=self.area_range,
                max_attempts=10,
                use_image_if_no_bounding_boxes=True,
            )
            window = tf.concat([begin[:2], extent[:2]], axis=0)
        if encoding == "jpeg":
            image = tf.io.decode_and_crop_jpeg(encoded, window, channels=3)
        else:
            image = tf.image.crop_to_bounding_box(whole, *tf.unstack(window))
        resized = tf.image.resize(image, [size, size], method="bicubic")
        image = tf.clip_by_value(resized, 0.0, 255.0)
        if seed is not None and self.flips:
            image = tf.image.stateless_random_flip_left_right(image, seed)
        return image

    def normalise(self, images: tf.Tensor) -> tf.Tensor:
        """Returns images in [0, 255] with zero mean and unit variance per channel."""
        mean = 255.0 * tf.constant(self.mean)
        stddev = 255.0 * tf.constant(self.stddev)
        return (images - mean) / stddev


# Scale and aspect-ratio augmentation of Goyal et al. 2017 (after Szegedy et al. 2015).
IMAGENET = Augmentation(
    mean=(0.485, 0.456, 0.406),
    stddev=(0.229, 0.224, 0.225),
    area_range=(0.08, 1.0),
    aspect_range=(3 / 4, 4 / 3),
    flips=True,
    evaluation_crop=0.875,
)
# A mirrored digit is a different symbol, and 8 x 8 pixels leave little to crop. The
# moments are those of scikit-learn's 1,797 digits.
DIGITS = Augmentation(
    mean=(0.3053, 0.3053, 0.3053),
    stddev=(0.3760, 0.3760, 0.3760),
    area_range=(0.7, 1.0),
    aspect_range=(0.9, 1.1),
)
# For generators that end in tanh: pixels as they are, in [-1, 1].
UNCHANGED = Augmentation(mean=(0.5, 0.5, 0.5), stddev=(0.5, 0.5, 0.5))

_MOST_SMALL_PIXELS = 96 * 96
# The random numbers of augmentation; see ``sources.SHUFFLE_STREAM``.
_AUGMENTATION_STREAM = 2
_NUM_LEVELS = 256


class Images:
    """A data set of labelled images, or random ones.

    ``config`` has the settings of ``spec.ImageConfig``, and ``repl`` is what is fed, if
    anything is. ``augmentation`` is by default that of the data.
    """

    def __init__(
        self,
        repl: replicator.Replicator | None,
        config: Any,
        *,
        data: str,
        seed: int,
        augmentation: Augmentation | None = None,
    ) -> None:
        self._config, self._seed = config, seed
        self._feeds_gpus = repl is not None and repl.feeds_gpus
        self.source = None if data == SYNTHETIC else open_source(data)
        if self.source is not None and self.source.num_classes > config.num_classes:
            raise ValueError(
                f"data {data!r} has {self.source.num_classes} classes, but the network "
                f"has {config.num_classes}: set option num_classes to at least "
                f"{self.source.num_classes}"
            )
        self.augmentation = augmentation or (DIGITS if data == "digits" else IMAGENET)

    def batches(
        self, context: replicator.InputContext, num_examples: int
    ) -> tf.data.Dataset:
        """Returns shuffled and augmented batches of this pipeline's shard, endless.

        The same seed gives the same batches, in the same order, on every backend.
        """
        num_threads = self._config.num_input_threads
        if self._feeds_gpus:
            # A GPU takes about a hundred times as many examples per second as a CPU
            # core, and one pipeline feeds all GPUs of a process.
            num_fed = context.num_replicas_in_sync // context.num_input_pipelines
            num_threads *= max(1, num_fed)
        if self.source is None:
            batch = self._random_batch(num_examples)
            return sources.repeated(batch, num_examples, num_threads)
        pipeline_id = context.input_pipeline_id
        dataset = self._labelled(
            self.source.read(
                TRAIN_SPLIT,
                shard(self.source, context),
                seed=self._seed,
                threads=num_threads,
            ),
            num_threads,
        )
        if self._config.cache_data:
            # Cached in encoded form: pixels are many times as large.
            dataset = dataset.cache()
        size = self._config.shuffle_buffer_size
        dataset = sources.shuffled(dataset, size, self._seed, pipeline_id)
        stream = fold(self._seed, _AUGMENTATION_STREAM, pipeline_id)
        dataset = self._cropped(dataset, num_examples, num_threads, stream)
        return sources.prefetched(dataset, context, num_threads)

    def whole_split(self, split: str, num_examples: int) -> tf.data.Dataset:
        """Returns one pass over a split; ``is_example`` tells examples from padding."""
        assert self.source is not None
        num_threads = self._config.num_input_threads
        dataset = self.source.read(split, threads=num_threads)
        dataset = self._labelled(dataset, num_threads)
        dataset = self._cropped(dataset, num_examples, num_threads, None)
        options = replicator.default_data_options(num_threads=num_threads)
        return dataset.prefetch(1).with_options(options)

    def normalised(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Returns a batch with normalised images; called in the step."""
        if batch["image"].dtype != tf.uint8:
            return batch
        pixels = tf.cast(batch["image"], tf.float32)
        return {**batch, "image": self.augmentation.normalise(pixels)}

    def _labelled(self, dataset: tf.data.Dataset, num_threads: int) -> tf.data.Dataset:
        """Returns examples whose labels are checked, int32."""

        def check(example: dict[str, Any]) -> dict[str, Any]:
            assert self.source is not None
            label = tf.cast(example["label"], tf.int32)
            is_inside = (label >= 0) & (label < self.source.num_classes)
            text = tf.strings.join(
                ["label outside the classes: ", tf.strings.as_string(label)]
            )
            with tf.control_dependencies([tf.debugging.Assert(is_inside, [text])]):
                return {**example, "label": tf.identity(label)}

        return _mapped(dataset, check, num_threads)

    def _cropped(
        self,
        dataset: tf.data.Dataset,
        num_examples: int,
        num_threads: int,
        stream: int | None,
    ) -> tf.data.Dataset:
        """Returns batches of images; ``stream`` of random crops, None of central ones.

        Small images of one size are cropped a batch at a time by one kernel: op by op
        would take longer than the step leaves. A JPEG is decoded inside its crop.
        """
        assert self.source is not None
        height, width, _ = shape = self.source.image_shape
        is_small = height and width and height * width <= _MOST_SMALL_PIXELS
        encoding = self.source.encoding
        is_sent_as_bytes = stream is not None and self._config.input_dtype == "uint8"

        def batched(dataset: tf.data.Dataset) -> tf.data.Dataset:
            if stream is not None:
                return dataset.batch(num_examples, drop_remainder=True)
            pad = functools.partial(_padded, size=num_examples)
            return _mapped(dataset.batch(num_examples), pad, num_threads)

        def decode(example: dict[str, Any]) -> dict[str, Any]:
            return {**example, "image": decoded(example["image"], shape)}

        def crop(index: Any, part: dict[str, Any]) -> dict[str, Any]:
            seed = None if stream is None else _seed(stream, index)
            size = self._config.image_size
            if is_small:
                box = self.augmentation.boxes(num_examples, seed)
                numbers = tf.range(tf.shape(part["image"])[0])
                image = tf.image.crop_and_resize(
                    part["image"], box, numbers, [size] * 2
                )
            else:
                image = self.augmentation.crop(part["image"], seed, encoding, size)
            if is_sent_as_bytes:
                return {**part, "image": tf.saturate_cast(tf.round(image), tf.uint8)}
            return {**part, "image": self.augmentation.normalise(image)}

        if is_small:
            dataset = batched(_mapped(dataset, decode, num_threads))
        dataset = _mapped(dataset.enumerate(), crop, num_threads)
        return dataset if is_small else batched(dataset)

    def _random_batch(self, num_examples: int) -> dict[str, tf.Tensor]:
        size, num_classes = self._config.image_size, self._config.num_classes
        seed = _seed(fold(self._seed, _AUGMENTATION_STREAM, 0), 0)
        shape = [num_examples, size, size, 3]
        draw = functools.partial(tf.random.stateless_uniform, seed=seed, dtype=tf.int32)
        if self._config.input_dtype == "uint8":
            image = tf.cast(draw(shape, maxval=_NUM_LEVELS), tf.uint8)
        else:
            image = tf.random.stateless_normal(shape, seed)
        return {"image": image, "label": draw([num_examples], maxval=num_classes)}


def decoded(encoded: Any, shape: tuple[int | None, ...]) -> Any:
    """Decodes one whole image to [height, width, 3], uint8."""
    image = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    image.set_shape((*shape[:2], 3))
    return image


def _mapped(dataset: tf.data.Dataset, fn: Any, num_threads: int) -> tf.data.Dataset:
    """Maps a function over elements with the pipeline's threads, in their order."""
    # One thread needs no parallel map, whose overhead exceeds the work on small images.
    if num_threads == 1:
        return dataset.map(fn)
    return dataset.map(fn, num_parallel_calls=num_threads, deterministic=True)


def _padded(batch: dict[str, Any], *, size: int) -> dict[str, Any]:
    num_examples = tf.shape(batch["label"])[0]
    padded = {}
    for key, value in batch.items():
        filling = [[0, size - num_examples], *([[0, 0]] * (value.shape.rank - 1))]
        shape = (size, *value.shape[1:])
        padded[key] = tf.ensure_shape(tf.pad(value, filling), shape)
    return {**padded, "is_example": tf.range(size) < num_examples}


def _seed(stream: int, index: Any) -> tf.Tensor:
    return tf.stack([tf.constant(stream, tf.int64), tf.cast(index, tf.int64)])
