"""Input pipelines of text: bytes as tokens, of TensorFlow's own Python files.

An example is a piece of a file; a sequence is a part of one, as a crop is of an image.
A batch is a dict: ``token`` [sequences, length] uint8, ``example_id`` [sequences]
int64.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from workloads.data import sources, text_files
from workloads.data.sources import Examples

if TYPE_CHECKING:
    import replicator

NAME = "tensorflow_source"
# The random numbers of the crops; see ``sources.SHUFFLE_STREAM``.
_CROP_STREAM = 2
_NUM_THREADS = 1  # nothing is decoded


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TextSource(Examples):
    """Pieces of files: ``text`` [pieces, 1024] uint8, and ``file``, a number."""

    description: str  # How much text it is, of which release, and its digest.


def open_source(name: str) -> TextSource:
    """Opens the Python files of the installed TensorFlow, in pieces of 1,024 bytes.

    Needs no network. The held-out split has other files than the training split.
    """
    if name != NAME:
        raise ValueError(f"data {name!r} is not a text: use {NAME!r}")
    version, found = text_files.version(), text_files.read()
    pieces: dict[str, dict[str, tuple[int, bytes]]] = {"train": {}, "test": {}}
    for index, file in enumerate(found):
        part = pieces["test" if file.is_held_out else "train"]
        for number, chunk in enumerate(file.chunks):
            part[f"{file.path}:{number}"] = index, chunk
    splits = {}
    for split, by_key in pieces.items():
        order = sources.in_stored_order(split, by_key)
        files, chunks = zip(*(by_key[key] for key in order), strict=True)
        text = np.frombuffer(b"".join(chunks), np.uint8)
        splits[split] = {
            "text": text.reshape(-1, text_files.CHUNK_SIZE),
            "file": np.array(files),
        }
    num_bytes = sum(len(file.content) for file in found)
    return TextSource(
        name=name,
        splits=splits,
        description=f"{len(found)} files, {num_bytes} bytes of tensorflow {version}, "
        f"SHA-256 {text_files.digest_of(found)}",
    )


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
    dataset = source.read("train", sources.shard(source, context))
    dataset = sources.shuffled(dataset, config.shuffle_buffer_size, seed, pipeline_id)
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
