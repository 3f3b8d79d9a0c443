"""Scores generated images against a reference, by one protocol per score."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from workloads.metrics import extractor as extractor_lib
from workloads.metrics import scores
from workloads.metrics.estimate import MetricProtocol, Moments, Score
from workloads.metrics.extractor import check_images
from workloads.metrics.scores import fid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from workloads.metrics.estimate import Estimate
    from workloads.metrics.extractor import FeatureExtractor


# Settings that each score depends on, besides images, extractor and reference.
SETTINGS = {
    "fid": "unbiased covariances",
    "fid_infinity": f"line through at most {scores.NUM_SIZES} sizes",
    "kid": f"cubic kernel, blocks of at most {scores.MOST_PER_BLOCK}",
    "inception_score": f"{scores.NUM_SPLITS} splits",
}
METRICS = tuple(SETTINGS)
_WITHOUT_REFERENCE = ("inception_score",)


class Evaluator:
    """Stores the features of the reference and scores images against them.

    Attributes:
      extractor: The network that computes the features.
      reference_name: Name, such as ``digits/train``.
      reference_shape: Height, width and channels that images must have.
    """

    def __init__(
        self,
        extractor: FeatureExtractor,
        reference: np.ndarray,
        *,
        reference_name: str,
        metrics: Sequence[str] = METRICS,
        seed: int = 0,
    ) -> None:
        """Extracts the features of the reference."""
        unknown = [name for name in metrics if name not in SETTINGS]
        if unknown:
            raise ValueError(
                f"metrics {unknown!r} are unknown: choose from {list(METRICS)}"
            )
        self.extractor = extractor
        self.reference_name = reference_name
        self.reference_shape = reference.shape[1:]
        self._metrics = tuple(metrics)
        self._seed = seed
        features = extractor.extract(reference).features
        self._reference = features[self._order(len(features))]
        self._moments = Moments.of(features)
        self._digest = extractor_lib.digest_arrays({"images": reference})

    def score(self, images: np.ndarray) -> tuple[Score, ...]:
        """Returns the scores of generated images, in the order of ``metrics``."""
        check_images(images)
        if images.shape[1:] != self.reference_shape:
            raise ValueError(
                f"images of {images.shape[1:]} cannot be scored against a reference of "
                f"{self.reference_shape}: resizing changes scores; resize both to "
                "the same size first, with the same code"
            )
        order = self._order(len(images))
        found = self.extractor.extract(images)
        features, logits = found.features[order], found.logits[order]
        return tuple(
            Score(
                estimate=self._estimate(name, features, logits),
                protocol=self._protocol(name, len(images)),
            )
            for name in self._metrics
        )

    def _estimate(
        self, name: str, features: np.ndarray, logits: np.ndarray
    ) -> Estimate:
        if name == "fid":
            return fid(features, self._moments)
        if name == "fid_infinity":
            return scores.fid_infinity(features, self._moments, seed=self._seed)
        if name == "kid":
            return scores.kid(features, self._reference)
        return scores.inception_score(logits)

    def _protocol(self, name: str, num_examples: int) -> MetricProtocol:
        has_reference = name not in _WITHOUT_REFERENCE
        return MetricProtocol(
            metric=name,
            settings=SETTINGS[name],
            extractor=self.extractor.name,
            extractor_digest=self.extractor.digest,
            preparation=self.extractor.preparation(self.reference_shape),
            num_examples=num_examples,
            reference=self.reference_name if has_reference else "",
            reference_digest=self._digest if has_reference else "",
            num_reference_examples=len(self._reference) if has_reference else 0,
        )

    def _order(self, num_examples: int) -> np.ndarray:
        return np.random.default_rng(self._seed).permutation(num_examples)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Ends:
    """Best and worst scores, for comparison with a generator at the same n."""

    # Of real images that are not in the reference: the best score at this n.
    data: tuple[Score, ...]
    noise: tuple[Score, ...]  # Of pixels drawn uniformly from 0 to 255.


def ends_of_scale(evaluator: Evaluator, held_out: np.ndarray, *, seed: int = 0) -> Ends:
    """Scores held-out images and the same number of noise images."""
    noise = np.random.default_rng(seed).integers(
        0, 256, size=held_out.shape, dtype=np.uint8
    )
    return Ends(data=evaluator.score(held_out), noise=evaluator.score(noise))


def disjoint_halves(
    images: np.ndarray, *, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Returns two disjoint random halves; drops one image if their number is odd."""
    size = len(images) // 2
    if not size:
        raise ValueError(
            f"disjoint_halves got {len(images)} images: it needs at least 2"
        )
    order = np.random.default_rng(seed).permutation(len(images))
    return images[order[:size]], images[order[size : 2 * size]]
