"""Names and facts of the backends, readable without TensorFlow."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class BackendInfo:
    """What a planner needs to know of a backend.

    Attributes:
      name: The name users type.
      target: ``module:Class`` of the implementation.
      description: One line.
      kind: ``ours``, ``baseline`` or ``peer`` (a stock TensorFlow strategy).
      max_replicas: Most replicas it can run, or None.
    """

    name: str
    target: str
    description: str
    kind: str
    max_replicas: int | None = None


BACKENDS: dict[str, BackendInfo] = {
    info.name: info
    for info in (
        BackendInfo(
            name="single",
            target="replicator.backends.single:SingleDeviceReplicator",
            description="one replica on one device; the identity, and the baseline",
            kind="baseline",
            max_replicas=1,
        ),
        BackendInfo(
            name="in_graph",
            target="replicator.backends.in_graph:InGraphReplicator",
            description="synchronous replicas linked into one graph of one process",
            kind="ours",
        ),
        BackendInfo(
            name="tf_mirrored",
            target="replicator.backends.strategy:MirroredReplicator",
            description="tf.distribute.MirroredStrategy behind the same contract",
            kind="peer",
        ),
    )
}
