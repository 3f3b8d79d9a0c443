"""Pixels as they are sent to devices: normalised by the pipeline, or there."""

import numpy as np
import pytest
import tensorflow as tf

from workloads.data import images, pipeline

# Rounding moves a pixel by up to half of one of 255 levels, whose deviation is 0.22 of
# the scale or more.
LARGEST_ROUNDING = 0.5 / 255 / 0.224 + 1e-5


@pytest.mark.parametrize("data", ["digits", "photos"])
def test_pixels_that_were_sent_as_bytes_are_normalised_on_the_device(
    data, digits, photos, contexts, make_config
):
    """As by the pipeline, to the rounding of a pixel, with a quarter of the bytes."""
    source = {"digits": digits, "photos": photos}[data]
    sizes = {"per_replica_batch_size": 4}
    plain, small = (
        next(
            iter(
                pipeline.train_dataset(
                    source, contexts(1)[0], make_config(input_dtype=dtype, **sizes)
                )
            )
        )
        for dtype in ("float32", "uint8")
    )
    shown = pipeline.on_device(small, images.augmentation_of(source.name))

    assert tf.uint8 == small["image"].dtype
    assert 4 * small["image"].numpy().nbytes == plain["image"].numpy().nbytes
    np.testing.assert_allclose(
        plain["image"], shown["image"], rtol=0, atol=LARGEST_ROUNDING
    )
    np.testing.assert_array_equal(plain["example_id"], shown["example_id"])


def test_normalised_images_stay_as_they_are(digits, contexts, make_config):
    """No operation is added to a step whose pipeline normalises."""
    batch = next(iter(pipeline.train_dataset(digits, contexts(1)[0], make_config())))

    assert pipeline.on_device(batch, images.DIGITS) is batch


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_synthetic_images_have_the_type_that_is_sent(dtype, make_config):
    """Random levels of every pixel, or normal values."""
    dataset = pipeline.synthetic_dataset(
        make_config(input_dtype=dtype), num_classes=1000
    )
    image = pipeline.on_device(next(iter(dataset)), images.IMAGENET)["image"].numpy()

    assert dtype == dataset.element_spec["image"].dtype.name
    assert abs(image.mean()) < 0.5
    assert 0.5 < image.std() < 1.5
