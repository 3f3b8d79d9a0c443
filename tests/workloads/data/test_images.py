"""Labelled images: the digits, TFDS sets and folders, and the batches made of them."""

import subprocess
import types
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from sklearn.datasets import load_digits
from small_programs import build

import replicator
from workloads import WORKLOADS
from workloads.data import DIGITS, IMAGENET, Images, open_source

NUM_JPEGS = 12


def opened(data, *, seed=5, **changes):
    settings = {
        "image_size": 32,
        "num_classes": 1000,
        "shuffle_buffer_size": 2048,
        "num_input_threads": 1,
        "cache_data": False,
        "input_dtype": "float32",
        "evaluation_batch_size": 8,
    }
    config = types.SimpleNamespace(**{**settings, **changes})
    return Images(None, config, data=data, seed=seed)


def held_out(source, size=8, split=None):
    found = opened(source.name).whole_split(split or source.evaluation_split, size)
    return list(found)


def contexts(num_pipelines):
    return [
        replicator.InputContext(
            num_input_pipelines=num_pipelines,
            input_pipeline_id=index,
            num_replicas_in_sync=num_pipelines,
        )
        for index in range(num_pipelines)
    ]


def batches_of(source, count, context=None, *, size=8, **settings):
    dataset = opened(source.name, **settings).batches(context or contexts(1)[0], size)
    return list(dataset.take(count).as_numpy_iterator())


def tensors(batch):
    return {name: tf.constant(value) for name, value in batch.items()}


def store(data_dir, name, image, examples, **splits):
    tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version="1.0.0",
        features=tfds.features.FeaturesDict(
            {"image": image, "label": tfds.features.ClassLabel(num_classes=3)}
        ),
        split_datasets={"train": examples, **(splits or {"test": examples})},
        data_dir=data_dir,
        disable_shuffling=True,
    )


@pytest.fixture(scope="module")
def digits(data_dirs):
    del data_dirs
    return open_source("digits")


@pytest.fixture(scope="module")
def photos(data_dirs):
    rng = np.random.default_rng(0)

    def examples(count):
        pixels = [rng.integers(0, 256, (40 + i, 50, 3), np.uint8) for i in range(count)]
        return [(i, {"image": of, "label": i % 3}) for i, of in enumerate(pixels)]

    image = tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg")
    place = data_dirs / "tfds"
    store(place, "photos", image, examples(NUM_JPEGS), validation=examples(5))
    return open_source("photos")


LABELS = ("cat", "dog", "eel")
# Of the training digits, as TFDS 4.9.10 has written them.
FIRST_LABELS = [3, 2, 7, 6, 0, 8, 0, 6]


def write_images(root, encoding="jpeg"):
    rng = np.random.default_rng(0)
    encode = tf.io.encode_jpeg if encoding == "jpeg" else tf.io.encode_png
    for split, count in (("train", 4), ("test", 2)):
        for label in LABELS:
            place = root / split / label
            place.mkdir(parents=True)
            for index in range(count):
                pixels = rng.integers(0, 256, (40 + index, 50, 3), np.uint8)
                suffix = ".JPG" if index else ".jpg"
                (place / f"{index}{suffix}").write_bytes(encode(pixels).numpy())
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = write_images(tmp_path_factory.mktemp("images"))
    (made / "train" / "cat" / "notes.txt").write_text("not an image")
    return made


@pytest.fixture(scope="module")
def of_folder(folder):
    return open_source(f"folder:{folder}")


def test_digits_are_split_once_and_hold_scikit_learns_pixels(digits):
    stored = load_digits()
    labels = stored.target
    index_of = {image.tobytes(): index for index, image in enumerate(stored.images)}

    def indices(split):
        encoded = digits.splits[split]["image"]
        assert all(each.startswith(b"\x89PNG") for each in encoded)
        decoded = np.stack([tf.io.decode_png(each).numpy()[..., 0] for each in encoded])
        ink = np.round(decoded.astype(np.float64) * 16 / 255)
        found = [index_of[image.tobytes()] for image in ink]
        assert digits.splits[split]["label"].tolist() == labels[found].tolist()
        return sorted(found)

    train, test = indices("train"), indices("test")

    assert len(index_of) == len(labels)  # no two digits are the same
    assert (len(train), len(test)) == (1438, 359)
    assert set(range(1797)) == {*train, *test}
    share = np.bincount(labels) * 359 / 1797
    assert np.abs(np.bincount(labels[test]) - share).max() < 1
    assert test[:5] == [2, 4, 5, 21, 27]
    assert digits.splits["train"]["label"][:8].tolist() == FIRST_LABELS


def test_a_prepared_set_is_read_like_the_digits(photos, data_dirs):
    (batch,) = batches_of(photos, 1, size=4, num_input_threads=2)
    evaluated = held_out(photos, 4)
    original = data_dirs / "tfds" / "photos" / "1.0.0"
    for version in ("1.9.0", "1.10.0"):
        place = data_dirs / "tfds" / "photos_again" / version
        place.mkdir(parents=True)
        for file in original.iterdir():
            (place / file.name).write_bytes(file.read_bytes())

    assert ("validation", 5, 3) == (
        photos.evaluation_split,
        photos.num_evaluation_examples,
        photos.num_classes,
    )
    assert batch["image"].shape == (4, 32, 32, 3)
    assert [int(tf.math.count_nonzero(b["is_example"])) for b in evaluated] == [4, 1]
    WORKLOADS["resnet50"].check_data("photos:1.0.0")
    for name, version in (("photos_again", "1.10.0"), ("photos_again:1.9.0", "1.9.0")):
        assert version == Path(open_source(name).builder.data_path).name


@pytest.mark.parametrize("num_channels", [2, 3])
def test_a_set_is_found_where_it_is_said_to_be(tmp_path, monkeypatch, num_channels):
    shape = (8, 8, num_channels)
    image = tfds.features.Image(shape=shape, encoding_format="png")
    example = {"image": np.zeros(shape, np.uint8), "label": 0}
    store(tmp_path, "elsewhere", image, [(0, example)])

    with pytest.raises(ValueError, match=r"data 'elsewhere' is unknown"):
        WORKLOADS["resnet50"].check_data("elsewhere")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    message = r"shape \[8, 8, 2\] and type uint8, but needed are \[hei"
    if num_channels == 3:
        WORKLOADS["resnet50"].check_data("elsewhere")
        (tmp_path / "elsewhere/1.0.0/features.json").unlink()
        message = r"no readable features\.json .*--overwrite"
    with pytest.raises(ValueError, match=message):
        WORKLOADS["resnet50"].check_data("elsewhere")


def test_sets_of_something_else_are_refused(data_dirs):
    place = data_dirs / "tfds"
    tfds.dataset_builders.store_as_tfds_dataset(
        name="sentences",
        version="1.0.0",
        features=tfds.features.FeaturesDict({"text": tfds.features.Text()}),
        split_datasets={"train": [(0, {"text": "a"})]},
        data_dir=place,
    )
    with pytest.raises(
        ValueError, match=r"not an image class.*they hold text \(Text\)"
    ):
        WORKLOADS["resnet50"].check_data("sentences")
    image = tfds.features.Image(shape=(8, 8, 3), encoding_format="png")
    pixels = np.zeros((8, 8, 3), np.uint8)
    store(
        place, "secret", image, [(i, {"image": pixels, "label": -1}) for i in range(4)]
    )
    source = open_source("secret")
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        held_out(source)
    assert (
        "data 'secret' has an example with label -1, which is outside its 3 classes (0 "
        "to 2): fix its labels, or use another data set"
    ) == source.explain(raised.value)


@pytest.mark.parametrize("is_cached", [False, True])
def test_the_seed_determines_order_and_augmentation(of_folder, is_cached):
    settings = {"size": 3, "cache_data": is_cached}
    first = batches_of(of_folder, 8, **settings)
    again = batches_of(of_folder, 8, num_input_threads=3, **settings)
    (other,) = batches_of(of_folder, 1, seed=6, **settings)

    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one["image"], two["image"])
        np.testing.assert_array_equal(one["example_id"], two["example_id"])
    assert (first[0]["example_id"] != other["example_id"]).any()
    ids = np.concatenate([batch["example_id"] for batch in first])
    assert set(ids[:12]) == set(ids[12:])
    assert 12 == len(set(ids))
    assert (ids[:12] != ids[12:]).any()


def test_augmented_digits_keep_their_labels(digits):
    stored = {
        example_id: (image, label)
        for whole in held_out(digits, 64, split="train")
        for image, label, example_id in zip(
            *(whole[key].numpy() for key in ("image", "label", "example_id")),
            strict=True,
        )
    }
    (batch,) = batches_of(digits, 1)
    for row, example_id in enumerate(batch["example_id"]):
        image, label = stored[example_id]

        assert label == batch["label"][row]
        assert np.corrcoef(image.ravel(), batch["image"][row].ravel())[0, 1] > 0.3


def test_synthetic_images_are_one_batch_of_the_type_that_is_sent():
    for dtype in ("float32", "uint8"):
        made = opened("synthetic", input_dtype=dtype)
        first, second = made.batches(contexts(1)[0], 8).take(2)
        image = made.normalised(first)["image"].numpy()

        np.testing.assert_array_equal(first["image"], second["image"])
        assert set(first["example_id"].numpy()) == {-1}
        assert 10 < int(tf.reduce_max(first["label"])) < 1000
        assert dtype == first["image"].dtype.name
        assert abs(image.mean()) < 0.5 < image.std() < 1.5


def test_random_boxes_stay_inside_and_keep_their_area():
    upright, mirrored = (
        kind.boxes(2000, tf.constant([1, 2])).numpy() for kind in (DIGITS, IMAGENET)
    )
    area = (upright[:, 2] - upright[:, 0]) * (upright[:, 3] - upright[:, 1])

    assert 0.0 <= upright.min() < max(upright.max(), mirrored.max()) <= 1.0 + 1e-6
    assert (upright[:, 3] > upright[:, 1]).all()
    assert 0.65 < area.min() < 0.75
    assert 0.45 < (mirrored[:, 3] < mirrored[:, 1]).mean() < 0.55


def test_jpeg_crop_equals_the_crop_of_the_whole_image(photos):
    encoded = next(iter(photos.read("train")))["image"]
    for index in range(4):
        seed = tf.constant([index, 7])
        fused, whole = (
            IMAGENET.crop(encoded, seed, encoding, 32) for encoding in ("jpeg", None)
        )

        # A JPEG decoder interpolates colour at the crop's edge from fewer pixels.
        assert float(tf.reduce_mean(tf.abs(fused - whole))) < 6.0


def test_pixels_that_were_sent_as_bytes_are_normalised_on_the_device(photos):
    (plain,), (small,) = (
        batches_of(photos, 1, input_dtype=dtype, size=4)
        for dtype in ("float32", "uint8")
    )
    shown = opened("photos").normalised(tensors(small))

    assert opened("photos").normalised(shown) is shown
    assert np.uint8 == small["image"].dtype
    assert 4 * small["image"].nbytes == plain["image"].nbytes
    # Half of one of 255 levels, whose deviation is 0.22 of the scale or more.
    atol = 0.5 / 255 / 0.224 + 1e-5
    np.testing.assert_allclose(plain["image"], shown["image"], rtol=0, atol=atol)
    np.testing.assert_array_equal(plain["example_id"], shown["example_id"])


@pytest.fixture(scope="module")
def program(of_folder):
    return build("resnet50", data=of_folder.name)


def check_of(program, name):
    (check,) = (each for each in program.sanity() if each.name == name)
    return check.is_passed, check.detail


SECOND_OF_5 = contexts(5)[1]
REPEATED = [contexts(2)[0]] * 2


@pytest.mark.parametrize(
    ("given", "changes", "message"),
    [
        (contexts(5), {}, "0 missing, 0 read more than once"),
        # Beyond the limit of reading, the ranges are checked.
        (contexts(5), {"most_ids_read": 10}, "ids not read"),
        # One worker of five sees its own context.
        ([SECOND_OF_5], {}, "5 input pipelines"),
        # A pipeline that ignores its context, contexts that repeat.
        (contexts(2), {"is_whole": True}, "0 missing, 12 read more than once"),
        (REPEATED, {}, "6 missing, 6 read more than once"),
        (REPEATED, {"most_ids_read": 10}, ""),
    ],
)
def test_shards_cover_a_split_exactly_once(
    program, monkeypatch, given, changes, message
):
    monkeypatch.setattr(program, "_contexts", given)
    if "most_ids_read" in changes:
        monkeypatch.setattr(program, "most_ids_read", changes["most_ids_read"])
    if "is_whole" in changes:
        read = type(program.source).ids
        monkeypatch.setattr(
            type(program.source), "ids", lambda self, _=None: read(self)
        )
    is_passed, detail = check_of(program, "each_training_example_once_per_epoch")
    is_right = "is_whole" not in changes and len(set(map(repr, given))) == len(given)

    assert is_right == is_passed, detail
    assert message in detail


def test_pipelines_of_different_contexts_read_different_examples(digits, photos):
    seen = [
        set(batches_of(digits, 1, context, size=719)[0]["example_id"])
        for context in contexts(2)
    ]

    assert len(seen[0] | seen[1]) == 1438
    with pytest.raises(ValueError, match=r"12 training examples for 13 input pipe"):
        batches_of(photos, 1, contexts(13)[12])


@pytest.mark.parametrize(
    ("steps", "is_right"),
    [
        ([(4, [1, 2, 3, 4]), (8, [5, 6, 7, 8])], True),
        ([(4, [1, 2, 1, 2])], False),  # two replicas got one batch
        ([(4, [1, 2, 3, 4]), (8, [5, 6, 7, 1])], False),
        # The last of one epoch was the first of the next: a shuffle may do that.
        ([(4, [1, 2, 3, 4]), (12, [5, 6, 5, 1])], True),
        ([], False),  # nothing recorded is no proof
    ],
)
def test_an_example_twice_in_a_step_or_an_epoch_is_found(
    program, monkeypatch, steps, is_right
):
    consumed = [(count, tf.split(ids, 2)) for count, ids in steps]
    monkeypatch.setattr(program, "_consumed", consumed)
    # Eight pipelines of twelve examples: the first shard ends after eight.
    monkeypatch.setattr(program, "_contexts", contexts(8))
    is_passed, detail = check_of(program, "no_example_twice_in_an_epoch")

    assert is_right == is_passed
    if len(steps) == 2 and not is_right:
        assert "8 examples in 2 steps of the first epoch (2 recorded), 1 of them" in (
            detail
        )


def test_a_folder_holds_what_image_folder_finds(folder, of_folder):
    from tensorflow_datasets.core.folder_dataset import image_folder

    # Suffixes that TFDS would not find would be missing from its labels.
    assert {*SUFFIXES.split(", ")} == set(image_folder._SUPPORTED_IMAGE_FORMAT)
    reference = tfds.ImageFolder(str(folder))
    for split, features in of_folder.splits.items():
        expected = reference._split_examples[split]
        assert features["image"].tolist() == [each.image_path for each in expected]

    assert (3, 12, "test", 6, "jpeg") == (
        of_folder.num_classes,
        of_folder.num_train_examples,
        of_folder.evaluation_split,
        of_folder.num_evaluation_examples,
        of_folder.encoding,
    )
    assert list(LABELS) == reference.info.features["label"].names
    assert {
        (example["image"].tobytes(), int(example["label"]))
        for example in reference.as_dataset(split="test").as_numpy_iterator()
    } == {
        (tf.io.decode_jpeg(example["image"]).numpy().tobytes(), int(example["label"]))
        for example in of_folder.read("test").as_numpy_iterator()
    }


def test_a_cached_pipeline_needs_its_files_once(tmp_path):
    source = open_source(f"folder:{write_images(tmp_path, 'png')}")
    cached, streamed = (
        iter(
            opened(source.name, shuffle_buffer_size=16, cache_data=is_cached).batches(
                contexts(1)[0], 3
            )
        )
        for is_cached in (True, False)
    )
    for read in (cached, streamed):
        for _ in range(4):
            next(read)
    for file in (tmp_path / "train").rglob("*.*"):
        file.unlink()

    assert source.encoding == "png"
    assert [next(cached)["label"].shape for _ in range(8)] == [(3,)] * 8
    # Some are read ahead.
    with pytest.raises(tf.errors.NotFoundError):
        list(streamed)


SUFFIXES = ".jpeg, .jpg, .png"
# What is done to a folder of images, and what is said of it.
WRONG_FOLDERS = rf"""
mv images gone -> folder:.*' is not a folder; give one that is laid out as PATH/<
mv images/train/* images && rm -r images/t* -> holds images in 'cat', as PATH/<label>
mv images/test images/tset -> folders \['train', 'tset'\], but the expected lay
rm -r images/test/* -> split 'test' is empty: it needs a folder of images for each l
mkdir images/train/fox -> folder '.*train/fox' holds no image: .* in one of {SUFFIXES},
mv images/train/eel . -> split 'test' has the label 'eel', which is not among
echo 404 > images/train/dog/1.JPG -> file '.*dog/1\.JPG' is neither a JPEG nor a PNG
"""


@pytest.mark.parametrize("row", WRONG_FOLDERS.strip().splitlines())
def test_a_wrong_folder_is_refused(tmp_path, monkeypatch, row):
    command, _, message = row.partition(" -> ")
    root = write_images(tmp_path / "images")
    monkeypatch.chdir(tmp_path)
    assert f"folder:{root}" == WORKLOADS["resnet50"].check_data("folder:images")

    subprocess.run(command, shell=True, check=True)
    with pytest.raises(ValueError, match=message) as raised:
        WORKLOADS["resnet50"].check_data(f"folder:{root}")
    assert "\n" not in str(raised.value)


def test_an_image_that_cannot_be_decoded_is_named(tmp_path):
    write_images(tmp_path)
    for image in sorted((tmp_path / "train" / "dog").iterdir()):
        image.write_bytes(image.read_bytes()[:300])
    program = build("resnet50", data=f"folder:{tmp_path}")

    with pytest.raises(
        ValueError, match=r"file '.*train/dog/\d\.(jpg|JPG)' cannot be decoded as an im"
    ):
        program.run(num_steps=3)
