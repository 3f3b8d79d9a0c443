"""Scores images against a reference, by features of a network with fixed weights."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from workloads.metrics import scores
from workloads.metrics.scores import Moments

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from workloads.spec import QualityMetric

_IMAGES_RANK = 4
_CHANNELS = (1, 3)


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

    def extract(
        self, images: np.ndarray, *, num_images_at_once: int = 100
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns features and logits, [examples, ...] float32."""
        check_images(images)
        starts = range(0, len(images), num_images_at_once)
        batches = [self._forward(images[i : i + num_images_at_once]) for i in starts]
        features, logits = (np.concatenate(part) for part in zip(*batches, strict=True))
        return features.astype(np.float32), logits.astype(np.float32)


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
    """Converts floating-point images to uint8, as an image file stores them."""
    images = np.asarray(images, dtype=np.float32)
    if not np.isfinite(images).all():
        raise ValueError(
            "images with values that are not finite have no pixels: a generator that "
            "has diverged has no score"
        )
    levels = (np.clip(images, low, high) - low) * (255.0 / (high - low))
    return np.rint(levels).astype(np.uint8)


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


# Settings that each score depends on, besides images, extractor and reference.
SETTINGS = {
    "fid": "unbiased covariances",
    "kid": f"cubic kernel, blocks of at most {scores.MOST_PER_BLOCK}",
    "inception_score": f"{scores.NUM_SPLITS} splits",
}
_SHOWN_DIGITS = 16  # of 64 hexadecimal ones


class Evaluator:
    """Stores the features of the reference and scores images against them."""

    def __init__(
        self, extractor: FeatureExtractor, reference: np.ndarray, *, reference_name: str
    ) -> None:
        self.extractor = extractor
        self._shape = reference.shape[1:]
        features, _ = extractor.extract(reference)
        self._reference = features[_order(len(features))]
        self._moments = Moments.of(features)
        digest = digest_arrays({"images": reference})
        self._described = (
            f"reference {reference_name}, n = {len(features)}, {digest[:_SHOWN_DIGITS]}"
        )

    def score(self, images: np.ndarray) -> tuple[QualityMetric, ...]:
        check_images(images)
        if images.shape[1:] != self._shape:
            raise ValueError(
                f"images of {images.shape[1:]} cannot be scored against a reference of "
                f"{self._shape}: resizing changes scores; resize both to "
                "the same size first, with the same code"
            )
        order = _order(len(images))
        features, logits = (part[order] for part in self.extractor.extract(images))
        figures = (
            scores.fid(features, self._moments),
            scores.kid(features, self._reference),
            scores.inception_score(logits),
        )
        return tuple(map(self._with_protocol, figures))

    def _with_protocol(self, figure: QualityMetric) -> QualityMetric:
        """Returns a figure with all that changes it while the generator stays."""
        if math.isnan(figure.low):
            raise ValueError(
                f"{figure.name} of {figure.num_examples} examples has "
                f"{figure.method}: a quality metric needs an interval; generate more "
                "examples, or report kid, which has one at any n"
            )
        parts = [
            SETTINGS[figure.name],
            f"extractor {self.extractor.name} {self.extractor.digest[:_SHOWN_DIGITS]}",
            self.extractor.preparation(self._shape),
        ]
        if figure.name != "inception_score":  # which has no reference
            parts.append(self._described)
        return dataclasses.replace(figure, protocol="; ".join(parts))


def _order(num_examples: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(num_examples)
