"""TFDS builder of scikit-learn's handwritten digits, stored as PNG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow_datasets as tfds

if TYPE_CHECKING:
    from collections.abc import Iterator

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


class Builder(tfds.core.GeneratorBasedBuilder):
    """1,797 real handwritten digits of 8 x 8 pixels, as PNG in TFRecords.

    Needs no network: the pixels come with scikit-learn (UCI ML hand-written digits,
    Alpaydin and Kaynak 1998, test part).
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES = {"1.0.0": "First version."}  # noqa: RUF012 - the name TFDS reads

    def _info(self) -> tfds.core.DatasetInfo:
        return self.dataset_info_from_configs(
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
