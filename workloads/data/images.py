"""Decoding and augmentation of images, as tf.data maps.

There are two paths. Small images of one stored size (digits, CIFAR)
are cropped and resized a batch at a time by one kernel: op by op they would take more
time than the step leaves on cores that the replicas use too. Large images are decoded
one by one, and a JPEG only inside its crop.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import tensorflow as tf


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Augmentation:
    """How a training image is augmented, and how every image is normalised.

    Attributes:
      area_range: Fraction of the image's area that a random crop keeps.
      aspect_range: Width over height of the crop, in stored pixels.
      flips: Whether half of the images are mirrored.
      evaluation_crop: Fraction of height and width that evaluation keeps, centred.
      mean, stddev: Moments of each channel, for pixels in [0, 1].
    """

    area_range: tuple[float, float]
    aspect_range: tuple[float, float]
    flips: bool
    evaluation_crop: float
    mean: tuple[float, float, float]
    stddev: tuple[float, float, float]


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


def decode(encoded: Any, *, encoding: str | None, shape: tuple[int | None, ...]) -> Any:
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
    """Crops and resizes a batch bilinearly.

    Returns:
      [num_images, image_size, image_size, 3], float32, in [0, 255].
    """
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
    """Decodes a random crop of one large image; a JPEG only inside the crop.

    Returns:
      [image_size, image_size, 3], float32, in [0, 255].
    """
    if encoding == "jpeg":
        whole, shape = None, tf.io.extract_jpeg_shape(encoded)
    else:
        whole = decode(encoded, encoding=encoding, shape=(None, None, 3))
        shape = tf.shape(whole)
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
    image = _decode_window(encoded, whole, window)
    image = _resize(image, image_size)
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
    if encoding == "jpeg":
        whole, shape = None, tf.io.extract_jpeg_shape(encoded)
    else:
        whole = decode(encoded, encoding=encoding, shape=(None, None, 3))
        shape = tf.shape(whole)
    shorter = tf.cast(tf.minimum(shape[0], shape[1]), tf.float32)
    side = tf.cast(tf.round(shorter * augmentation.evaluation_crop), tf.int32)
    begin = (shape[:2] - side) // 2
    window = tf.stack([begin[0], begin[1], side, side])
    return _resize(_decode_window(encoded, whole, window), image_size)


def normalise(images: tf.Tensor, augmentation: Augmentation) -> tf.Tensor:
    """Returns images in [0, 255] with zero mean and unit variance per channel."""
    mean = 255.0 * tf.constant(augmentation.mean)
    stddev = 255.0 * tf.constant(augmentation.stddev)
    return (images - mean) / stddev


def _decode_window(
    encoded: Any, whole: tf.Tensor | None, window: tf.Tensor
) -> tf.Tensor:
    if whole is None:
        return tf.io.decode_and_crop_jpeg(encoded, window, channels=3)
    return tf.image.crop_to_bounding_box(
        whole, window[0], window[1], window[2], window[3]
    )


def _resize(image: tf.Tensor, image_size: int) -> tf.Tensor:
    resized = tf.image.resize(image, [image_size, image_size], method="bicubic")
    return tf.clip_by_value(resized, 0.0, 255.0)
