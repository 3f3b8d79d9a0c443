"""Inception v3 from the frozen graph of 2015, which published scores use."""

from __future__ import annotations

import hashlib
import pathlib
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from google.protobuf import message

from workloads.metrics.evaluator import FeatureExtractor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


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


class InceptionExtractor(FeatureExtractor):
    """Inception v3: the 2,048 values of the last pooling and the class logits."""

    name = "inception"
    num_features = NUM_FEATURES

    def __init__(
        self,
        path: pathlib.Path,
        network: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
    ) -> None:
        self.digest = hashlib.sha256(path.read_bytes()).hexdigest()
        self._network = network
        self._forward = tf.function(self._features_and_logits)
        black = tf.zeros([1, IMAGE_SIZE, IMAGE_SIZE, 3], tf.uint8)
        features, logits = self._forward(black)
        if features.shape[1] != NUM_FEATURES or logits.shape[1] < LEAST_CLASSES:
            raise ValueError(
                f"{str(path)!r} gives {features.shape[1]} features and "
                f"{logits.shape[1]} logits: Inception v3 has {NUM_FEATURES} and at "
                f"least {LEAST_CLASSES}; point to {_WANTED}"
            )

    def preparation(self, image_shape: tuple[int, ...]) -> str:
        height, width, num_channels = image_shape
        return f"uint8 {height} x {width} x {num_channels}, {PREPARATION}"

    def _features_and_logits(self, images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        if images.shape[-1] == 1:
            images = tf.repeat(images, 3, axis=-1)
        return self._network(prepare(images))


def prepare(images: tf.Tensor) -> tf.Tensor:
    """Resizes and scales images like the graph of 2015."""
    resized = tf.raw_ops.ResizeBilinear(
        images=tf.cast(images, tf.float32),
        size=[IMAGE_SIZE, IMAGE_SIZE],
        align_corners=False,
        half_pixel_centers=False,
    )
    return (resized - 128.0) / 128.0


def open_inception(path: str | pathlib.Path) -> InceptionExtractor:
    """Opens ``classify_image_graph_def.pb``, or TF-GAN's frozen copy of it.

    Logits are those without bias, as in the published score (Salimans et al. 2016).
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

    def network(images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        pool, output = imported(images)
        features = tf.reshape(pool, [-1, pool.shape[-1]])
        return features, output if last == _LOGITS else features @ output

    return InceptionExtractor(path, network)


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
