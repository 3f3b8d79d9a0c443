"""TFDS builder of the text of TensorFlow's Python files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow_datasets as tfds

from workloads.data.tensorflow_source import files as text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Builder(tfds.core.GeneratorBasedBuilder):
    """Pieces of 1,024 bytes of the Python files of the installed TensorFlow.

    Needs no network. The held-out split has other files than the training split.
    """

    VERSION = tfds.core.Version(text.version())

    def _info(self) -> tfds.core.DatasetInfo:
        return self.dataset_info_from_configs(
            description="Python source text, cut into pieces of 1,024 bytes.",
            features=tfds.features.FeaturesDict(
                {
                    "text": tfds.features.Tensor(
                        shape=(text.CHUNK_SIZE,),
                        dtype=np.uint8,
                        encoding=tfds.features.Encoding.BYTES,
                    ),
                    "file": tfds.features.Scalar(dtype=np.int64),
                }
            ),
            homepage="https://github.com/tensorflow/tensorflow",
            metadata=tfds.core.MetadataDict(),
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        del dl_manager  # nothing is downloaded
        found = text.read()
        self.info.metadata.update(
            digest=text.digest_of(found),
            num_files=len(found),
            num_bytes=sum(len(file.content) for file in found),
        )
        return {
            "train": self._generate_examples(found, is_held_out=False),
            "test": self._generate_examples(found, is_held_out=True),
        }

    def _generate_examples(
        self, found: Sequence[text.File], *, is_held_out: bool
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        for index, file in enumerate(found):
            if file.is_held_out != is_held_out:
                continue
            for number, chunk in enumerate(file.chunks):
                # TFDS stores examples in the order of a hash of these names.
                yield (
                    f"{file.path}:{number}",
                    {"text": np.frombuffer(chunk, np.uint8), "file": index},
                )
