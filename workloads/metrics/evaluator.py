"""Scores images against a reference, by features of a network with fixed weights."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from google.protobuf import message

from . import quality

if TYPE_CHECKING:
    from workloads.spec import QualityMetric

_IMAGES_RANK = 4
_CHANNELS = (1, 3)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FeatureExtractor:
    """A network with fixed weights."""

    name: str  # Name, such as ``inception``.
    # SHA-256 of the weights, hexadecimal: extractors with the same name and different
    # digests are different extractors.
    digest: str
    forward: Callable[[np.ndarray], tuple[Any, Any]]  # Features and logits.
    resizing: Callable[[tuple[int, ...]], str]  # What is done to images of a shape.

    def preparation(self, image_shape: tuple[int, ...]) -> str:
        """Describes the preparation of images of [height, width, channels]."""
        sizes = " x ".join(map(str, image_shape))
        return f"uint8 {sizes}, {self.resizing(image_shape)}"

    def extract(
        self, images: np.ndarray, *, num_images_at_once: int = 100
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns features and logits, [examples, ...] float32."""
        check_images(images)
        starts = range(0, len(images), num_images_at_once)
        batches = [self.forward(images[i : i + num_images_at_once]) for i in starts]
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


# Inception v3 from the frozen graph of 2015, which published scores use.

IMAGE_SIZE = 299
NUM_FEATURES = 2048
LEAST_CLASSES = 1000
PREPARATION = (
    "299 x 299 bilinear as TensorFlow 1 (corners at pixel 0, no antialiasing), "
    "(x - 128) / 128"
)
_WANTED = "classify_image_graph_def.pb or TF-GAN's frozen copy"
# After resizing and scaling, which the graph does only for one image.
_INPUT, _POOL = "Mul", "pool_3"
# TF-GAN's copy of the graph takes many images, and has these logits.
_LOGITS = "logits"
# The original computes those of one image; its weights work for many.
_PRODUCT = "softmax/logits/MatMul"


def open_inception(path: str | pathlib.Path) -> FeatureExtractor:
    """Opens ``classify_image_graph_def.pb``, or TF-GAN's frozen copy of it.

    Features are the 2,048 values of the last pooling. Logits are those without bias, as
    in the published score (Salimans et al. 2016).
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise ValueError(f"inception weights {str(path)!r} are no file: use {_WANTED}")
    graph_def = tf.compat.v1.GraphDef()
    try:
        graph_def.ParseFromString(path.read_bytes())
    except message.DecodeError as error:
        raise ValueError(
            f"{str(path)!r} is not a frozen graph ({error}): point to {_WANTED}"
        ) from error
    nodes = {node.name: node for node in graph_def.node}
    last = next((name for name in (_LOGITS, _PRODUCT) if name in nodes), _PRODUCT)
    missing = [name for name in (_INPUT, _POOL, last) if name not in nodes]
    if missing:
        raise ValueError(
            f"{str(path)!r} has no nodes {missing}: it is not the Inception graph of "
            f"2015; point to {_WANTED}"
        )
    wanted = nodes[_PRODUCT].input[1] if last == _PRODUCT else _LOGITS
    needed = _behind(nodes, (_POOL, wanted))
    # The original ends in a reshape to one image, which must not be imported.
    part = tf.compat.v1.GraphDef(versions=graph_def.versions, library=graph_def.library)
    part.node.extend(node for node in graph_def.node if node.name in needed)

    def imported(images: tf.Tensor) -> Any:
        return tf.graph_util.import_graph_def(
            part,
            input_map={f"{_INPUT}:0": images},
            return_elements=[f"{_POOL}:0", f"{_node_of(wanted)}:0"],
            name="",
        )

    @tf.function
    def forward(images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if images.shape[-1] == 1:
            images = tf.repeat(images, 3, axis=-1)
        resized = tf.raw_ops.ResizeBilinear(  # as the graph does, and TensorFlow 1 did
            images=tf.cast(images, tf.float32),
            size=[IMAGE_SIZE, IMAGE_SIZE],
            align_corners=False,
            half_pixel_centers=False,
        )
        pool, output = imported((resized - 128.0) / 128.0)
        features = tf.reshape(pool, [-1, pool.shape[-1]])
        return features, output if last == _LOGITS else features @ output

    black = tf.zeros([1, IMAGE_SIZE, IMAGE_SIZE, 3], tf.uint8)
    features, logits = forward(black)
    if features.shape[1] != NUM_FEATURES or logits.shape[1] < LEAST_CLASSES:
        raise ValueError(
            f"{str(path)!r} gives {features.shape[1]} features and "
            f"{logits.shape[1]} logits: Inception v3 has {NUM_FEATURES} and at "
            f"least {LEAST_CLASSES}; point to {_WANTED}"
        )
    return FeatureExtractor(
        name="inception",
        digest=hashlib.sha256(path.read_bytes()).hexdigest(),
        forward=forward,
        resizing=lambda _: PREPARATION,
    )


def _behind(nodes: Mapping[str, Any], names: Iterable[str]) -> set[str]:
    """Returns the nodes that ``names`` need, up to the input and without it."""
    reached: set[str] = set()
    waiting = [_node_of(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name not in reached and name != _INPUT:
            reached.add(name)
            waiting += [_node_of(source) for source in nodes[name].input]
    return reached


def _node_of(name: str) -> str:
    """Returns the node of a tensor (``name:0``) or of a control input (``^name``)."""
    return name.removeprefix("^").partition(":")[0]


# Settings that each score depends on, besides images, extractor and reference.
SETTINGS = {
    "fid": "unbiased covariances",
    "kid": f"cubic kernel, blocks of at most {quality.MOST_PER_BLOCK}",
    "inception_score": f"{quality.NUM_SPLITS} splits",
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
        self._moments = quality.Moments.of(features)
        digest = digest_arrays({"images": reference})
        self._described = (
            f"reference {reference_name}, n = {len(features)}, {digest[:_SHOWN_DIGITS]}"
        )

    def score(
        self, images: np.ndarray, extracted: tuple[np.ndarray, np.ndarray] | None = None
    ) -> tuple[QualityMetric, ...]:
        """Returns the scores of images, or of what was extracted from them already."""
        check_images(images)
        if images.shape[1:] != self._shape:
            raise ValueError(
                f"images of {images.shape[1:]} cannot be scored against a reference of "
                f"{self._shape}: resizing changes scores; resize both to "
                "the same size first, with the same code"
            )
        order = _order(len(images))
        extracted = extracted or self.extractor.extract(images)
        features, logits = (part[order] for part in extracted)
        return (
            self._with_protocol(quality.fid(features, self._moments)),
            self._with_protocol(quality.kid(features, self._reference)),
            self._with_protocol(quality.inception_score(logits)),
        )

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
