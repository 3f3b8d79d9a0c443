"""Reads folders of images like TFDS data sets: by shard, in a seeded order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf
import tensorflow_datasets as tfds

if TYPE_CHECKING:
    from workloads.data import folders


class FolderBuilder(tfds.ImageFolder):
    """TFDS' ``ImageFolder`` whose splits can be read in part.

    That of TFDS reads a whole split in an order that no seed determines. Here a
    pipeline opens only the files of its shard. Images stay encoded.
    """

    def __init__(self, contents: folders.Contents) -> None:
        self._encoding = contents.encoding
        super().__init__(str(contents.path))

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
        paths = (p for split in self.info.splits for p in self._listed(split)[0])
        return next((path for path in paths if not _is_readable(path)), None)

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


def _is_readable(path: str) -> bool:
    try:
        tf.io.decode_image(tf.io.read_file(path), channels=3)
    except (tf.errors.OpError, OSError):
        return False
    return True
