"""Pipelines of images: batches, crops, pixels, shards that share a split exactly."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from workloads.data import audit, pipeline


def test_batches_are_as_documented(digits, contexts, make_config):
    batch = next(iter(pipeline.train_dataset(digits, contexts(1)[0], make_config())))

    assert batch["image"].shape == (8, 32, 32, 3)
    assert (batch["image"].dtype, batch["label"].dtype) == (tf.float32, tf.int32)
    assert abs(float(tf.reduce_mean(batch["image"]))) < 0.5
    assert 0.5 < float(tf.math.reduce_std(batch["image"])) < 1.5


def test_augmented_digit_keeps_its_label(digits, contexts, make_config):
    """Ids join augmented batches to the stored labels and pixels."""
    stored = {}
    for batch in pipeline.evaluation_dataset(
        dataclasses.replace(digits, evaluation_split="train"), make_config()
    ):
        for row, example_id in enumerate(batch["example_id"].numpy()):
            stored[example_id] = (batch["image"][row], batch["label"][row])
    batch = next(iter(pipeline.train_dataset(digits, contexts(1)[0], make_config())))
    for row, example_id in enumerate(batch["example_id"].numpy()):
        image, label = stored[example_id]
        flat = [tf.reshape(i, [-1]).numpy() for i in (image, batch["image"][row])]

        assert int(label) == int(batch["label"][row])
        assert np.corrcoef(*flat)[0, 1] > 0.3


def test_seed_determines_order_and_augmentation(digits, contexts, make_config):
    """The same seed gives the same batches over an epoch's end; another one others."""

    def batches(seed, count):
        config = make_config(seed=seed, per_replica_batch_size=32)
        dataset = pipeline.train_dataset(digits, contexts(1)[0], config)
        return list(dataset.take(count).as_numpy_iterator())

    first, again, (other,) = batches(5, 50), batches(5, 50), batches(6, 1)

    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a["example_id"], b["example_id"])
        np.testing.assert_array_equal(a["image"], b["image"])
    assert (first[0]["example_id"] != other["example_id"]).any()
    ids = np.concatenate([batch["example_id"] for batch in first])
    assert len(set(ids[:1438])) == 1438
    assert (ids[:100] != ids[1438:1538]).any()


def test_threads_do_not_change_batches(digits, contexts, make_config):
    """Parallel maps keep the order, so threads are no part of a result."""
    context = contexts(1)[0]
    one = pipeline.train_dataset(digits, context, make_config())
    four = pipeline.train_dataset(digits, context, make_config(num_threads=4))
    for a, b in zip(one.take(5), four.take(5), strict=True):
        np.testing.assert_array_equal(a["image"], b["image"])
        np.testing.assert_array_equal(a["example_id"], b["example_id"])


def test_evaluation_counts_each_held_out_example_once(digits, make_config):
    """The filling of the last batch is marked; 359 examples remain."""
    batches = list(
        pipeline.evaluation_dataset(digits, make_config(per_replica_batch_size=64))
    )
    ids = [
        int(example_id)
        for batch in batches
        for example_id, is_example in zip(
            batch["example_id"], batch["is_example"], strict=True
        )
        if is_example
    ]

    assert {(64, 32, 32, 3)} == {tuple(batch["image"].shape) for batch in batches}
    assert (len(ids), len(set(ids))) == (359, 359)


def test_synthetic_batches_are_cached(make_config):
    """Synthetic data is one batch again and again, with ids that say so."""
    dataset = pipeline.synthetic_dataset(make_config(), num_classes=1000)
    first, second = dataset.take(2)

    np.testing.assert_array_equal(first["image"], second["image"])
    assert set(first["example_id"].numpy()) == {-1}
    assert 10 < int(tf.reduce_max(first["label"])) < 1000


def test_random_boxes_stay_inside_and_keep_their_area():
    """Boxes lie in the image; digits are never mirrored, photographs half the time."""
    seed = tf.constant([1, 2])
    upright = pipeline.random_boxes(2000, pipeline.DIGITS, seed).numpy()
    mirrored = pipeline.random_boxes(2000, pipeline.IMAGENET, seed).numpy()
    area = (upright[:, 2] - upright[:, 0]) * (upright[:, 3] - upright[:, 1])

    assert upright.min() >= 0.0
    assert max(upright.max(), mirrored.max()) <= 1.0 + 1e-6
    assert (upright[:, 3] > upright[:, 1]).all()
    assert 0.65 < area.min() < 0.75
    assert 0.45 < (mirrored[:, 3] < mirrored[:, 1]).mean() < 0.55


def test_center_box_of_a_whole_image_is_a_resize():
    """Evaluation of digits keeps every pixel: corners stay corners."""
    image = tf.random.stateless_uniform([1, 8, 8, 3], [0, 1], maxval=255.0)
    boxes = pipeline.center_boxes(1, pipeline.DIGITS)

    np.testing.assert_allclose(pipeline.crop_batch(image, boxes, 8), image, atol=1e-3)


def test_jpeg_crop_equals_the_crop_of_the_whole_image(photos):
    """Decoding inside the crop gives the pixels of cropping the decoded image."""
    raw = photos.builder.as_dataset(
        split="train", decoders={"image": tfds.decode.SkipDecoding()}
    )
    encoded = next(iter(raw))["image"]
    settings = {"augmentation": pipeline.IMAGENET, "image_size": 32}
    for index in range(4):
        seed = tf.constant([index, 7])
        fused = pipeline.decode_random_crop(encoded, seed, encoding="jpeg", **settings)
        whole = pipeline.decode_random_crop(encoded, seed, encoding=None, **settings)

        # A JPEG decoder interpolates colour at the crop's edge from fewer pixels.
        assert float(tf.reduce_mean(tf.abs(fused - whole))) < 6.0


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
    shown = pipeline.on_device(small, pipeline.augmentation_of(source.name))

    assert tf.uint8 == small["image"].dtype
    assert 4 * small["image"].numpy().nbytes == plain["image"].numpy().nbytes
    np.testing.assert_allclose(
        plain["image"], shown["image"], rtol=0, atol=LARGEST_ROUNDING
    )
    np.testing.assert_array_equal(plain["example_id"], shown["example_id"])


def test_normalised_images_stay_as_they_are(digits, contexts, make_config):
    """No operation is added to a step whose pipeline normalises."""
    batch = next(iter(pipeline.train_dataset(digits, contexts(1)[0], make_config())))

    assert pipeline.on_device(batch, pipeline.DIGITS) is batch


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_synthetic_images_have_the_type_that_is_sent(dtype, make_config):
    """Random levels of every pixel, or normal values."""
    dataset = pipeline.synthetic_dataset(
        make_config(input_dtype=dtype), num_classes=1000
    )
    image = pipeline.on_device(next(iter(dataset)), pipeline.IMAGENET)["image"].numpy()

    assert dtype == dataset.element_spec["image"].dtype.name
    assert abs(image.mean()) < 0.5
    assert 0.5 < image.std() < 1.5


@pytest.mark.parametrize(
    "num_pipelines",
    [pytest.param(count, marks=pytest.mark.full) for count in (1, 2)] + [3],
)
def test_shards_cover_the_split_exactly_once(digits, num_pipelines, contexts):
    """Over all pipelines an epoch has every id once, also where shares differ."""
    check = audit.check_shards(digits, contexts(num_pipelines))

    assert check.is_passed, check.detail
    assert "0 missing, 0 read more than once" in check.detail


def test_audit_catches_a_pipeline_that_ignores_its_context(digits, contexts):
    check = audit.check_shards(digits, contexts(2), lambda *_: "train")

    assert not check.is_passed
    assert "0 missing, 1438 read more than once" in check.detail


def test_audit_catches_a_repeated_context(digits, contexts):
    check = audit.check_shards(digits, [contexts(2)[0]] * 2)

    assert not check.is_passed
    assert "719 missing, 719 read more than once" in check.detail


def test_audit_of_a_large_split_checks_ranges(digits, monkeypatch, contexts):
    """Beyond the reading limit the ranges are checked, and still catch a repeat."""
    monkeypatch.setattr(audit, "_MOST_IDS_READ", 10)

    good = audit.check_shards(digits, contexts(3))
    bad = audit.check_shards(digits, [contexts(3)[0]] * 3)

    assert good.is_passed, good.detail
    assert not bad.is_passed
    assert "ids not read" in good.detail


def test_pipelines_of_other_processes_are_taken_into_account(digits, contexts):
    """One worker of three sees its own context; a wrong pair of own ones is found."""
    good = audit.check_shards(digits, [contexts(3)[1]])
    bad = audit.check_shards(digits, [contexts(3)[1]] * 2)

    assert good.is_passed
    assert good.detail.startswith("3 input pipelines")
    assert not bad.is_passed


def test_pipelines_of_different_contexts_read_different_examples(
    digits, contexts, make_config
):
    """What training pipelines yield in their first epoch is disjoint and complete."""
    seen = []
    for context in contexts(2):
        dataset = pipeline.train_dataset(
            digits, context, make_config(per_replica_batch_size=719)
        )
        seen.append(set(next(iter(dataset))["example_id"].numpy()))

    assert len(seen[0] | seen[1]) == 1438


def test_consumed_audit_catches_a_batch_given_to_two_replicas():
    """An id twice within a step, or twice within an epoch, fails; later epochs pass."""
    good = audit.check_consumed(
        [(4, [1, 2, 3, 4]), (8, [5, 6, 7, 8])], first_epoch_size=8
    )
    same_step = audit.check_consumed([(4, [1, 2, 1, 2])], first_epoch_size=8)
    same_epoch = audit.check_consumed(
        [(4, [1, 2, 3, 4]), (8, [5, 6, 7, 1])], first_epoch_size=8
    )
    next_epoch = audit.check_consumed(
        [(4, [1, 2, 3, 4]), (12, [5, 6, 7, 1])], first_epoch_size=8
    )
    # The last of one epoch was the first of the next: a shuffle may do that.
    both_epochs = audit.check_consumed(
        [(4, [1, 2, 3, 4]), (12, [5, 6, 5, 1])], first_epoch_size=8
    )

    assert good.is_passed
    assert next_epoch.is_passed
    assert both_epochs.is_passed
    assert not same_step.is_passed
    assert not same_epoch.is_passed
    assert (
        "8 examples in 2 steps of the first epoch (2 recorded), 1 of them"
        in same_epoch.detail
    )


def test_audit_of_no_step_fails():
    """Nothing recorded is no proof."""
    assert not audit.check_consumed([], first_epoch_size=8).is_passed


def test_more_pipelines_than_examples_is_an_error(photos, contexts):
    with pytest.raises(
        ValueError, match=r"12 training examples for 13 input pipelines"
    ):
        pipeline.shard(photos, contexts(13)[12])
