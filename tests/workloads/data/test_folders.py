"""Folders of images: read like any other set, refused with the file that is wrong."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from small_programs import build

import replicator
from workloads import catalog
from workloads.data import audit, folders, pipeline, sources

LABELS = ("cat", "dog", "eel")
NUM_TRAIN, NUM_TEST = 4, 2  # images of each label


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder of JPEGs of different sizes, some with an upper-case suffix."""
    made = tmp_path_factory.mktemp("images")
    write_images(made, "jpeg")
    return made


def write_images(root, encoding):
    """Writes the images of all splits and labels."""
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
    """Before anything is written, by one line that names what is wrong."""
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

    assert set(folders.SUFFIXES) == set(image_folder._SUPPORTED_IMAGE_FORMAT)
