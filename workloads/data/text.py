"""Input pipelines of text: bytes as tokens, of TensorFlow's own Python files.

    python -m workloads.data.text DIRECTORY

writes them as TFRecords.

An example is a piece of a file; a sequence is a part of one, as a crop is of an image.
A batch is a dict: ``token`` [sequences, length] uint8, ``example_id`` [sequences]
int64.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

import replicator
from workloads.data import builders, sources, text_files
from workloads.data.sources import Examples
from workloads.spec import SanityCheck

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NAME = "tensorflow_source"
CHECKED = "text_is_that_of_the_wheel"
"""Name of the check of what was read."""
# The random numbers of the crops; see ``sources.SHUFFLE_STREAM``.
_CROP_STREAM = 2
_NUM_THREADS = 1  # nothing is decoded


class TensorflowSource(tfds.core.GeneratorBasedBuilder):
    """Pieces of 1,024 bytes of the Python files of the installed TensorFlow.

    Needs no network. The held-out split has other files than the training split.
    """

    VERSION = tfds.core.Version(text_files.version())

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description="Python source text, cut into pieces of 1,024 bytes.",
            features=tfds.features.FeaturesDict(
                {
                    "text": tfds.features.Tensor(
                        shape=(text_files.CHUNK_SIZE,),
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
        found = text_files.read()
        self.info.metadata.update(
            digest=text_files.digest_of(found),
            num_files=len(found),
            num_bytes=sum(len(file.content) for file in found),
        )
        return {
            "train": self._generate_examples(found, is_held_out=False),
            "test": self._generate_examples(found, is_held_out=True),
        }

    def _generate_examples(
        self, found: Sequence[text_files.File], *, is_held_out: bool
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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TextSource(Examples):
    """A prepared text."""

    evaluation_split: str = "test"
    smallest_feature: str = "file"

    @property
    def metadata(self) -> dict[str, Any]:
        """``digest`` of the files that were read, ``num_files``, ``num_bytes``."""
        return dict(self.builder.info.metadata)


def open_source(name: str) -> TextSource:
    """Opens the text by its name; it is prepared on first use."""
    if name != NAME:
        raise ValueError(f"data {name!r} is not a text: use {NAME!r}")
    path = builders.prepare(TensorflowSource)
    return TextSource(name=name, builder=tfds.builder_from_directory(path))


def train_dataset(
    source: TextSource | None,
    context: replicator.InputContext,
    config: Any,
    *,
    num_sequences: int,
    seed: int,
) -> tf.data.Dataset:
    """Creates the infinite training pipeline of one input context.

    Every epoch reads a sequence at a random place of each example of the pipeline's
    shard, in a new order. The same seed gives the same batches on every backend.
    Without a source, it has one batch of random bytes.
    """
    size, length = num_sequences, config.sequence_length
    if source is None:
        token = tf.random.stateless_uniform(
            [size, length],
            [sources.fold(seed, _CROP_STREAM, 0), 0],
            maxval=text_files.NUM_TOKENS,
            dtype=tf.int32,
        )
        batch = {"token": tf.cast(token, tf.uint8)}
        return sources.repeated(batch, size, _NUM_THREADS)
    pipeline_id = context.input_pipeline_id
    dataset = source.builder.as_dataset(
        split=sources.shard(source, context),
        shuffle_files=True,
        decoders=tfds.decode.PartialDecoding({"text": True}),
        read_config=sources.read_config(seed=seed, num_threads=_NUM_THREADS),
    )
    dataset = sources.shuffled(
        dataset.map(sources.with_id), config.shuffle_buffer_size, seed, pipeline_id
    )
    stream = sources.fold(seed, _CROP_STREAM, pipeline_id)

    def crop(index: tf.Tensor, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        first = tf.random.stateless_uniform(
            [size, 1],
            tf.stack([tf.constant(stream, tf.int64), index]),
            maxval=text_files.CHUNK_SIZE - length + 1,
            dtype=tf.int32,
        )
        return {
            "token": tf.gather(batch["text"], first + tf.range(length), batch_dims=1),
            "example_id": batch["example_id"],
        }

    dataset = dataset.batch(size, drop_remainder=True).enumerate().map(crop)
    return sources.prefetched(dataset, context, _NUM_THREADS)


def check(source: TextSource) -> SanityCheck:
    """Checks that the text that was read is that of the wheel, byte by byte.

    Its detail has the digest: figures of two digests are of two texts.
    """
    metadata = source.metadata
    detail = (
        f"{metadata['num_files']} files, {metadata['num_bytes']} bytes of tensorflow "
        f"{source.builder.info.version}, SHA-256 {metadata['digest']}"
    )
    try:
        found = text_files.digest_of(text_files.read())
    except ValueError as error:
        return SanityCheck(name=CHECKED, is_passed=False, detail=f"{detail}: {error}")
    if found != metadata["digest"]:
        detail += f", but those that are installed have {found}"
    return SanityCheck(
        name=CHECKED, is_passed=found == metadata["digest"], detail=detail
    )


def held_out(
    source: TextSource, *, num_sequences: int, sequence_length: int
) -> tuple[np.ndarray, np.ndarray]:
    """The first examples of the held-out split, in their random, fixed order."""
    dataset = source.builder.as_dataset(
        split=source.evaluation_split,
        read_config=sources.read_config(seed=0, num_threads=_NUM_THREADS),
    )
    options = replicator.default_data_options(num_threads=_NUM_THREADS)
    dataset = dataset.take(num_sequences).with_options(options)
    found = list(dataset.as_numpy_iterator())
    tokens = np.stack([example["text"][:sequence_length] for example in found])
    return tokens, np.array([example["file"] for example in found])


if __name__ == "__main__":
    builders.write(TensorflowSource)
