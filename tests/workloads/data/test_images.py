"""Labelled images: the digits, TFDS sets and folders, and the batches made of them."""

import collections
import pathlib
import types

import case_cluster
import fork_server
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from sklearn.datasets import load_digits
from small_programs import build

import replicator
from workloads import catalog, child_process
from workloads.data import audit, builders, images, names, sources

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
    return images.Images(None, config, data=data, seed=seed)


def held_out(source, size=8, split=None):
    found = opened(source.name).whole_split(split or source.evaluation_split, size)
    return list(found)


def contexts(num_pipelines):
    """The context of each of several input pipelines."""
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
    """Writes a TFDS set of three classes, as a user would have prepared it."""
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
    """The embedded digits, prepared in the directory of this process."""
    del data_dirs
    return sources.open_source("digits")


@pytest.fixture(scope="module")
def photos(data_dirs):
    """A TFDS set of JPEGs of different sizes."""
    rng = np.random.default_rng(0)

    def examples(count):
        return [
            (
                index,
                {
                    "image": rng.integers(0, 256, (40 + index, 50, 3), np.uint8),
                    "label": index % 3,
                },
            )
            for index in range(count)
        ]

    image = tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg")
    place = data_dirs / "tfds"
    store(place, "photos", image, examples(NUM_JPEGS), validation=examples(5))
    return sources.open_source("photos")


LABELS = ("cat", "dog", "eel")


def write_images(root, encoding="jpeg"):
    """A folder of images of different sizes, some with an upper-case suffix."""
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
    return sources.open_source(f"folder:{folder}")


def test_digits_are_split_once_and_for_all_and_stratified():
    """The split is part of the data set's version: these are its first indices."""
    train, test = builders.stratified_split()
    labels = load_digits().target

    assert (len(train), len(test)) == (1438, 359)
    assert set(range(1797)) == {*train, *test}
    share = np.bincount(labels) * 359 / 1797
    assert np.abs(np.bincount(labels[test]) - share).max() < 1
    assert list(test[:5]) == [2, 4, 5, 21, 27]


def test_digits_are_stored_as_png_and_decode_to_scikit_learns_pixels(digits):
    """The bytes in the TFRecords are PNG and hold the original 17 levels of ink."""
    raw = digits.builder.as_dataset(
        split="test", decoders={"image": tfds.decode.SkipDecoding()}
    )
    encoded = [example["image"] for example in raw.as_numpy_iterator()]
    decoded = [images.decoded(e, "png", (8, 8, 1)).numpy() for e in encoded]
    ink = np.round(np.stack(decoded)[..., 0].astype(np.float64) * 16 / 255)
    _, test = builders.stratified_split()
    expected = collections.Counter(i.tobytes() for i in load_digits().images[test])

    assert all(e.startswith(b"\x89PNG") for e in encoded)
    assert expected == collections.Counter(i.tobytes() for i in ink)


_PREPARE = """
import os, pathlib, sys
from workloads.data import builders
path = builders.prepare(builders.Digits)
pathlib.Path(sys.argv[1]).write_text(" ".join(sorted(os.listdir(path))))
"""


@pytest.mark.processes
def test_digits_are_prepared_once_by_many_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("REPLICATOR_DATA_DIR", str(tmp_path))
    program = tmp_path / "prepare.py"
    program.write_text(_PREPARE)
    written = [str(tmp_path / name) for name in ("one", "other")]
    # Of processes with TensorFlow that have run no op.
    processes = [
        fork_server.server(**case_cluster.ENV).start(
            [str(program), name],
            env=child_process.environment(case_cluster.ENV),
            log=tmp_path / "log",
        )
        for name in written
    ]
    codes = [process.wait(300) for process in processes]
    assert [0, 0] == codes, (tmp_path / "log").read_text()
    found = [pathlib.Path(name).read_text().split() for name in written]
    complete = sorted(path.name for path in (tmp_path / "digits/1.0.0").iterdir())
    source = sources.open_source("digits")

    assert [complete] * 2 == found
    assert (1438, 359) == (source.num_train_examples, source.num_evaluation_examples)
    assert [path.name for path in (tmp_path / "digits").iterdir()] == ["1.0.0"]


def test_unwritable_cache_says_what_to_set(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("REPLICATOR_DATA_DIR", str(tmp_path / "file" / "cache"))

    with pytest.raises(
        ValueError, match=r"digits cannot be prepared .*set REPLICATOR_DATA_DIR"
    ):
        sources.open_source("digits")


def test_a_prepared_set_is_read_like_the_digits(photos, data_dirs):
    """Large images have a path of their own; of several versions, the newest."""
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
    catalog.check_data("resnet50", "photos:1.0.0")
    assert names.find_prepared("photos_again").name == "1.10.0"
    assert names.find_prepared("photos_again:1.9.0").name == "1.9.0"


@pytest.mark.parametrize(
    ("name", "cost"),
    [
        ("cifar10", r"which downloads up to 0\.17 GB and writes the set beside it"),
        ("imagenet_resized/64x64", r"which downloads up to 19 GB and writes the set"),
        ("imagenet2012", r"which takes up to 155 GB that you download by hand"),
    ],
)
def test_a_set_that_is_not_prepared_says_what_to_do(tmp_path, monkeypatch, name, cost):
    """The command, what it costs, and the set that is there already."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with pytest.raises(ValueError, match=cost) as raised:
        catalog.check_data("resnet50", name)

    assert f"run 'tfds build {name} --data_dir {tmp_path}'" in str(raised.value)
    assert str(raised.value).endswith("or use --data digits, which needs no download")


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        (
            (8, 8, 2),
            np.uint8,
            r"shape \[8, 8, 2\] and type uint8, but needed are \[hei",
        ),
        ((8, 8, 1), np.uint16, r"shape \[8, 8, 1\] and type uint16, but needed are"),
        ((8, 8, 3), np.uint8, None),
    ],
)
def test_a_set_is_found_where_it_is_said_to_be(
    tmp_path, monkeypatch, shape, dtype, message
):
    """By TFDS_DATA_DIR, and nowhere else; images of another shape are refused."""
    image = tfds.features.Image(shape=shape, dtype=dtype, encoding_format="png")
    store(
        tmp_path,
        "elsewhere",
        image,
        [(0, {"image": np.zeros(shape, dtype), "label": 0})],
    )

    with pytest.raises(ValueError, match=r"data 'elsewhere' is unknown"):
        catalog.check_data("resnet50", "elsewhere")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    if message is None:
        catalog.check_data("resnet50", "elsewhere")
        (tmp_path / "elsewhere/1.0.0/features.json").unlink()
        message = r"no readable features\.json .*--overwrite"
    with pytest.raises(ValueError, match=message):
        catalog.check_data("resnet50", "elsewhere")


def test_sets_of_something_else_are_refused(data_dirs):
    """Without images; or with a label outside, as in test splits that are secret."""
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
        catalog.check_data("resnet50", "sentences")
    image = tfds.features.Image(shape=(8, 8, 3), encoding_format="png")
    pixels = np.zeros((8, 8, 3), np.uint8)
    store(
        place, "secret", image, [(i, {"image": pixels, "label": -1}) for i in range(4)]
    )
    source = sources.open_source("secret")
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        held_out(source)
    assert (
        "data 'secret' has an example with label -1, which is outside its 3 classes (0 "
        "to 2): fix its labels, or use another data set"
    ) == source.explain(raised.value)


def test_batches_are_as_documented(digits):
    """And each held-out example is counted once; the last batch is filled up."""
    (batch,) = batches_of(digits, 1)
    evaluated = held_out(digits, 64)
    ids = [
        int(example_id)
        for each in evaluated
        for example_id in each["example_id"][each["is_example"]]
    ]

    assert batch["image"].shape == (8, 32, 32, 3)
    assert (batch["image"].dtype, batch["label"].dtype) == (np.float32, np.int32)
    assert abs(batch["image"].mean()) < 0.5 < batch["image"].std() < 1.5
    assert {(64, 32, 32, 3)} == {tuple(each["image"].shape) for each in evaluated}
    assert (len(ids), len(set(ids))) == (359, 359)
    # No operation is added to a step whose pipeline normalises.
    sent = tensors(batch)
    assert opened("digits").normalised(sent) is sent


def test_augmented_digit_keeps_its_label(digits):
    """Ids join augmented batches to the stored labels and pixels."""
    stored = {
        example_id: (image, label)
        for batch in held_out(digits, split="train")
        for image, label, example_id in zip(
            *(batch[key].numpy() for key in ("image", "label", "example_id")),
            strict=True,
        )
    }
    (batch,) = batches_of(digits, 1)
    for row, example_id in enumerate(batch["example_id"]):
        image, label = stored[example_id]

        assert label == batch["label"][row]
        assert np.corrcoef(image.ravel(), batch["image"][row].ravel())[0, 1] > 0.3


@pytest.mark.parametrize(
    ("data", "size", "is_cached"),
    [("digits", 1438, False), ("folder", 12, False), ("folder", 12, True)],
)
def test_the_seed_determines_order_and_augmentation(
    digits, of_folder, data, size, is_cached
):
    """With any number of threads; each epoch has every example, in another order."""
    source = {"digits": digits, "folder": of_folder}[data]
    settings = {"size": 32 if data == "digits" else 3, "cache_data": is_cached}
    count = 2 * size // settings["size"]
    first = batches_of(source, count, **settings)
    again = batches_of(source, count, num_input_threads=3, **settings)
    (other,) = batches_of(source, 1, seed=6, **settings)

    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one["image"], two["image"])
        np.testing.assert_array_equal(one["example_id"], two["example_id"])
    assert (first[0]["example_id"] != other["example_id"]).any()
    ids = np.concatenate([batch["example_id"] for batch in first])
    assert size == len(set(ids[:size]))
    assert (ids[: size // 2] != ids[size : size + size // 2]).any()


@pytest.mark.parametrize("dtype", ["float32", "uint8"])
def test_synthetic_images_are_one_batch_of_the_type_that_is_sent(dtype):
    """Random levels of every pixel, or normal values, with ids that say so."""
    made = opened("synthetic", input_dtype=dtype)
    first, second = made.batches(contexts(1)[0], 8).take(2)
    image = made.normalised(first)["image"].numpy()

    np.testing.assert_array_equal(first["image"], second["image"])
    assert set(first["example_id"].numpy()) == {-1}
    assert 10 < int(tf.reduce_max(first["label"])) < 1000
    assert dtype == first["image"].dtype.name
    assert abs(image.mean()) < 0.5 < image.std() < 1.5


def test_random_boxes_stay_inside_and_keep_their_area():
    """Boxes lie in the image; digits are never mirrored, photographs half the time."""
    seed = tf.constant([1, 2])
    upright = images.boxes(2000, images.DIGITS, seed).numpy()
    mirrored = images.boxes(2000, images.IMAGENET, seed).numpy()
    area = (upright[:, 2] - upright[:, 0]) * (upright[:, 3] - upright[:, 1])

    assert upright.min() >= 0.0
    assert max(upright.max(), mirrored.max()) <= 1.0 + 1e-6
    assert (upright[:, 3] > upright[:, 1]).all()
    assert 0.65 < area.min() < 0.75
    assert 0.45 < (mirrored[:, 3] < mirrored[:, 1]).mean() < 0.55
    # Evaluation of digits keeps every pixel: corners stay corners.
    image = tf.random.stateless_uniform([1, 8, 8, 3], [0, 1], maxval=255.0)
    whole = images.boxes(1, images.DIGITS, None)
    kept = tf.image.crop_and_resize(image, whole, [0], [8, 8])
    np.testing.assert_allclose(kept, image, atol=1e-3)


def test_jpeg_crop_equals_the_crop_of_the_whole_image(photos):
    """Decoding inside the crop gives the pixels of cropping the decoded image."""
    raw = photos.builder.as_dataset(
        split="train", decoders={"image": tfds.decode.SkipDecoding()}
    )
    encoded = next(iter(raw))["image"]
    for index in range(4):
        seed = tf.constant([index, 7])
        fused, whole = (
            images.decoded_crop(encoded, images.IMAGENET, seed, encoding, 32)
            for encoding in ("jpeg", None)
        )

        # A JPEG decoder interpolates colour at the crop's edge from fewer pixels.
        assert float(tf.reduce_mean(tf.abs(fused - whole))) < 6.0


@pytest.mark.parametrize("data", ["digits", "photos"])
def test_pixels_that_were_sent_as_bytes_are_normalised_on_the_device(
    data, digits, photos
):
    """As by the pipeline, to the rounding of a pixel, with a quarter of the bytes."""
    source = {"digits": digits, "photos": photos}[data]
    (plain,), (small,) = (
        batches_of(source, 1, input_dtype=dtype, size=4)
        for dtype in ("float32", "uint8")
    )
    shown = opened(data).normalised(tensors(small))

    assert np.uint8 == small["image"].dtype
    assert 4 * small["image"].nbytes == plain["image"].nbytes
    # Half of one of 255 levels, whose deviation is 0.22 of the scale or more.
    atol = 0.5 / 255 / 0.224 + 1e-5
    np.testing.assert_allclose(plain["image"], shown["image"], rtol=0, atol=atol)
    np.testing.assert_array_equal(plain["example_id"], shown["example_id"])


SECOND_OF_3 = contexts(3)[1]
REPEATED = [contexts(2)[0]] * 2


@pytest.mark.parametrize(
    ("given", "most_read", "split", "message"),
    [
        (contexts(3), None, None, "0 missing, 0 read more than once"),
        # Beyond the limit of reading, the ranges are checked.
        (contexts(3), 10, None, "ids not read"),
        # One worker of three sees its own context.
        ([SECOND_OF_3], None, None, "3 input pipelines"),
        # A pipeline that ignores its context, contexts that repeat.
        (contexts(2), None, "train", "0 missing, 1438 read more than once"),
        (REPEATED, None, None, "719 missing, 719 read more than once"),
        (REPEATED, 10, None, ""),
        ([SECOND_OF_3] * 2, None, None, ""),
    ],
)
def test_shards_cover_a_split_exactly_once(
    digits, monkeypatch, given, most_read, split, message
):
    """Over all pipelines, also where shares differ; the check of every trial."""
    if most_read:
        monkeypatch.setattr(audit, "_MOST_IDS_READ", most_read)
    if split:
        monkeypatch.setattr(sources, "shard", lambda *_: split)
    check = audit.check_shards(digits, given)
    is_right = split is None and len(set(map(repr, given))) == len(given)

    assert is_right == check.is_passed, check.detail
    assert message in check.detail


def test_pipelines_of_different_contexts_read_different_examples(
    digits, of_folder, photos
):
    """Training pipelines are disjoint and complete; each file is in one."""
    seen = [
        set(batches_of(digits, 1, context, size=719)[0]["example_id"])
        for context in contexts(2)
    ]

    assert len(seen[0] | seen[1]) == 1438
    assert audit.check_shards(of_folder, contexts(5)).is_passed
    with pytest.raises(ValueError, match=r"12 training examples for 13 input pipe"):
        sources.shard(photos, contexts(13)[12])


@pytest.mark.parametrize(
    ("steps", "is_passed"),
    [
        ([(4, [1, 2, 3, 4]), (8, [5, 6, 7, 8])], True),
        ([(4, [1, 2, 1, 2])], False),  # two replicas got one batch
        ([(4, [1, 2, 3, 4]), (8, [5, 6, 7, 1])], False),
        ([(4, [1, 2, 3, 4]), (12, [5, 6, 7, 1])], True),  # in the next epoch
        # The last of one epoch was the first of the next: a shuffle may do that.
        ([(4, [1, 2, 3, 4]), (12, [5, 6, 5, 1])], True),
        ([], False),  # nothing recorded is no proof
    ],
)
def test_an_example_twice_in_a_step_or_an_epoch_is_found(steps, is_passed):
    check = audit.check_consumed(steps, first_epoch_size=8)

    assert is_passed == check.is_passed
    if len(steps) == 2 and not is_passed:
        assert "8 examples in 2 steps of the first epoch (2 recorded), 1 of them" in (
            check.detail
        )


def test_a_folder_holds_what_image_folder_finds(folder, of_folder):
    """Labels, splits and counts of TFDS' own reader, and the common encoding."""
    reference = tfds.ImageFolder(str(folder))
    decoders = tfds.decode.PartialDecoding({"image": True, "label": True})
    ours = of_folder.builder.as_dataset(
        "test", decoders=decoders, read_config=tfds.ReadConfig()
    )

    assert (3, 12, "test", 6, "jpeg") == (
        of_folder.num_classes,
        of_folder.num_train_examples,
        of_folder.evaluation_split,
        of_folder.num_evaluation_examples,
        of_folder.encoding,
    )
    assert list(LABELS) == reference.info.features["label"].names
    assert list(LABELS) == of_folder.builder.info.features["label"].names
    assert {
        (example["image"].tobytes(), int(example["label"]))
        for example in reference.as_dataset(split="test").as_numpy_iterator()
    } == {
        (tf.io.decode_jpeg(example["image"]).numpy().tobytes(), int(example["label"]))
        for example in ours.as_numpy_iterator()
    }


def test_a_cached_pipeline_needs_its_files_once(tmp_path):
    """After an epoch the files may go; a streamed one would miss them."""
    source = sources.open_source(f"folder:{write_images(tmp_path, 'png')}")
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


def test_resnet50_trains_and_is_evaluated_on_a_folder(folder, monkeypatch):
    """With the checks of any other set; a relative path is made absolute."""
    repl = replicator.create("single")
    program = build("resnet50", repl, data=f"folder:{folder}", cache_data=True)
    loss = program.run()
    top_1, _ = program.evaluate()

    assert np.isfinite(loss)
    assert top_1.num_examples == 6
    assert all(check.is_passed for check in program.sanity()), program.sanity()
    monkeypatch.chdir(folder.parent)
    assert f"folder:{folder}" == catalog.absolute_data(f"folder:{folder.name}")
    assert "cifar10" == catalog.absolute_data("cifar10")


def move(source, target):
    return lambda root: (root / source).rename(root / target)


def is_missing(root):
    root.rename(root.parent / "elsewhere")


def is_flat(root):
    for label in (root / "train").iterdir():
        label.rename(root / label.name)
    (root / "test").rename(root.parent / "gone")
    (root / "train").rmdir()


def has_no_label(root):
    (root / "test").rename(root.parent / "gone")
    (root / "test").mkdir()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            is_missing,
            r"folder:.*' is not a folder; give one that is laid out as PATH/<",
        ),
        (is_flat, r"holds images in 'cat', as PATH/<label>/<image>, but the expected "),
        (
            move("test", "tset"),
            r"the folders \['train', 'tset'\], but the expected lay",
        ),
        (
            has_no_label,
            r"split 'test' is empty: it needs a folder of images for each l",
        ),
        (
            lambda root: (root / "train" / "fox").mkdir(),
            r"folder '.*train/fox' holds no image: it needs at least",
        ),
        (
            move("train/eel", "../gone"),
            r"split 'test' has the label 'eel', which is not among",
        ),
        (
            lambda root: (root / "train/dog/1.JPG").write_text("<html>404"),
            r"file '.*dog/1\.JPG' is neither a JPEG nor a PNG",
        ),
    ],
)
def test_a_wrong_folder_is_refused(tmp_path, spoil, message):
    root = write_images(tmp_path / "images")
    spoil(root)

    with pytest.raises(ValueError, match=message) as raised:
        catalog.check_data("resnet50", f"folder:{root}")
    assert "\n" not in str(raised.value)


def test_an_image_that_cannot_be_decoded_is_named(tmp_path):
    """Its first bytes are right, so it is found when it is read."""
    write_images(tmp_path)
    for image in sorted((tmp_path / "train" / "dog").iterdir()):
        image.write_bytes(image.read_bytes()[:300])
    repl = replicator.create("single")
    program = build("resnet50", repl, data=f"folder:{tmp_path}")

    with pytest.raises(
        ValueError, match=r"file '.*train/dog/\d\.(jpg|JPG)' cannot be decoded as an im"
    ):
        program.run(num_steps=3)


def test_the_list_of_layouts_is_tfds_own():
    """Suffixes that TFDS would not find would be missing from its labels."""
    from tensorflow_datasets.core.folder_dataset import image_folder

    assert set(names.SUFFIXES) == set(image_folder._SUPPORTED_IMAGE_FORMAT)
