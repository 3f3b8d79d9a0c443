"""Builders of TFDS data sets: the embedded digits, and folders of images.

    python -m workloads.data.builders DIRECTORY

writes the digits as TFRecords. Writing runs TensorFlow ops, after which the calling
process could not create virtual devices: so ``prepare`` runs it in a separate process.
"""

from __future__ import annotations

import fcntl
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from workloads import child_process
from workloads.data import names

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Iterator

NUM_TRAIN = 1438
NUM_TEST = 359
IMAGE_SIZE = 8
_MOST_INK = 16  # scikit-learn's pixels count ink from 0 to 16


def stratified_split() -> tuple[np.ndarray, np.ndarray]:
    """Splits the 1,797 digits so that both parts have the same class proportions.

    Digits are sorted by class, and about every fifth is held out, evenly spaced. No
    random numbers are used, so the split cannot change with a library's version. It is
    part of the data set's version.
    """
    from sklearn.datasets import load_digits

    by_class = np.argsort(load_digits().target, kind="stable")
    total = NUM_TRAIN + NUM_TEST
    # A position is held out where the running quota passes the next integer.
    quota = np.arange(total + 1) * NUM_TEST // total
    is_test = np.diff(quota) == 1
    return np.sort(by_class[~is_test]), np.sort(by_class[is_test])


class Digits(tfds.core.GeneratorBasedBuilder):
    """1,797 real handwritten digits of 8 x 8 pixels, as PNG in TFRecords.

    Needs no network: the pixels come with scikit-learn (UCI ML hand-written digits,
    Alpaydin and Kaynak 1998, test part).
    """

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description="Handwritten digits, 8 x 8 pixels, from scikit-learn.",
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(
                        shape=(IMAGE_SIZE, IMAGE_SIZE, 1), encoding_format="png"
                    ),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://archive.ics.uci.edu/dataset/80",
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        del dl_manager  # nothing is downloaded
        train, test = stratified_split()
        return {
            "train": self._generate_examples(train),
            "test": self._generate_examples(test),
        }

    def _generate_examples(
        self, indices: np.ndarray
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        from sklearn.datasets import load_digits

        digits = load_digits()
        # 0..16 levels of ink become 0..255 without losing a level.
        pixels = np.round(digits.images * (255 / _MOST_INK)).astype(np.uint8)
        for index in indices:
            yield (
                int(index),
                {
                    "image": pixels[index][..., np.newaxis],
                    "label": int(digits.target[index]),
                },
            )


class FolderBuilder(tfds.ImageFolder):
    """TFDS' ``ImageFolder`` whose splits can be read in part, in a seeded order.

    TFDS reads a whole split in an order that no seed determines. Here a pipeline opens
    only the files of its shard. Images stay encoded.
    """

    def __init__(self, path: pathlib.Path, encoding: str | None) -> None:
        self._encoding = encoding
        super().__init__(str(path))

    def _info(self) -> tfds.core.DatasetInfo:
        image = tfds.features.Image(encoding_format=self._encoding)
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {"image": image, "label": tfds.features.ClassLabel()}
            ),
        )

    def as_dataset(
        self,
        split: Any = None,
        *,
        shuffle_files: bool = False,
        decoders: Any = None,
        read_config: Any = None,
        **_: Any,
    ) -> tf.data.Dataset:
        """Returns examples of ``label``, ``tfds_id`` and, if requested, ``image``."""
        paths, labels = self._listed(split)
        dataset = tf.data.Dataset.from_tensor_slices((paths, labels))
        if shuffle_files:
            dataset = dataset.shuffle(len(paths), seed=read_config.shuffle_seed)
        has_image = "image" in decoders.extract_features(self.info.features)

        def load(path: tf.Tensor, label: tf.Tensor) -> dict[str, tf.Tensor]:
            example = {"label": label, "tfds_id": path}
            return example | ({"image": tf.io.read_file(path)} if has_image else {})

        return dataset.map(
            load,
            num_parallel_calls=read_config.num_parallel_calls_for_decode,
            deterministic=True,
        )

    def find_unreadable(self) -> str | None:
        """Decodes the images; returns the path of the first that cannot be decoded."""

        def is_readable(path: str) -> bool:
            try:
                tf.io.decode_image(tf.io.read_file(path), channels=3)
            except (tf.errors.OpError, OSError):
                return False
            return True

        paths = (p for split in self.info.splits for p in self._listed(split)[0])
        return next((path for path in paths if not is_readable(path)), None)

    def _listed(self, split: Any) -> tuple[list[str], list[int]]:
        """Returns paths and labels of a split or shard, in ``ImageFolder``'s order."""
        instruction = tfds.core.ReadInstruction.from_spec(split)
        examples = [
            example
            for part in instruction.to_absolute(self.info.splits)
            for example in self._split_examples[part.splitname][part.from_ : part.to]
        ]
        to_number = self.info.features["label"].str2int
        return (
            [example.image_path for example in examples],
            [to_number(example.label) for example in examples],
        )


_MOST_SEC = 600.0


def prepare(kind: type[tfds.core.GeneratorBasedBuilder]) -> pathlib.Path:
    """Writes an embedded data set as TFRecords unless it already exists.

    The module of its builder does, as a program.
    """
    root = names.cache_dir()
    path = root / kind.name / str(kind.VERSION)

    def write() -> None:
        child_process.run_module(
            kind.__module__, str(root), title=f"writing {kind.name}", most_sec=_MOST_SEC
        )

    lock = root / f"{kind.name}.lock"
    write_once(path / "dataset_info.json", write, lock=lock, title=kind.name)
    return path


def write_once(
    path: pathlib.Path, write: Callable[[], None], *, lock: pathlib.Path, title: str
) -> None:
    """Calls ``write`` unless the file exists.

    Safe when several processes call it at once: one writes, the others wait for its
    lock, which the kernel releases if the process exits.
    """
    if path.is_file():
        return
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not path.is_file():
                write()
    except OSError as error:
        raise ValueError(
            f"{title} cannot be prepared under {str(lock.parent)!r} "
            f"({error.strerror}): set REPLICATOR_DATA_DIR to a directory that can "
            "be written"
        ) from error


def write(kind: type[tfds.core.GeneratorBasedBuilder]) -> None:
    """Writes an embedded data set to the directory that the command line names."""
    tfds.disable_progress_bar()
    kind(data_dir=sys.argv[1]).download_and_prepare()


if __name__ == "__main__":
    write(Digits)
