"""The interface of a feature extractor: images in, features and class logits out."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Callable, Mapping

_IMAGES_RANK = 4
_CHANNELS = (1, 3)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Features:
    """The output of a network for images."""

    # [num_examples, num_features], float32; for ``fid`` and ``kid``.
    features: np.ndarray
    logits: np.ndarray  # [num_examples, num_classes], float32; for ``inception_score``.


class FeatureExtractor(abc.ABC):
    """A network with fixed weights."""

    name: str  # Name, such as ``inception``.
    # SHA-256 of the weights, hexadecimal: extractors with the same name and different
    # digests are different extractors.
    digest: str
    num_features: int  # Length of a feature vector.
    _forward: Callable[[np.ndarray], tuple[Any, Any]]  # Features and logits.

    @abc.abstractmethod
    def preparation(self, image_shape: tuple[int, ...]) -> str:
        """Describes the preparation of images of [height, width, channels]."""

    def extract(self, images: np.ndarray, *, num_images_at_once: int = 100) -> Features:
        """Returns features and logits of images."""
        check_images(images)
        starts = range(0, len(images), num_images_at_once)
        batches = [self._forward(images[i : i + num_images_at_once]) for i in starts]
        features, logits = (np.concatenate(part) for part in zip(*batches, strict=True))
        return Features(
            features=features.astype(np.float32), logits=logits.astype(np.float32)
        )


def check_images(images: np.ndarray) -> None:
    """Raises unless images are uint8 with 1 or 3 channels."""
    if (
        images.ndim != _IMAGES_RANK
        or images.shape[-1] not in _CHANNELS
        or not images.size
    ):
        raise ValueError(
            f"images of shape {images.shape} must be [examples, height, width, "
            "channels] with 1 or 3 channels and at least one example"
        )
    if images.dtype != np.uint8:
        raise ValueError(
            f"images of type {images.dtype} must be uint8 in [0, 255]: scores depend "
            "on the rounding; use to_uint8(images, low=..., high=...)"
        )


def to_uint8(images: np.ndarray, *, low: float, high: float) -> np.ndarray:
    """Converts floating-point images to uint8, as an image file stores them.

    Values are clipped to [low, high] and rounded to the nearest of 256 levels.
    """
    images = np.asarray(images, dtype=np.float32)
    if not np.isfinite(images).all():
        raise ValueError(
            "images with values that are not finite have no pixels: a generator that "
            "has diverged has no score"
        )
    levels = (np.clip(images, low, high) - low) * (255.0 / (high - low))
    return np.rint(levels).astype(np.uint8)


_CHUNK_BYTES = 2**20


def digest_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """Returns the digest of named arrays: names, types, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        # The same byte order on all machines.
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def digest_file(path: pathlib.Path) -> str:
    """Returns the digest of a file, as ``sha256sum`` does."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
