"""Share transfer: from the program that updates a share to all other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from replicator.engine.graph.emitter import Emitter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from replicator.engine.analysis.shares import Share
    from replicator.engine.graph.body import Ref
    from replicator.engine.link.cross_worker import CrossWorker


def send(
    shares: Sequence[Share],
    name: str,
    workers: CrossWorker,
    sent: Mapping[tuple[str, str], Ref],
    device: str,
) -> tuple[dict[tuple[str, str], Ref], list[Any]]:
    """Emits the transfer of one bucket, from its source to all other programs."""
    emit = Emitter()
    dtype = shares[0].dtype
    keys = [(share.node, share.handle) for share in shares]
    shapes = [share.shape.as_list() for share in shares]
    packed = None
    if keys[0] in sent:
        values = [sent[k] for k in keys]
        packed = emit.pack(f"{name}/packed", values, shapes, dtype, device)
    size = sum(int(share.shape.num_elements()) for share in shares)
    received = workers.move(
        name, packed, dtype, tf.TensorShape([size]), shares[0].source, device
    )
    parts = emit.unpack(f"{name}/unpacked", received, shapes, dtype, device)
    return dict(zip(keys, parts, strict=True)), emit.nodes
