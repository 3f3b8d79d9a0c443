"""Payload: one worker's contribution to a checkpoint, as bytes for a collective.

The format is TensorFlow's own ``tf.train.Example``, so that reading a checkpoint never
executes code.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LOCAL = "local/"
_ITERATOR = "iterator/"
_REASON = "reason"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Payload:
    """State that only one worker has."""

    # By variable path, the value on each replica of the worker.
    local: Mapping[str, Sequence[Any]]
    # State of each of its input pipelines; None if there is none to save.
    iterators: Sequence[Sequence[bytes]] | None = None
    reason: str = ""  # Why ``iterators`` is None although there are pipelines.


def encode(payload: Payload) -> bytes:
    """Writes a payload."""
    features = {
        _LOCAL + path: _feature([_to_bytes(value) for value in values])
        for path, values in payload.local.items()
    }
    for index, parts in enumerate(payload.iterators or ()):
        features[f"{_ITERATOR}{index}"] = _feature(parts)
    features[_REASON] = _feature([payload.reason.encode()])
    example = tf.train.Example(features=tf.train.Features(feature=features))
    return bytes(example.SerializeToString())


def decode(text: bytes) -> Payload:
    """Reads the result of ``encode``."""
    features = tf.train.Example.FromString(text).features.feature
    local = {
        key[len(_LOCAL) :]: [_from_bytes(part) for part in value.bytes_list.value]
        for key, value in features.items()
        if key.startswith(_LOCAL)
    }
    num_iterators = sum(key.startswith(_ITERATOR) for key in features)
    iterators = [
        list(features[f"{_ITERATOR}{index}"].bytes_list.value)
        for index in range(num_iterators)
    ]
    (reason,) = features[_REASON].bytes_list.value
    return Payload(local=local, iterators=iterators or None, reason=reason.decode())


def _feature(parts: Sequence[bytes]) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=parts))


def _to_bytes(value: Any) -> bytes:
    return bytes(tf.make_tensor_proto(np.asarray(value)).SerializeToString())


def _from_bytes(text: bytes) -> Any:
    proto = tf.make_tensor_proto(0)
    proto.Clear()
    proto.ParseFromString(text)
    return tf.make_ndarray(proto)
