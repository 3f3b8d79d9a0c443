"""A TensorFlow server: the program of every worker in a job with one client.

    python -m replicator.server [--num-cpu-devices N] [--client-timeout-sec S]
        [--i-trust-this-network]

Executes the requests of the client, which runs the training program: the chief or, in
a cluster without one, worker 0. Serves until the client exits or SIGTERM arrives. The
same program serves ``multi_worker_in_graph``, ``async`` and ``tf_parameter_server``.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from replicator.cluster import environment, port_filter
from replicator.cluster.liveness import Peer, check_port_is_free
from replicator.errors import ClusterConfigError, ReplicatorError, UnreachableError

if TYPE_CHECKING:
    from replicator.cluster.configuration import ClusterConfig

# A client has exited if its port is closed or belongs to another process; a machine
# that does not respond may be unreachable for a moment only.
CLOSED_SEC = 2.0
NO_RESPONSE_SEC = 10.0  # on top of the time that the connection needs to fail
_POLL_SEC = 0.2
LEFT = "the client has exited"
_SERVED_KINDS = ("worker", "ps")
CLIENT_TIMEOUT_SEC = 600.0


def wait_for_client(client: Peer, name: str, timeout_sec: float) -> None:
    """Waits until the client listens, and records its identity."""
    deadline = time.monotonic() + timeout_sec
    while not client.is_met:
        if time.monotonic() > deadline:
            what = client.found_instead
            instead = f" (another process listens at its address; it {what})"
            raise UnreachableError(
                f"the client, {name}, did not start within {timeout_sec:g} s"
                f"{instead if what else ''}; start the training program there with the "
                "same TF_CONFIG, or increase --client-timeout-sec"
            )
        time.sleep(_POLL_SEC)
        client.has_ended()


def wait_until_left(client: Peer) -> str:
    """Waits until the client has exited; returns the reason."""
    while True:
        client.wait_until_lost()
        # What broke the connection may be a network that takes a moment, and to take
        # that for the client's end would end the job.
        lost = time.monotonic()
        while not client.is_met:
            has_ended = client.has_ended()
            lost_sec = time.monotonic() - lost
            if has_ended and client.found_instead:
                return f"{LEFT}, and another process listens at its address"
            if has_ended and lost_sec > CLOSED_SEC:
                return LEFT
            if lost_sec > NO_RESPONSE_SEC:
                return f"{LEFT}: its machine does not respond"
            time.sleep(_POLL_SEC)


def _start(config: ClusterConfig, num_cpu_devices: int) -> Any:
    import tensorflow as tf

    from replicator.cluster import membership

    num_devices = num_cpu_devices if config.kind == "worker" else 1
    with port_filter.guarded(config):
        return tf.distribute.Server(
            dict(config.addresses),
            job_name=config.kind,
            task_index=config.index,
            protocol="grpc",
            config=tf.compat.v1.ConfigProto(
                device_count={"CPU": num_devices},
                inter_op_parallelism_threads=membership.needed_threads(),
            ),
            start=True,
        )


def main(argv: Sequence[str] | None = None) -> str:
    """Serves the client of a cluster until it has exited; returns the reason."""
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
        help="longest wait for the client to start (default %(default)g)",
    )
    parser.add_argument(
        "--i-trust-this-network",
        action="store_true",
        help="serve every host that can reach the port, also at public addresses: "
        "something else, such as a firewall, blocks untrusted hosts",
    )
    given = parser.parse_args(argv)
    config = environment.detect().config(
        i_trust_this_network=given.i_trust_this_network
    )
    if config.kind not in _SERVED_KINDS:
        raise ClusterConfigError(
            f"this process is {config.kind!r} {config.index}, but only "
            f"{' and '.join(map(repr, _SERVED_KINDS))} run replicator.server; start "
            "your own program as the chief, and check TF_CONFIG['task'] here"
        )
    if config.kind == "worker" and config.is_chief:
        raise ClusterConfigError(
            f"this process is {config.name_of(0)}, and without a chief worker 0 is the "
            "client: start your own program here, and replicator.server on the others; "
            "TF_CONFIG['task']['index'] says which process this is"
        )
    port_filter.check(config)
    check_port_is_free(config.address)
    server = _start(config, given.num_cpu_devices)
    print(  # noqa: T201 (launchers wait for this line)
        f"{config.kind} {config.index} serves at {config.address} for the client "
        f"{config.name_of(0)}",
        flush=True,
    )
    client = Peer(config.address_of(0))
    wait_for_client(client, config.name_of(0), given.client_timeout_sec)
    reason = wait_until_left(client)
    del server  # it serves as long as it is referenced
    return reason


def run(argv: Sequence[str] | None = None) -> NoReturn:
    signal.signal(signal.SIGTERM, lambda *_: _end("stopped by SIGTERM", 0))
    try:
        reason = main(argv)
    except ReplicatorError as error:
        _end(f"error: {error}", 1)
    _end(reason, 0)


def _end(message: str, exit_code: int) -> NoReturn:
    # Not sys.exit: TensorFlow's server threads may block the interpreter's shutdown.
    print(f"replicator.server: {message}", file=sys.stderr, flush=True)  # noqa: T201
    os._exit(exit_code)


if __name__ == "__main__":
    run()
