"""TensorFlow's cluster resolvers."""

from __future__ import annotations

from typing import Any

from replicator.cluster.environment.base import (
    ClusterEnvironment,
    as_index,
    as_tuples,
)


class ResolverEnvironment(ClusterEnvironment):
    """A ``tf.distribute.cluster_resolver.ClusterResolver``, for what only it knows.

    It is not detected: somebody has to make the resolver.
    """

    def __init__(self, resolver: Any) -> None:
        self._resolver = resolver

    def addresses(self) -> dict[str, tuple[str, ...]]:
        """The resolver's cluster."""
        return as_tuples(self._resolver.cluster_spec().as_dict())

    def own(self) -> tuple[str, int]:
        """The resolver's task."""
        return self._resolver.task_type, as_index(self._resolver.task_id)
