"""Data sets of images: the digits, prepared TFDS sets and folders; what is refused."""

import collections
import pathlib

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
from workloads.data import audit, builders, names, pipeline, sources

TIMEOUT_SEC = 300


def test_digits_split_is_exact_and_stratified():
    train, test = builders.stratified_split()
    labels = load_digits().target

    assert (len(train), len(test)) == (1438, 359)
    assert set(range(1797)) == {*train, *test}
    share = np.bincount(labels) * 359 / 1797
    assert np.abs(np.bincount(labels[test]) - share).max() < 1


def test_digits_split_is_fixed():
    """The split is part of the data set's version: these are its first indices."""
    _, test = builders.stratified_split()

    assert list(test[:5]) == [2, 4, 5, 21, 27]


def test_digits_are_stored_as_png_and_decode_to_scikit_learns_pixels(digits):
    """The bytes in the TFRecords are PNG and hold the original 17 levels of ink."""
    raw = digits.builder.as_dataset(
        split="test", decoders={"image": tfds.decode.SkipDecoding()}
    )
    encoded = [example["image"] for example in raw.as_numpy_iterator()]
    decoded = np.stack(
        [
            pipeline.decode_images(e, encoding="png", shape=(8, 8, 1)).numpy()
            for e in encoded
        ]
    )
    ink = np.round(decoded[..., 0].astype(np.float64) * 16 / 255)
    _, test = builders.stratified_split()
    expected = collections.Counter(i.tobytes() for i in load_digits().images[test])

    assert all(e.startswith(b"\x89PNG") for e in encoded)
    assert expected == collections.Counter(i.tobytes() for i in ink)


_PREPARE = """
import os, pathlib, sys
from workloads.data import sources
path = sources.prepare_digits()
pathlib.Path(sys.argv[1]).write_text(" ".join(sorted(os.listdir(path))))
"""


@pytest.mark.processes
def test_digits_are_prepared_once_by_many_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("REPLICATOR_DATA_DIR", str(tmp_path))
    program = tmp_path / "prepare.py"
    program.write_text(_PREPARE)
    names = [str(tmp_path / name) for name in ("one", "other")]
    # Of processes with TensorFlow that have run no op.
    processes = [
        fork_server.server(**case_cluster.ENV).start(
            [str(program), name],
            env=child_process.environment(case_cluster.ENV),
            log=tmp_path / "log",
        )
        for name in names
    ]
    codes = [process.wait(TIMEOUT_SEC) for process in processes]
    assert [0, 0] == codes, (tmp_path / "log").read_text()
    found = [pathlib.Path(name).read_text().split() for name in names]
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
def test_a_set_that_is_not_prepared_says_what_to_do(tmp_path, monkeypatch, name, cost):
    """The command, what it costs, and the set that is there already."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    with pytest.raises(ValueError, match=cost) as raised:
        catalog.check_data("resnet50", name)

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


def test_a_set_is_found_where_it_is_said_to_be(tmp_path, monkeypatch):
    """By TFDS_DATA_DIR, and nowhere else."""
    pixels = np.zeros((8, 8, 3), np.uint8)
    image = tfds.features.Image(shape=(8, 8, 3))
    _store(tmp_path, "elsewhere", image, [(0, {"image": pixels, "label": 0})])

    with pytest.raises(ValueError, match=r"data 'elsewhere' is unknown"):
        catalog.check_data("resnet50", "elsewhere")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    catalog.check_data("resnet50", "elsewhere")


@pytest.mark.parametrize(
    ("shape", "dtype", "found"),
    [
        ((8, 8, 2), np.uint8, r"shape \[8, 8, 2\] and type uint8"),
        ((8, 8, 1), np.uint16, r"shape \[8, 8, 1\] and type uint16"),
    ],
)
def test_images_of_another_shape_are_refused(
    tmp_path, monkeypatch, shape, dtype, found
):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    feature = tfds.features.Image(shape=shape, dtype=dtype, encoding_format="png")
    example = {"image": np.zeros(shape, dtype), "label": 0}
    _store(tmp_path, "odd", feature, [(0, example)])

    with pytest.raises(ValueError, match=found + r", but needed are \[height, width"):
        catalog.check_data("resnet50", "odd")


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
    place = data_dirs / "tfds" / "damaged" / "1.0.0"
    place.mkdir(parents=True)
    (place / "dataset_info.json").write_text("{}")

    with pytest.raises(ValueError, match=r"no readable features\.json .*--overwrite"):
        catalog.check_data("resnet50", "damaged")


LABELS = ("cat", "dog", "eel")
NUM_TRAIN, NUM_TEST = 4, 2  # images of each label


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder of JPEGs of different sizes, some with an upper-case suffix."""
    made = tmp_path_factory.mktemp("images")
    write_images(made, "jpeg")
    return made


def write_images(root, encoding):
    rng = np.random.default_rng(0)
    encode = tf.io.encode_jpeg if encoding == "jpeg" else tf.io.encode_png
    for split, count in (("train", NUM_TRAIN), ("test", NUM_TEST)):
        for label in LABELS:
            place = root / split / label
            place.mkdir(parents=True)
            for index in range(count):
                pixels = rng.integers(0, 256, (40 + index, 50, 3), np.uint8)
                suffix = ".JPG" if index else ".jpg"
                (place / f"{index}{suffix}").write_bytes(encode(pixels).numpy())
    (root / "train" / "cat" / "notes.txt").write_text("not an image")


def _config(**fields):
    settings = {
        "per_replica_batch_size": 3,
        "image_size": 32,
        "seed": 5,
        "shuffle_buffer_size": 16,
        "num_threads": 1,
    }
    return pipeline.PipelineConfig(**(settings | fields))


def _batches(source, context, config, count):
    dataset = pipeline.train_dataset(source, context, config)
    return list(dataset.take(count).as_numpy_iterator())


def test_a_folder_holds_what_image_folder_finds(root):
    """Labels, splits and counts of TFDS' own reader, and the common encoding."""
    source = sources.open_source(f"folder:{root}")
    reference = tfds.ImageFolder(str(root))

    assert (3, 12, "test", 6) == (
        source.num_classes,
        source.num_train_examples,
        source.evaluation_split,
        source.num_evaluation_examples,
    )
    assert list(LABELS) == reference.info.features["label"].names
    assert source.builder.info.features["label"].names == list(LABELS)
    assert source.encoding == "jpeg"
    stored = {
        (example["image"].tobytes(), int(example["label"]))
        for example in reference.as_dataset(split="test").as_numpy_iterator()
    }
    decoders = tfds.decode.PartialDecoding({"image": True, "label": True})
    ours = source.builder.as_dataset(
        "test", decoders=decoders, read_config=tfds.ReadConfig()
    )
    assert stored == {
        (tf.io.decode_jpeg(example["image"]).numpy().tobytes(), int(example["label"]))
        for example in ours.as_numpy_iterator()
    }


@pytest.mark.parametrize("count", [1, 2, 5])
def test_pipelines_share_a_folder_exactly(root, count, contexts):
    """Each file is read by one pipeline, once per epoch."""
    source = sources.open_source(f"folder:{root}")

    check = audit.check_shards(source, contexts(count))

    assert check.is_passed, check.detail


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("is_cached", [False, True])
def test_batches_follow_from_the_seed(root, num_threads, is_cached, contexts):
    """Cached or streamed, by any number of threads; epochs differ in their order."""
    source = sources.open_source(f"folder:{root}")
    config = _config(num_threads=num_threads, is_cached=is_cached)
    (context,) = contexts(1)
    first, again = (_batches(source, context, config, 8) for _ in range(2))
    other = _batches(source, context, _config(seed=6, is_cached=is_cached), 8)

    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one["image"], two["image"])
        np.testing.assert_array_equal(one["example_id"], two["example_id"])
    ids = [list(batch["example_id"]) for batch in first]
    assert ids != [list(batch["example_id"]) for batch in other]
    epochs = [[i for batch in part for i in batch] for part in (ids[:4], ids[4:])]
    assert 12 == len(set(epochs[0]))
    assert sorted(epochs[0]) == sorted(epochs[1])
    assert epochs[0] != epochs[1]


def test_a_cached_pipeline_needs_its_files_once(tmp_path, contexts):
    """After an epoch the files may go; a streamed one would miss them."""
    write_images(tmp_path, "png")
    source = sources.open_source(f"folder:{tmp_path}")
    reads = {
        is_cached: iter(
            pipeline.train_dataset(source, contexts(1)[0], _config(is_cached=is_cached))
        )
        for is_cached in (True, False)
    }
    for read in reads.values():
        for _ in range(4):
            next(read)
    for file in (tmp_path / "train").rglob("*.*"):
        file.unlink()

    assert source.encoding == "png"
    assert [next(reads[True])["label"].shape for _ in range(8)] == [(3,)] * 8
    # Some are read ahead.
    with pytest.raises(tf.errors.NotFoundError):
        list(reads[False])


def test_resnet50_trains_and_is_evaluated_on_a_folder(root):
    """With the checks of any other set."""
    program = _build(f"folder:{root}", cache_data=True)
    loss = program.run()
    top_1, _ = program.evaluate()

    assert np.isfinite(loss)
    assert top_1.num_examples == 6
    assert all(check.is_passed for check in program.sanity()), program.sanity()


def _build(data, **options):
    repl = replicator.create("single", num_replicas=1)
    return build("resnet50", repl, data=data, seed=0, **options)


def test_a_relative_path_is_made_absolute(root, monkeypatch):
    """Trials may run in another directory than the one it was typed in."""
    monkeypatch.chdir(root.parent)

    assert f"folder:{root}" == catalog.absolute_data(f"folder:{root.name}")
    assert "cifar10" == catalog.absolute_data("cifar10")


def _is_missing(root):
    (root / "train").rename(root.parent / "elsewhere")
    (root / "test").rename(root.parent / "elsewhere_too")
    root.rmdir()


def _is_flat(root):
    for label in (root / "train").iterdir():
        label.rename(root / label.name)
    (root / "test").rename(root.parent / "gone")
    (root / "train").rmdir()


def _has_no_test(root):
    (root / "test").rename(root / "tset")


def _has_no_label(root):
    (root / "test").rename(root.parent / "gone")
    (root / "test").mkdir()


def _has_an_empty_label(root):
    (root / "train" / "fox").mkdir()


def _has_an_unknown_label(root):
    (root / "train" / "eel").rename(root.parent / "gone")


def _has_a_text_for_an_image(root):
    (root / "train" / "dog" / "1.JPG").write_text("<html>404")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            _is_missing,
            r"folder:.*' is not a folder; give one that is laid out as PATH/<",
        ),
        (
            _is_flat,
            r"holds images in 'cat', as PATH/<label>/<image>, but the expected ",
        ),
        (
            _has_no_test,
            r"holds the folders \['train', 'tset'\], but the expected layout",
        ),
        (
            _has_no_label,
            r"split 'test' is empty: it needs a folder of images for each l",
        ),
        (
            _has_an_empty_label,
            r"folder '.*train/fox' holds no image: it needs at least",
        ),
        (
            _has_an_unknown_label,
            r"split 'test' has the label 'eel', which is not among",
        ),
        (_has_a_text_for_an_image, r"file '.*dog/1\.JPG' is neither a JPEG nor a PNG"),
    ],
)
def test_a_wrong_folder_is_refused(tmp_path, spoil, message):
    root = tmp_path / "images"
    write_images(root, "jpeg")
    (root / "train" / "cat" / "notes.txt").unlink()
    spoil(root)

    with pytest.raises(ValueError, match=message) as raised:
        catalog.check_data("resnet50", f"folder:{root}")
    assert "\n" not in str(raised.value)


def test_an_image_that_cannot_be_decoded_is_named(tmp_path):
    """Its first bytes are right, so it is found when it is read."""
    write_images(tmp_path, "jpeg")
    for image in sorted((tmp_path / "train" / "dog").iterdir()):
        image.write_bytes(image.read_bytes()[:300])
    program = _build(f"folder:{tmp_path}")

    with pytest.raises(
        ValueError, match=r"file '.*train/dog/\d\.(jpg|JPG)' cannot be decoded as an im"
    ):
        program.run(num_steps=3)


def test_the_list_of_layouts_is_tfds_own():
    """Suffixes that TFDS would not find would be missing from its labels."""
    from tensorflow_datasets.core.folder_dataset import image_folder

    assert set(names.SUFFIXES) == set(image_folder._SUPPORTED_IMAGE_FORMAT)
