"""The cluster that this process is in: one, joined once, in one role.

TensorFlow has one cluster per process, so what joining makes (a runtime, a watch, a
strategy) is made once, and shared by all replicators of the process.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar, cast

import tensorflow as tf

from replicator.errors import ClusterConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from replicator.cluster.configuration import ClusterConfig

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Membership:
    role: str
    config: ClusterConfig
    made: Any


_JOINED: list[_Membership] = []


def join_once(role: str, config: ClusterConfig, join: Callable[[], _T]) -> _T:
    """Joins a cluster in a role; later calls return what the first one made.

    Args:
      role: What this process is in the cluster, in a few words, for messages.
      config: The cluster, and the place of this process in it.
      join: Joins it; if it raises, the process has not joined.

    Raises:
      ClusterConfigError: The process has joined another cluster, or in another role.
    """
    # TensorFlow cannot leave a cluster: its context, its server and the incarnations by
    # which others know it are made once. A restarted job is a new generation of
    # processes, never a second cluster in an old one.
    for joined in _JOINED:
        if joined.role != role or _place(joined.config) != _place(config):
            raise ClusterConfigError(
                f"this process is already {_describe(joined.role, joined.config)}, "
                f"and cannot become {_describe(role, config)}; TensorFlow allows one "
                "cluster per process: start a new process"
            )
        return cast("_T", joined.made)
    made = join()
    _JOINED.append(_Membership(role=role, config=config, made=made))
    return made


def resolver_of(config: ClusterConfig) -> Any:
    """The cluster as TensorFlow's strategies take it."""
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(
            {kind: list(addresses) for kind, addresses in config.addresses.items()}
        ),
        task_type=config.kind,
        task_id=config.index,
        rpc_layer="grpc",
    )


def _place(config: ClusterConfig) -> tuple[dict[str, tuple[str, ...]], str, int]:
    return dict(config.addresses), config.kind, config.index


def _describe(role: str, config: ClusterConfig) -> str:
    everyone = [a for of_kind in config.addresses.values() for a in of_kind]
    return f"{role} {config.kind} {config.index} of {', '.join(everyone)}"
