"""A TensorFlow server: what the workers of a job with one client run.

    python -m replicator.server [--num-cpu-devices N] [--client-timeout-sec S]

Reads ``TF_CONFIG`` to learn which process of the cluster this is, and does what the
client asks for: the chief or, in a cluster without one, worker 0, which runs the
training program. Serves until the client leaves, or until it is told to stop
(SIGTERM). The same program serves ``multi_worker_in_graph``, ``async`` and
``tf_parameter_server``.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from replicator.cluster import ClusterConfig, Knock, check_port_is_free, knock
from replicator.errors import ClusterConfigError, ReplicatorError, UnreachableError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SERVED_KINDS = ("worker", "ps")
CLIENT_TIMEOUT_SEC = 600.0
# A client whose port is closed has left; a machine that is silent may be unreachable
# for a moment.
_CLOSED_SEC = 2.0
_SILENT_SEC = 30.0
_POLL_SEC = 0.5
_CONNECT_SEC = 2.0


def serve(
    config: ClusterConfig,
    *,
    num_cpu_devices: int = 1,
    client_timeout_sec: float = CLIENT_TIMEOUT_SEC,
) -> None:
    """Serves the client of a cluster; returns when the client has left.

    TensorFlow cannot stop a server, so the process should end then.

    Args:
      config: The cluster and the place of this process in it.
      num_cpu_devices: Virtual devices into which this process splits its CPU, so that
        several replicas of one worker have a device each.
      client_timeout_sec: Longest wait for the client to appear.

    Raises:
      ClusterConfigError: This process is not one that serves, such as the chief.
      PortInUseError: Another process listens at this one's address.
      UnreachableError: The client did not appear.
    """
    _check_serves(config)
    check_port_is_free(config.address)
    server = _start(config, num_cpu_devices)
    print(  # noqa: T201 (launchers wait for this line)
        f"{config.kind} {config.index} serves at {config.address} for the client "
        f"{config.name_of(0)}",
        flush=True,
    )
    _wait_for_client(config, client_timeout_sec)
    _wait_until_left(config.address_of(0))
    del server  # it serves as long as it is referenced


def _check_serves(config: ClusterConfig) -> None:
    if config.kind not in _SERVED_KINDS:
        raise ClusterConfigError(
            f"this process is {config.kind!r} {config.index}, and only "
            f"{' and '.join(map(repr, _SERVED_KINDS))} run replicator.server; start "
            "your own program as the chief, and check TF_CONFIG['task'] here"
        )
    if config.kind == "worker" and config.is_chief:
        raise ClusterConfigError(
            f"this process is {config.name_of(0)}, and without a chief worker 0 is the "
            "client: start your own program here, and replicator.server on the others; "
            "TF_CONFIG['task']['index'] says which process this is"
        )


def _start(config: ClusterConfig, num_cpu_devices: int) -> Any:
    import tensorflow as tf

    num_devices = num_cpu_devices if config.kind == "worker" else 1
    return tf.distribute.Server(
        {kind: list(addresses) for kind, addresses in config.addresses.items()},
        job_name=config.kind,
        task_index=config.index,
        protocol="grpc",
        config=tf.compat.v1.ConfigProto(device_count={"CPU": num_devices}),
        start=True,
    )


def _wait_for_client(config: ClusterConfig, timeout_sec: float) -> None:
    deadline = time.monotonic() + timeout_sec
    while knock(config.address_of(0), _CONNECT_SEC) is not Knock.ACCEPTED:
        if time.monotonic() > deadline:
            raise UnreachableError(
                f"the client, {config.name_of(0)}, did not appear within "
                f"{timeout_sec:g} s; start the training program there with the same "
                "TF_CONFIG, or wait longer with --client-timeout-sec"
            )
        time.sleep(_POLL_SEC)


def _wait_until_left(address: str) -> None:
    # The client listens, as part of the cluster, from when it connects until it ends
    # in whatever way; a stopped or busy one still accepts, through its kernel.
    last_seen = time.monotonic()
    while True:
        time.sleep(_POLL_SEC)
        found = knock(address, _CONNECT_SEC)
        if found is Knock.ACCEPTED:
            last_seen = time.monotonic()
        limit_sec = _CLOSED_SEC if found is Knock.REFUSED else _SILENT_SEC
        if time.monotonic() - last_seen > limit_sec:
            return


def main(argv: Sequence[str] | None = None) -> None:
    """Serves as ``TF_CONFIG`` says; returns when the client has left.

    Raises:
      ReplicatorError: See ``serve``.
    """
    parser = argparse.ArgumentParser(
        prog="python -m replicator.server", description="Serves one client's cluster."
    )
    parser.add_argument(
        "--num-cpu-devices",
        type=int,
        default=1,
        help="virtual CPU devices of a worker, one per replica (default 1)",
    )
    parser.add_argument(
        "--client-timeout-sec",
        type=float,
        default=CLIENT_TIMEOUT_SEC,
        help="longest wait for the client to appear (default %(default)g)",
    )
    arguments = parser.parse_args(argv)
    serve(
        ClusterConfig.from_tf_config(),
        num_cpu_devices=arguments.num_cpu_devices,
        client_timeout_sec=arguments.client_timeout_sec,
    )


def run(argv: Sequence[str] | None = None) -> NoReturn:
    """The program: serves, says in one line why it ends, and ends the process.

    Args:
      argv: Arguments as for ``python -m replicator.server``; by default this process's.
    """
    signal.signal(signal.SIGTERM, lambda *_: _end("was told to stop", 0))
    try:
        main(argv)
    except ReplicatorError as error:
        _end(f"error: {error}", 1)
    _end("the client left", 0)


def _end(message: str, exit_code: int) -> NoReturn:
    # Not sys.exit: TensorFlow's server threads may hold up the interpreter's end.
    print(f"replicator.server: {message}", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(exit_code)


if __name__ == "__main__":
    run()
