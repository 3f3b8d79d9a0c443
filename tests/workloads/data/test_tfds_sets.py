"""Any prepared TFDS set of labelled images, and what is wrong with others."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from workloads import catalog
from workloads.data import names, pipeline, sources


def test_tfds_set_of_jpegs_is_read_like_the_digits(photos, contexts, make_config):
    """Large images come through their own path with the same batch."""
    config = make_config(per_replica_batch_size=4, num_threads=2)
    batch = next(iter(pipeline.train_dataset(photos, contexts(1)[0], config)))
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


def test_newest_prepared_version_is_read(photos, data_dirs):
    """Version 1.10.0 is newer than 1.9.0."""
    original = data_dirs / "tfds" / "photos" / "1.0.0"
    for version in ("1.9.0", "1.10.0"):
        place = data_dirs / "tfds" / "photos_again" / version
        place.mkdir(parents=True)
        for file in original.iterdir():
            (place / file.name).write_bytes(file.read_bytes())

    assert names.find_prepared("photos_again").name == "1.10.0"
    assert names.find_prepared("photos_again:1.9.0").name == "1.9.0"


def test_set_without_labels_is_refused(data_dirs):
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


@pytest.mark.parametrize(
    ("name", "cost"),
    [
        ("cifar10", r"which downloads up to 0\.17 GB and writes the set beside it"),
        ("imagenet_resized/64x64", r"which downloads up to 19 GB and writes the set"),
        ("imagenet2012", r"which takes up to 155 GB that you download by hand"),
    ],
)
def test_a_set_that_is_not_prepared_says_what_to_do(tmp_path, name, cost):
    """The command, what it costs, and the set that is there already."""
    with pytest.raises(ValueError, match=cost) as raised:
        catalog.check_data("resnet50", name, tmp_path)

    text = str(raised.value)
    assert f"run 'tfds build {name} --data_dir {tmp_path}'" in text
    assert text.endswith("or use --data digits, which needs no download")
    assert "\n" not in text


def _store(data_dir, name, image, examples, classes=3):
    """Writes a set whose two splits hold the same examples."""
    tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version="1.0.0",
        features=tfds.features.FeaturesDict(
            {"image": image, "label": tfds.features.ClassLabel(num_classes=classes)}
        ),
        split_datasets={"train": examples, "test": examples},
        data_dir=data_dir,
    )


def test_a_set_is_found_where_it_is_said_to_be(tmp_path):
    """--data-dir goes before TFDS_DATA_DIR."""
    pixels = np.zeros((8, 8, 3), np.uint8)
    image = tfds.features.Image(shape=(8, 8, 3))
    _store(tmp_path, "elsewhere", image, [(0, {"image": pixels, "label": 0})])

    catalog.check_data("resnet50", "elsewhere", tmp_path)
    with pytest.raises(ValueError, match=r"data 'elsewhere' is unknown"):
        catalog.check_data("resnet50", "elsewhere")


@pytest.mark.parametrize(
    ("shape", "dtype", "found"),
    [
        ((8, 8, 2), np.uint8, r"shape \[8, 8, 2\] and type uint8"),
        ((8, 8, 1), np.uint16, r"shape \[8, 8, 1\] and type uint16"),
    ],
)
def test_images_of_another_shape_are_refused(tmp_path, shape, dtype, found):
    feature = tfds.features.Image(shape=shape, dtype=dtype, encoding_format="png")
    example = {"image": np.zeros(shape, dtype), "label": 0}
    _store(tmp_path, "odd", feature, [(0, example)])

    with pytest.raises(ValueError, match=found + r", but needed are \[height, width"):
        catalog.check_data("resnet50", "odd", tmp_path)


def test_a_label_outside_the_classes_is_named(data_dirs, make_config):
    """As in test splits whose labels are secret, where all are -1."""
    image = tfds.features.Image(shape=(8, 8, 3), encoding_format="png")
    examples = [
        (index, {"image": np.zeros((8, 8, 3), np.uint8), "label": -1})
        for index in range(4)
    ]
    _store(data_dirs / "tfds", "secret", image, examples)
    source = sources.open_source("secret")
    dataset = pipeline.evaluation_dataset(source, make_config())

    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        list(dataset)
    assert (
        "data 'secret' has an example with label -1, which is outside its 3 classes (0 "
        "to 2): fix its labels, or use another data set"
    ) == source.explain(raised.value)


def test_damaged_set_says_to_prepare_it_again(data_dirs):
    """A directory without feature descriptions is named, with the fix."""
    place = data_dirs / "tfds" / "damaged" / "1.0.0"
    place.mkdir(parents=True)
    (place / "dataset_info.json").write_text("{}")

    with pytest.raises(ValueError, match=r"no readable features\.json .*--overwrite"):
        catalog.check_data("resnet50", "damaged")
