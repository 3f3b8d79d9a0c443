"""A TensorFlow server: what workers and parameter servers of one client run.

    python -m replicator.server [--num-cpu-devices N]

Reads ``TF_CONFIG`` to learn which process of the cluster this is, serves until it is
ended, and does what the client (the chief) asks for. The same program runs on every
worker and parameter server of ``async``, ``tf_parameter_server`` and
``multi_worker_in_graph``.
"""

from __future__ import annotations

import argparse
import logging
from typing import TYPE_CHECKING, NoReturn

from replicator.cluster import ClusterConfig, check_port_is_free
from replicator.errors import ClusterConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOG = logging.getLogger(__name__)
_SERVED_KINDS = ("worker", "ps")


def serve(config: ClusterConfig, *, num_cpu_devices: int = 1) -> NoReturn:
    """Serves the client of a cluster; never returns.

    Args:
      config: The cluster and the place of this process in it.
      num_cpu_devices: Virtual devices into which this process splits its CPU, so that
        several replicas of one worker have a device each.

    Raises:
      ClusterConfigError: This process is not one that serves, such as the chief.
      PortInUseError: Another process listens at this one's address.
      DeviceError: The CPU cannot be split.
    """
    if config.kind not in _SERVED_KINDS:
        raise ClusterConfigError(
            f"this process is {config.kind!r} {config.index}, and only "
            f"{' and '.join(map(repr, _SERVED_KINDS))} run replicator.server; start "
            "your own program as the chief, and check TF_CONFIG['task'] here"
        )
    check_port_is_free(config.address)
    import tensorflow as tf

    from replicator import devices

    if num_cpu_devices > 1 and config.kind == "worker":
        devices.split_cpu(num_cpu_devices)
    server = tf.distribute.Server(
        {kind: list(addresses) for kind, addresses in config.addresses.items()},
        job_name=config.kind,
        task_index=config.index,
        protocol="grpc",
        start=True,
    )
    _LOG.info("%s %d serves at %s", config.kind, config.index, config.address)
    server.join()
    raise AssertionError("a TensorFlow server does not end by itself")


def main(argv: Sequence[str] | None = None) -> None:
    """Serves as ``TF_CONFIG`` says."""
    parser = argparse.ArgumentParser(
        prog="python -m replicator.server", description="Serves one client's cluster."
    )
    parser.add_argument(
        "--num-cpu-devices",
        type=int,
        default=1,
        help="virtual CPU devices of a worker, one per replica (default 1)",
    )
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    serve(ClusterConfig.from_tf_config(), num_cpu_devices=arguments.num_cpu_devices)


if __name__ == "__main__":
    main()
