"""Inception v3 from the frozen graph of 2015, which published scores use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf
from google.protobuf import message

from workloads.metrics.extractors.inception_network import (
    PREPARATION_2015,
    InceptionExtractor,
    prepare_2015,
)

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterable, Mapping

# After resizing and scaling, which the graph does only for one image.
_INPUT, _POOL = "Mul", "pool_3"
# TF-GAN's copy of the graph takes many images, and has these logits.
_LOGITS = "logits"
# The original computes those of one image; its weights work for many.
_PRODUCT = "softmax/logits/MatMul"


def open_graph(path: pathlib.Path) -> InceptionExtractor:
    """Opens ``classify_image_graph_def.pb``, or TF-GAN's frozen copy of it.

    Logits are those without bias, as in the published Inception score (Salimans et al.
    2016 multiply the features by the weights).

    Raises:
      ValueError: Not a frozen graph, or without the nodes of Inception of 2015.
    """
    graph_def = tf.compat.v1.GraphDef()
    try:
        graph_def.ParseFromString(path.read_bytes())
    except message.DecodeError as error:
        raise ValueError(
            f"{str(path)!r} is not a frozen graph ({error}): point to "
            "classify_image_graph_def.pb or TF-GAN's frozen copy"
        ) from error
    nodes = {node.name: node for node in graph_def.node}
    last = next((name for name in (_LOGITS, _PRODUCT) if name in nodes), _PRODUCT)
    missing = [name for name in (_INPUT, _POOL, last) if name not in nodes]
    if missing:
        raise ValueError(
            f"{str(path)!r} has no nodes {missing}: it is not the Inception graph of "
            "2015; point to classify_image_graph_def.pb or TF-GAN's frozen copy"
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

    def network(images: tf.Tensor) -> tuple[Any, Any]:
        pool, found = imported(images)
        features = tf.reshape(pool, [-1, pool.shape[-1]])
        return features, found if last == _LOGITS else features @ found

    return InceptionExtractor(
        path, prepare=prepare_2015, preparation=PREPARATION_2015, network=network
    )


def _behind(nodes: Mapping[str, Any], names: Iterable[str]) -> set[str]:
    """Returns the nodes that ``names`` need, up to the input and without it."""
    found: set[str] = set()
    waiting = [_node_of(name) for name in names]
    while waiting:
        name = waiting.pop()
        if name not in found and name != _INPUT:
            found.add(name)
            waiting += [_node_of(source) for source in nodes[name].input]
    return found


def _node_of(name: str) -> str:
    """Returns the node of a tensor (``name:0``) or of a control input (``^name``)."""
    return name.removeprefix("^").partition(":")[0]
