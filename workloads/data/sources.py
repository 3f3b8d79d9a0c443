"""Data sets, each in one fixed order: embedded ones, folders of images, TFDS, text."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import importlib.util
import io
import pathlib
import random
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

import replicator
from workloads.data import names, text_files

TRAIN_SPLIT = names.TRAIN_SPLIT
_WHOLE = slice(None)
Seed = int | None
# The message of the pipeline; see ``images.py``.
_OUTSIDE = re.compile(r"label outside the classes: (?P<label>-?\d+)")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Examples:
    """A data set whose examples are in memory: encoded images, or pieces of text."""

    name: str  # The name it was opened by.
    evaluation_split: str = "test"  # Name of the held-out split.
    # Arrays of each split by feature, all as long as the split has examples: of images
    # ``image``, as it is stored, and ``label``.
    splits: Mapping[str, Mapping[str, np.ndarray]]
    num_classes: int = 0  # Distinct labels.
    # How images are stored: ``png``, ``jpeg``; None if it varies.
    encoding: str | None = None
    # Stored height, width and channels; None where images differ.
    image_shape: tuple[int | None, ...] = (None, None, 3)
    description: str = ""  # How much text it is, of which release, and its digest.

    def num_examples(self, split: str) -> int:
        return len(next(iter(self.splits[split].values())))

    @property
    def num_train_examples(self) -> int:
        return self.num_examples(TRAIN_SPLIT)

    @property
    def num_evaluation_examples(self) -> int:
        return self.num_examples(self.evaluation_split)

    def read(
        self, split: str, part: slice = _WHOLE, *, seed: Seed = None, threads: int = 1
    ) -> tf.data.Dataset:
        """Returns the examples of a part of a split, once: dicts with ``example_id``.

        ``seed`` is of the order in which files are opened; None for the stored order.
        """
        del seed, threads  # all is in memory
        features = {**self.splits[split], "example_id": self._numbers(split)}
        return tf.data.Dataset.from_tensor_slices(
            {name: values[part] for name, values in features.items()}
        )

    def ids(self, part: slice = _WHOLE) -> tf.data.Dataset:
        """Returns the ids of training examples; nothing is decoded."""
        return tf.data.Dataset.from_tensor_slices(self._numbers(TRAIN_SPLIT)[part])

    def _numbers(self, split: str) -> np.ndarray:
        return np.arange(self.num_examples(split))

    def explain(self, error: Exception) -> str | None:
        """Describes how the data made a step fail, in one line; None otherwise."""
        outside = _OUTSIDE.search(str(error))
        if outside is None:
            return None
        return (
            f"data {self.name!r} has an example with label {outside['label']}, "
            f"which is outside its {self.num_classes} classes (0 to "
            f"{self.num_classes - 1}): fix its labels, or use another data set"
        )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FolderSource(Examples):
    """A folder of images, in the order of TFDS' ``ImageFolder``.

    TFDS reads a whole split in an order that no seed determines; here a pipeline opens
    only the files of its shard. Images stay encoded.
    """

    def read(
        self, split: str, part: slice = _WHOLE, *, seed: Seed = None, threads: int = 1
    ) -> tf.data.Dataset:
        dataset = Examples.read(self, split, part)
        if seed is not None:
            order = fold(seed, SHUFFLE_STREAM, 0)
            dataset = dataset.shuffle(len(dataset), seed=order)
        return dataset.map(
            lambda example: {**example, "image": tf.io.read_file(example["image"])},
            num_parallel_calls=threads,
            deterministic=True,
        )

    def explain(self, error: Exception) -> str | None:
        if reason := Examples.explain(self, error):
            return reason
        paths = (path for split in self.splits.values() for path in split["image"])
        path = next((path for path in paths if not _is_readable(path)), None)
        if path is None:
            return None
        return (
            f"data {self.name!r}: file {path!r} cannot be decoded as an image: replace "
            "or remove it"
        )


def _is_readable(path: str) -> bool:
    try:
        tf.io.decode_image(tf.io.read_file(path), channels=3)
    except (tf.errors.OpError, OSError):
        return False
    return True


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PreparedSource(Examples):
    builder: Any  # The TFDS builder.

    def num_examples(self, split: str) -> int:
        return int(self.builder.info.splits[split].num_examples)

    def read(
        self, split: str, part: slice = _WHOLE, *, seed: Seed = None, threads: int = 1
    ) -> tf.data.Dataset:
        import tensorflow_datasets as tfds

        dataset = self.builder.as_dataset(
            split=tfds.core.ReadInstruction(
                split, from_=part.start, to=part.stop, unit="abs"
            ),
            shuffle_files=seed is not None,
            decoders=tfds.decode.PartialDecoding(
                {"image": True, "label": True},
                decoders={"image": tfds.decode.SkipDecoding()},
            ),
            read_config=tfds.ReadConfig(
                add_tfds_id=True,
                shuffle_seed=fold(seed or 0, SHUFFLE_STREAM, 0),
                try_autocache=False,
                # A set that is stored in order is shuffled here like any other.
                enable_ordering_guard=False,
                skip_prefetch=True,
                num_parallel_calls_for_decode=threads,
                interleave_cycle_length=_FILES_READ_AT_ONCE,
                num_parallel_calls_for_interleave_files=min(
                    threads, _FILES_READ_AT_ONCE
                ),
            ),
        )

        def with_id(example: dict[str, Any]) -> dict[str, Any]:
            renamed = dict(example)
            name = renamed.pop("tfds_id")
            renamed["example_id"] = tf.strings.to_hash_bucket_fast(name, _NUM_IDS)
            return renamed

        return dataset.map(with_id)

    def ids(self, part: slice = _WHOLE) -> tf.data.Dataset:
        dataset = self.read(TRAIN_SPLIT, part)
        return dataset.map(lambda example: example["example_id"])


def open_source(name: str) -> Examples:
    """Opens labelled images: ``digits``, a prepared TFDS data set, ``folder:PATH``.

    Raises:
      ValueError: There is no such set here, or it is something else; the message says
        what to do.
    """
    if name == names.DIGITS:
        return _open_digits()
    if name.startswith(names.PREFIX):
        return _open_folder(name)
    return _open_prepared(name)


NUM_TEST_DIGITS = 359
_MOST_INK = 16  # scikit-learn's pixels count ink from 0 to 16


def _open_digits() -> Examples:
    """Opens scikit-learn's 1,797 digits of 8 x 8 pixels (Alpaydin & Kaynak 1998).

    scikit-learn is not imported, as that takes seconds.
    """
    from PIL import Image  # comes with matplotlib

    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise ValueError(
            "data 'digits' are those of scikit-learn, which is not installed here: run "
            "pip install 'replicator-harness[tensorflow]'"
        )
    path = pathlib.Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt", encoding="ascii") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.int64)
    labels = rows[:, -1]
    # 0..16 levels of ink become 0..255 without losing a level.
    pixels = np.round(rows[:, :-1] * (255 / _MOST_INK)).astype(np.uint8)

    def encoded(index: int) -> bytes:
        file = io.BytesIO()
        Image.fromarray(pixels[index].reshape(8, 8)).save(file, "PNG")
        return file.getvalue()

    splits = {}
    for split, indices in stratified_split(labels).items():
        order = in_stored_order(split, indices.tolist())
        images = np.array([encoded(index) for index in order], object)
        splits[split] = {"image": images, "label": labels[order]}
    return Examples(
        name=names.DIGITS,
        splits=splits,
        num_classes=10,
        encoding="png",
        image_shape=(8, 8, 1),
    )


def stratified_split(labels: np.ndarray) -> dict[str, np.ndarray]:
    """Holds out about every fifth digit of each class, evenly spaced."""
    by_class = np.argsort(labels, kind="stable")
    # A position is held out where the running quota passes the next integer.
    quota = np.arange(len(labels) + 1) * NUM_TEST_DIGITS // len(labels)
    is_test = np.diff(quota) == 1
    parts = {TRAIN_SPLIT: by_class[~is_test], "test": by_class[is_test]}
    return {split: np.sort(indices) for split, indices in parts.items()}


def in_stored_order(split: str, keys: Iterable[Any]) -> list[Any]:
    """Returns keys of examples in the order in which TFDS would store these."""

    def hash_of(key: Any) -> bytes:
        return hashlib.md5(f"{split}{key}".encode(), usedforsecurity=False).digest()

    return sorted(keys, key=hash_of)


def _open_folder(name: str) -> FolderSource:
    files, encoding = names.read_folder(name)
    classes = sorted({label for _, label in files[TRAIN_SPLIT]})
    splits = {}
    for split, listed in files.items():
        random.Random(split).shuffle(listed)  # noqa: S311 - as ImageFolder does
        splits[split] = {
            "image": np.array([path for path, _ in listed], object),
            "label": np.array([classes.index(label) for _, label in listed], np.int64),
        }
    return FolderSource(
        name=name,
        evaluation_split=_held_out(name, splits),
        splits=splits,
        num_classes=len(classes),
        encoding=encoding,
    )


def _open_prepared(name: str) -> PreparedSource:
    path = names.find_prepared(name)
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(path)
    features = builder.info.features
    return PreparedSource(
        name=name,
        builder=builder,
        evaluation_split=_held_out(name, builder.info.splits),
        splits={},
        num_classes=features["label"].num_classes,
        encoding=features["image"]._encoding_format,  # noqa: SLF001 - no public reader
        image_shape=tuple(features["image"].shape),
    )


def open_text(name: str) -> Examples:
    """Opens the Python files of TensorFlow, some held out, in pieces of 1,024 bytes.

    Features are ``text`` [pieces, 1024] uint8, and ``file``, a number.
    """
    if name != text_files.NAME:
        text_files.check(name)
    version, read = text_files.read()
    pieces: dict[str, dict[str, tuple[int, bytes]]] = {TRAIN_SPLIT: {}, "test": {}}
    for index, file in enumerate(read):
        part = pieces["test" if file.is_held_out else TRAIN_SPLIT]
        for number, chunk in enumerate(file.chunks):
            part[f"{file.path}:{number}"] = index, chunk
    splits = {}
    for split, by_key in pieces.items():
        order = in_stored_order(split, by_key)
        files, chunks = zip(*(by_key[key] for key in order), strict=True)
        text = np.frombuffer(b"".join(chunks), np.uint8)
        splits[split] = {
            "text": text.reshape(-1, text_files.CHUNK_SIZE),
            "file": np.array(files),
        }
    num_bytes = sum(len(file.content) for file in read)
    return Examples(
        name=name,
        splits=splits,
        description=f"{len(read)} files, {num_bytes} bytes of tensorflow {version}, "
        f"SHA-256 {text_files.digest_of(read)}",
    )


def _held_out(name: str, splits: Iterable[str]) -> str:
    """Returns the first that exists; the test labels of ImageNet are not public."""
    held_out = next((s for s in names.EVALUATION_SPLITS if s in splits), None)
    if TRAIN_SPLIT not in splits or held_out is None:
        raise ValueError(
            f"data {name!r} has the splits {sorted(splits)}, but training needs "
            f"{TRAIN_SPLIT!r} and evaluation one of {list(names.EVALUATION_SPLITS)}"
        )
    return held_out


# The random numbers of the order, of all those that are derived from one seed.
SHUFFLE_STREAM = 1
_NUM_IDS = 2**62
_FILES_READ_AT_ONCE = 16
_LARGEST_SEED = 2**31 - 1
_PREFETCHED_STEPS = 2


def shard(source: Examples, context: replicator.InputContext) -> slice:
    """Returns the range of training examples that one pipeline reads.

    The stored order is random, so each contiguous range is a random sample.
    """
    total, count = source.num_train_examples, context.num_input_pipelines
    if count > total:
        raise ValueError(
            f"data {source.name!r} has {total} training examples for {count} input "
            "pipelines: every pipeline needs at least one; use fewer replicas or "
            "another data set"
        )
    start = context.input_pipeline_id * total // count
    stop = (context.input_pipeline_id + 1) * total // count
    return slice(start, stop)


def shuffled(
    dataset: tf.data.Dataset, buffer_size: int, seed: int, pipeline_id: int
) -> tf.data.Dataset:
    """Returns the examples of a pipeline without end, each epoch in a new order."""
    return dataset.shuffle(
        buffer_size,
        seed=fold(seed, SHUFFLE_STREAM, pipeline_id),
        reshuffle_each_iteration=True,
    ).repeat()


def prefetched(
    dataset: tf.data.Dataset, context: replicator.InputContext, num_threads: int
) -> tf.data.Dataset:
    """Prefetches the batches of some steps of a pipeline with threads of its own."""
    batches_per_step = context.num_replicas_in_sync // context.num_input_pipelines
    dataset = dataset.prefetch(_PREFETCHED_STEPS * max(1, batches_per_step))
    # The pipeline's own few threads keep it off the replicas' cores.
    options = replicator.default_data_options(num_threads=num_threads)
    return dataset.with_options(options)


def repeated(batch: dict[str, tf.Tensor], size: int, threads: int) -> tf.data.Dataset:
    """Returns one cached batch without end; its ``example_id`` are -1."""
    ids = tf.fill([size], tf.constant(-1, tf.int64))
    dataset = tf.data.Dataset.from_tensors({**batch, "example_id": ids})
    options = replicator.default_data_options(num_threads=threads)
    return dataset.cache().repeat().with_options(options)


def fold(seed: int, *parts: int) -> int:
    """Mixes a seed with stream numbers; a plain hash, the same in every process."""
    for part in parts:
        seed = (seed * 1_000_003 + part) & _LARGEST_SEED
    return seed
