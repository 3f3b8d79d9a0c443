"""Random crops of training and the centre of evaluation."""

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from workloads.data import images


def test_random_boxes_stay_inside_and_keep_their_area():
    """Boxes lie in the image; digits are never mirrored, photographs half the time."""
    seed = tf.constant([1, 2])
    upright = images.random_boxes(2000, images.DIGITS, seed).numpy()
    mirrored = images.random_boxes(2000, images.IMAGENET, seed).numpy()
    area = (upright[:, 2] - upright[:, 0]) * (upright[:, 3] - upright[:, 1])

    assert upright.min() >= 0.0
    assert max(upright.max(), mirrored.max()) <= 1.0 + 1e-6
    assert (upright[:, 3] > upright[:, 1]).all()
    assert 0.65 < area.min() < 0.75
    assert 0.45 < (mirrored[:, 3] < mirrored[:, 1]).mean() < 0.55


def test_center_box_of_a_whole_image_is_a_resize():
    """Evaluation of digits keeps every pixel: corners stay corners."""
    image = tf.random.stateless_uniform([1, 8, 8, 3], [0, 1], maxval=255.0)
    boxes = images.center_boxes(1, images.DIGITS)

    np.testing.assert_allclose(images.crop_batch(image, boxes, 8), image, atol=1e-3)


def test_jpeg_crop_equals_the_crop_of_the_whole_image(photos):
    """Decoding inside the crop gives the pixels of cropping the decoded image."""
    raw = photos.builder.as_dataset(
        split="train", decoders={"image": tfds.decode.SkipDecoding()}
    )
    encoded = next(iter(raw))["image"]
    settings = {"augmentation": images.IMAGENET, "image_size": 32}
    for index in range(4):
        seed = tf.constant([index, 7])
        fused = images.decode_random_crop(encoded, seed, encoding="jpeg", **settings)
        whole = images.decode_random_crop(encoded, seed, encoding=None, **settings)

        # A JPEG decoder interpolates colour at the crop's edge from fewer pixels.
        assert float(tf.reduce_mean(tf.abs(fused - whole))) < 6.0
