"""Data: the embedded digits, any TFDS set, sharding and determinism."""

from __future__ import annotations

import collections
import dataclasses
import multiprocessing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from sklearn.datasets import load_digits

import replicator
from workloads import catalog
from workloads.data import audit, images, names, pipeline, sources
from workloads.data.digits import digits_dataset_builder

if TYPE_CHECKING:
    import pathlib

NUM_JPEGS = 12


def _config(**changes: Any) -> pipeline.PipelineConfig:
    settings: dict[str, Any] = {
        "per_replica_batch_size": 8,
        "image_size": 32,
        "seed": 5,
        "shuffle_buffer_size": 2048,
        "num_threads": 1,
    }
    return pipeline.PipelineConfig(**{**settings, **changes})


def _contexts(num_pipelines: int) -> list[replicator.InputContext]:
    return [
        replicator.InputContext(
            num_input_pipelines=num_pipelines,
            input_pipeline_id=index,
            num_replicas_in_sync=num_pipelines,
        )
        for index in range(num_pipelines)
    ]


@pytest.fixture(scope="module")
def digits() -> sources.Source:
    """The embedded digits, prepared in the session's directory."""
    return sources.open_source("digits")


@pytest.fixture(scope="module")
def photos(data_dirs: pathlib.Path) -> sources.Source:
    """A TFDS set of JPEGs of different sizes, as a user would have prepared it."""
    rng = np.random.default_rng(0)

    def examples(count: int) -> Any:
        for index in range(count):
            shape = (40 + index, 50, 3)
            image = rng.integers(0, 256, shape, np.uint8)
            yield index, {"image": image, "label": index % 3}

    tfds.dataset_builders.store_as_tfds_dataset(
        name="photos",
        version="1.0.0",
        features=tfds.features.FeaturesDict(
            {
                "image": tfds.features.Image(
                    shape=(None, None, 3), encoding_format="jpeg"
                ),
                "label": tfds.features.ClassLabel(num_classes=3),
            }
        ),
        split_datasets={
            "train": list(examples(NUM_JPEGS)),
            "validation": list(examples(5)),
        },
        data_dir=data_dirs / "tfds",
        disable_shuffling=True,
    )
    return sources.open_source("photos")


# The embedded digits.


def test_digits_split_is_exact_and_stratified() -> None:
    """1,438 and 359 digits, disjoint, each class with its share to one example."""
    train, test = digits_dataset_builder.stratified_split()
    labels = load_digits().target

    assert (len(train), len(test)) == (1438, 359)
    assert set(range(1797)) == {*train, *test}
    share = np.bincount(labels) * 359 / 1797
    assert np.abs(np.bincount(labels[test]) - share).max() < 1


def test_digits_split_is_fixed() -> None:
    """The split is part of the data set's version: these are its first indices."""
    _, test = digits_dataset_builder.stratified_split()

    assert list(test[:5]) == [2, 4, 5, 21, 27]


def test_digits_are_stored_as_png_and_decode_to_scikit_learns_pixels(
    digits: sources.Source,
) -> None:
    """The bytes in the TFRecords are PNG and hold the original 17 levels of ink."""
    raw = digits.builder.as_dataset(
        split="test", decoders={"image": tfds.decode.SkipDecoding()}
    )
    encoded = [example["image"] for example in raw.as_numpy_iterator()]
    decoded = np.stack(
        [images.decode(e, encoding="png", shape=(8, 8, 1)).numpy() for e in encoded]
    )
    ink = np.round(decoded[..., 0].astype(np.float64) * 16 / 255)
    _, test = digits_dataset_builder.stratified_split()
    expected = collections.Counter(i.tobytes() for i in load_digits().images[test])

    assert all(e.startswith(b"\x89PNG") for e in encoded)
    assert expected == collections.Counter(i.tobytes() for i in ink)


def test_digits_are_prepared_once_by_many_processes(tmp_path: pathlib.Path) -> None:
    """Two processes that prepare at once both get the same complete set."""
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(2) as pool:
        found = pool.map(_prepare_and_count, [str(tmp_path)] * 2, chunksize=1)

    assert found == [(1438, 359)] * 2
    assert [path.name for path in (tmp_path / "digits").iterdir()] == ["1.0.0"]


def _prepare_and_count(root: str) -> tuple[int, int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REPLICATOR_DATA_DIR", root)
        source = sources.open_source("digits")
    return source.num_train_examples, source.num_evaluation_examples


def test_unwritable_cache_says_what_to_set(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in the way of the cache directory is one clear line."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("REPLICATOR_DATA_DIR", str(tmp_path / "file" / "cache"))

    with pytest.raises(
        ValueError, match=r"digits cannot be prepared .*set REPLICATOR_DATA_DIR"
    ):
        sources.open_source("digits")


# Batches.


def test_batches_are_as_documented(digits: sources.Source) -> None:
    """Shapes and types are static, pixels are normalised, labels are digits."""
    batch = next(iter(pipeline.train_dataset(digits, _contexts(1)[0], _config())))

    assert batch["image"].shape == (8, 32, 32, 3)
    assert (batch["image"].dtype, batch["label"].dtype) == (tf.float32, tf.int32)
    assert abs(float(tf.reduce_mean(batch["image"]))) < 0.5
    assert 0.5 < float(tf.math.reduce_std(batch["image"])) < 1.5


def test_augmented_digit_keeps_its_label(digits: sources.Source) -> None:
    """Ids join augmented batches to the stored labels and pixels."""
    stored = {}
    for batch in pipeline.evaluation_dataset(
        dataclasses.replace(digits, evaluation_split="train"), _config()
    ):
        for row, example_id in enumerate(batch["example_id"].numpy()):
            stored[example_id] = (batch["image"][row], batch["label"][row])
    batch = next(iter(pipeline.train_dataset(digits, _contexts(1)[0], _config())))
    for row, example_id in enumerate(batch["example_id"].numpy()):
        image, label = stored[example_id]
        flat = [tf.reshape(i, [-1]).numpy() for i in (image, batch["image"][row])]

        assert int(label) == int(batch["label"][row])
        assert np.corrcoef(*flat)[0, 1] > 0.3


def test_seed_determines_order_and_augmentation(digits: sources.Source) -> None:
    """The same seed gives the same batches over an epoch's end; another one others."""

    def batches(seed: int) -> list[Any]:
        dataset = pipeline.train_dataset(digits, _contexts(1)[0], _config(seed=seed))
        return list(dataset.take(200).as_numpy_iterator())

    first, again, other = batches(5), batches(5), batches(6)

    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a["example_id"], b["example_id"])
        np.testing.assert_array_equal(a["image"], b["image"])
    assert (first[0]["example_id"] != other[0]["example_id"]).any()
    ids = np.concatenate([batch["example_id"] for batch in first])
    assert len(set(ids[:1438])) == 1438
    assert (ids[:100] != ids[1438:1538]).any()


def test_threads_do_not_change_batches(digits: sources.Source) -> None:
    """Parallel maps keep the order, so threads are no part of a result."""
    context = _contexts(1)[0]
    one = pipeline.train_dataset(digits, context, _config())
    four = pipeline.train_dataset(digits, context, _config(num_threads=4))
    for a, b in zip(one.take(5), four.take(5), strict=True):
        np.testing.assert_array_equal(a["image"], b["image"])
        np.testing.assert_array_equal(a["example_id"], b["example_id"])


def test_evaluation_counts_each_held_out_example_once(digits: sources.Source) -> None:
    """The filling of the last batch is marked; 359 examples remain."""
    batches = list(
        pipeline.evaluation_dataset(digits, _config(per_replica_batch_size=64))
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


def test_synthetic_batches_are_cached() -> None:
    """Synthetic data is one batch again and again, with ids that say so."""
    dataset = pipeline.synthetic_dataset(_config(), num_classes=1000)
    first, second = dataset.take(2)

    np.testing.assert_array_equal(first["image"], second["image"])
    assert set(first["example_id"].numpy()) == {-1}
    assert 10 < int(tf.reduce_max(first["label"])) < 1000


# Sharding and its audit.


@pytest.mark.parametrize("num_pipelines", [1, 2, 7])
def test_shards_cover_the_split_exactly_once(
    digits: sources.Source, num_pipelines: int
) -> None:
    """Over all pipelines an epoch has every id once, also where shares differ."""
    check = audit.check_shards(digits, _contexts(num_pipelines))

    assert check.is_passed, check.detail
    assert "0 missing, 0 read more than once" in check.detail


def test_audit_catches_a_pipeline_that_ignores_its_context(
    digits: sources.Source,
) -> None:
    """Two pipelines that both read everything fail the audit."""
    check = audit.check_shards(digits, _contexts(2), lambda *_: "train")

    assert not check.is_passed
    assert "0 missing, 1438 read more than once" in check.detail


def test_audit_catches_a_repeated_context(digits: sources.Source) -> None:
    """A replicator that gives both pipelines the same id fails the audit."""
    check = audit.check_shards(digits, [_contexts(2)[0]] * 2)

    assert not check.is_passed
    assert "719 missing, 719 read more than once" in check.detail


def test_audit_of_a_large_split_checks_ranges(
    digits: sources.Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the reading limit the ranges are checked, and still catch a repeat."""
    monkeypatch.setattr(audit, "_MOST_IDS_READ", 10)

    good = audit.check_shards(digits, _contexts(3))
    bad = audit.check_shards(digits, [_contexts(3)[0]] * 3)

    assert good.is_passed, good.detail
    assert not bad.is_passed
    assert "ids not read" in good.detail


def test_pipelines_of_other_processes_are_taken_into_account(digits):
    """One worker of three sees its own context; a wrong pair of own ones is found."""
    good = audit.check_shards(digits, [_contexts(3)[1]])
    bad = audit.check_shards(digits, [_contexts(3)[1]] * 2)

    assert good.is_passed
    assert good.detail.startswith("3 input pipelines")
    assert not bad.is_passed


def test_pipelines_of_different_contexts_read_different_examples(
    digits: sources.Source,
) -> None:
    """What training pipelines yield in their first epoch is disjoint and complete."""
    seen = []
    for context in _contexts(2):
        dataset = pipeline.train_dataset(
            digits, context, _config(per_replica_batch_size=719)
        )
        seen.append(set(next(iter(dataset))["example_id"].numpy()))

    assert len(seen[0] | seen[1]) == 1438


def test_consumed_audit_catches_a_batch_given_to_two_replicas() -> None:
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


def test_audit_of_no_step_fails() -> None:
    """Nothing recorded is no proof."""
    assert not audit.check_consumed([], first_epoch_size=8).is_passed


def test_more_pipelines_than_examples_is_an_error(photos: sources.Source) -> None:
    """A pipeline without an example is refused with both numbers."""
    with pytest.raises(
        ValueError, match=r"12 training examples for 13 input pipelines"
    ):
        pipeline.shard(photos, _contexts(13)[12])


# Any TFDS set.


def test_jpeg_crop_equals_the_crop_of_the_whole_image(photos: sources.Source) -> None:
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


def test_tfds_set_of_jpegs_is_read_like_the_digits(photos: sources.Source) -> None:
    """Large images come through their own path with the same batch."""
    config = _config(per_replica_batch_size=4, num_threads=2)
    batch = next(iter(pipeline.train_dataset(photos, _contexts(1)[0], config)))
    evaluated = list(pipeline.evaluation_dataset(photos, config))

    assert (
        photos.evaluation_split,
        photos.num_evaluation_examples,
        photos.num_classes,
    ) == ("validation", 5, 3)
    assert batch["image"].shape == (4, 32, 32, 3)
    assert [int(tf.math.count_nonzero(b["is_example"])) for b in evaluated] == [4, 1]
    catalog.check_data("resnet50", "photos")
    catalog.check_data("resnet50", "photos:1.0.0")


def test_newest_prepared_version_is_read(
    photos: sources.Source, data_dirs: pathlib.Path
) -> None:
    """Version 1.10.0 is newer than 1.9.0."""
    original = data_dirs / "tfds" / "photos" / "1.0.0"
    for version in ("1.9.0", "1.10.0"):
        place = data_dirs / "tfds" / "photos_again" / version
        place.mkdir(parents=True)
        for file in original.iterdir():
            (place / file.name).write_bytes(file.read_bytes())

    assert names.find_prepared("photos_again").name == "1.10.0"
    assert names.find_prepared("photos_again:1.9.0").name == "1.9.0"


def test_set_without_labels_is_refused(data_dirs: pathlib.Path) -> None:
    """A prepared set that is no image classification says what it holds."""
    tfds.dataset_builders.store_as_tfds_dataset(
        name="sentences",
        version="1.0.0",
        features=tfds.features.FeaturesDict({"text": tfds.features.Text()}),
        split_datasets={"train": [(0, {"text": "a"})]},
        data_dir=data_dirs / "tfds",
    )

    with pytest.raises(
        ValueError,
        match=r"not an image classification set.*but they hold text \(Text\)",
    ):
        catalog.check_data("resnet50", "sentences")


def test_damaged_set_says_to_prepare_it_again(data_dirs: pathlib.Path) -> None:
    """A directory without feature descriptions is named with the mending command."""
    place = data_dirs / "tfds" / "damaged" / "1.0.0"
    place.mkdir(parents=True)
    (place / "dataset_info.json").write_text("{}")

    with pytest.raises(ValueError, match=r"no readable features\.json .*--overwrite"):
        catalog.check_data("resnet50", "damaged")


# Random crops.


def test_random_boxes_stay_inside_and_keep_their_area() -> None:
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


def test_center_box_of_a_whole_image_is_a_resize() -> None:
    """Evaluation of digits keeps every pixel: corners stay corners."""
    image = tf.random.stateless_uniform([1, 8, 8, 3], [0, 1], maxval=255.0)
    boxes = images.center_boxes(1, images.DIGITS)

    np.testing.assert_allclose(images.crop_batch(image, boxes, 8), image, atol=1e-3)
