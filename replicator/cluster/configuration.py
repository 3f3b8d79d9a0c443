"""Cluster configuration: all processes, which one this is, and which are reachable.

It follows TensorFlow's convention: the environment variable ``TF_CONFIG`` has the
addresses of all processes by kind (``chief``, ``worker``, ``ps``, ``evaluator``), and
the kind and index of this one. It does not import TensorFlow, so launchers can use it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
import os
import socket
import time
from typing import TYPE_CHECKING, Any

from replicator.errors import (
    ClusterConfigError,
    PortInUseError,
    UnreachableError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

KINDS = ("chief", "worker", "ps", "evaluator")
_EXAMPLE = (
    '{"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}, '
    '"task": {"type": "worker", "index": 0}}'
)
_MAX_PORT = 65535
_POLL_SEC = 0.1
_CONNECT_SEC = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ClusterConfig:
    """The processes of a cluster, and which of them this one is.

    Attributes:
      addresses: ``name:port`` of every process, by kind.
      kind: Kind of this process: ``chief``, ``worker``, ``ps`` or ``evaluator``.
      index: Its index among the processes of its kind.
      i_trust_this_network: Whether something else, such as a firewall, blocks untrusted
        hosts from the cluster's ports; see ``replicator.cluster.network``.
    """

    addresses: Mapping[str, tuple[str, ...]]
    kind: str
    index: int
    i_trust_this_network: bool = False

    def __post_init__(self) -> None:
        _check_addresses(self.addresses)
        _check_own(self.addresses, self.kind, self.index)

    @classmethod
    def from_tf_config(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        i_trust_this_network: bool = False,
    ) -> ClusterConfig:
        """Reads ``TF_CONFIG``.

        Args:
          environ: The environment; by default that of this process.
          i_trust_this_network: See the attribute.

        Returns:
          The cluster.

        Raises:
          ClusterConfigError: ``TF_CONFIG`` is missing, incomplete or wrong; the message
            says what to write.
        """
        text = (os.environ if environ is None else environ).get("TF_CONFIG")
        if not text:
            raise ClusterConfigError(
                "TF_CONFIG is not set, so this process does not know its cluster; set "
                f"it in every process, for example TF_CONFIG='{_EXAMPLE}'"
            )
        try:
            config = json.loads(text)
        except json.JSONDecodeError as error:
            raise ClusterConfigError(
                f"TF_CONFIG is not JSON ({error}): {text!r}; write it like '{_EXAMPLE}'"
            ) from error
        if not isinstance(config, dict):
            raise ClusterConfigError(
                f"TF_CONFIG must be a JSON object, but is {text!r}; write it like "
                f"'{_EXAMPLE}'"
            )
        for part in ("cluster", "task"):
            if not isinstance(config.get(part), dict) or not config[part]:
                raise ClusterConfigError(
                    f"TF_CONFIG has no {part!r} object: {text!r}; write it like "
                    f"'{_EXAMPLE}'"
                )
        own = config["task"]
        for key in ("type", "index"):
            if key not in own:
                raise ClusterConfigError(
                    f"TF_CONFIG['task'] has no {key!r}: {own!r}; it says which process "
                    "this one is, for example {'type': 'worker', 'index': 0}"
                )
        return cls(
            addresses=_tuples(config["cluster"]),
            kind=own["type"],
            index=_as_index(own["index"]),
            i_trust_this_network=i_trust_this_network,
        )

    @classmethod
    def from_resolver(
        cls, resolver: Any, *, i_trust_this_network: bool = False
    ) -> ClusterConfig:
        """Reads a ``tf.distribute.cluster_resolver.ClusterResolver``.

        Args:
          resolver: The resolver.
          i_trust_this_network: See the attribute.

        Raises:
          ClusterConfigError: It does not know the cluster or this process's index.
        """
        addresses = resolver.cluster_spec().as_dict()
        return cls(
            addresses=_tuples(addresses),
            kind=resolver.task_type,
            index=_as_index(resolver.task_id),
            i_trust_this_network=i_trust_this_network,
        )

    @property
    def address(self) -> str:
        """Where this process listens."""
        return self.addresses[self.kind][self.index]

    @property
    def workers(self) -> tuple[tuple[str, int], ...]:
        """Kind and index of all workers, by worker id; a chief is worker 0."""
        return tuple(
            (kind, index)
            for kind in ("chief", "worker")
            for index in range(len(self.addresses.get(kind, ())))
        )

    @property
    def num_workers(self) -> int:
        """Processes that train, including a chief."""
        return len(self.workers)

    @property
    def worker_id(self) -> int:
        """Index of this process among the workers.

        Raises:
          ClusterConfigError: This process is not a worker.
        """
        own = (self.kind, self.index)
        if own not in self.workers:
            raise ClusterConfigError(
                f"this process is {self.kind}:{self.index}, not a worker; start "
                "it as 'chief' or 'worker' (TF_CONFIG['task']['type'])"
            )
        return self.workers.index(own)

    @property
    def is_chief(self) -> bool:
        """Whether this process is worker 0, the one that writes checkpoints."""
        return (self.kind, self.index) == self.workers[0]

    def address_of(self, worker_id: int) -> str:
        """Where a worker listens."""
        kind, index = self.workers[worker_id]
        return self.addresses[kind][index]

    def name_of(self, worker_id: int) -> str:
        """Name of a worker in messages: its id and address."""
        return f"worker {worker_id} ({self.address_of(worker_id)})"


def wait_for(
    addresses: Mapping[str, Sequence[str]], timeout_sec: float, *, own: str = ""
) -> None:
    """Waits until every process accepts connections.

    Args:
      addresses: ``name:port`` by kind, such as ``ClusterConfig.addresses``.
      timeout_sec: Longest wait in all.
      own: The address of this process, which is not waited for.

    Raises:
      UnreachableError: Some do not respond; the message names them.
    """
    missing = {
        f"{kind} {index}": address
        for kind, of_kind in addresses.items()
        for index, address in enumerate(of_kind)
        if address != own
    }
    num_all = len(missing)
    deadline = time.monotonic() + timeout_sec
    while True:
        for name, address in list(missing.items()):
            left_sec = max(deadline - time.monotonic(), 0.01)
            found = attempt_connection(address, min(_CONNECT_SEC, left_sec))
            if found is ConnectionAttempt.ACCEPTED:
                del missing[name]
        if not missing:
            return
        if time.monotonic() >= deadline:
            names = ", ".join(f"{n} at {address}" for n, address in missing.items())
            raise UnreachableError(
                f"no response from {len(missing)} of {num_all} processes within "
                f"{timeout_sec:g} s: {names}; check that they were started, that "
                "TF_CONFIG has the same addresses everywhere, and that no firewall "
                "blocks them; a larger timeout_sec waits longer"
            )
        time.sleep(_POLL_SEC)


def check_port_is_free(address: str) -> None:
    """Makes sure that this process can listen at its address.

    Raises:
      PortInUseError: Another process listens there.
    """
    port = split_address(address)[1]
    # TensorFlow's server listens on all interfaces and does not share its port.
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError as error:
            raise PortInUseError(
                f"port {port} of this process ({address}) is in use: {error.strerror}; "
                "stop the process that listens there (perhaps an earlier run), or set "
                "another port in TF_CONFIG on every process"
            ) from error


def split_address(address: str) -> tuple[str, int]:
    """Splits ``name:port``; the name may be an IPv6 address in brackets.

    Raises:
      ClusterConfigError: It is not of that form.
    """
    name, _, port = str(address).rpartition(":")
    is_number = port.isascii() and port.isdigit() and 0 < int(port) <= _MAX_PORT
    if not isinstance(address, str) or not name or "/" in name or not is_number:
        raise ClusterConfigError(
            f"address {address!r} is not of the form 'name:port' with a port from 1 to "
            f"{_MAX_PORT}; write for example '10.0.0.1:2222'"
        )
    return name.strip("[]"), int(port)


class ConnectionAttempt(enum.Enum):
    """The result of a connection attempt."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    NO_RESPONSE = "no response"


def attempt_connection(address: str, timeout_sec: float) -> ConnectionAttempt:
    """Tries to connect; tells a closed port from a machine that does not respond."""
    try:
        with socket.create_connection(split_address(address), timeout=timeout_sec):
            return ConnectionAttempt.ACCEPTED
    except ConnectionRefusedError:
        return ConnectionAttempt.REFUSED
    except OSError:
        return ConnectionAttempt.NO_RESPONSE


def _tuples(addresses: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    for kind, of_kind in addresses.items():
        if not isinstance(of_kind, (list, tuple)) or not of_kind:
            raise ClusterConfigError(
                f"the cluster's {kind!r} must be a list of addresses, but is "
                f"{of_kind!r}; write for example ['10.0.0.1:2222', '10.0.0.2:2222']"
            )
    return {kind: tuple(of_kind) for kind, of_kind in addresses.items()}


def _as_index(index: Any) -> int:
    if isinstance(index, bool) or not isinstance(index, (int, str)):
        raise ClusterConfigError(f"index {index!r} of this process is not an integer")
    try:
        return int(index)  # some launchers write "0"
    except ValueError:
        raise ClusterConfigError(
            f"index {index!r} of this process is not an integer"
        ) from None


def _check_addresses(addresses: Mapping[str, tuple[str, ...]]) -> None:
    for kind in addresses:
        if kind not in KINDS:
            raise ClusterConfigError(
                f"the cluster has processes of unknown kind {kind!r}; kinds are "
                f"{', '.join(map(repr, KINDS))}"
            )
    if len(addresses.get("chief", ())) > 1:
        raise ClusterConfigError(
            f"the cluster has {len(addresses['chief'])} chiefs, but at most one is "
            "allowed; list the others as 'worker'"
        )
    if not addresses.get("worker") and not addresses.get("chief"):
        raise ClusterConfigError(
            f"the cluster has no 'worker': {dict(addresses)!r}; list every worker's "
            "address, including this process"
        )
    everyone = [address for of_kind in addresses.values() for address in of_kind]
    for address in everyone:
        split_address(address)
        if everyone.count(address) > 1:
            raise ClusterConfigError(
                f"address {address!r} is listed twice in the cluster; every process "
                "needs its own"
            )


def _check_own(addresses: Mapping[str, Any], kind: Any, index: int) -> None:
    if kind not in addresses:
        raise ClusterConfigError(
            f"this process is of kind {kind!r}, but the cluster lists only "
            f"{', '.join(map(repr, addresses))}; TF_CONFIG['task']['type'] must be one "
            "of them"
        )
    num_of_kind = len(addresses[kind])
    if not 0 <= index < num_of_kind:
        raise ClusterConfigError(
            f"index {index!r} of this process is out of range: the cluster lists "
            f"{num_of_kind} of kind {kind!r}, so TF_CONFIG['task']['index'] must be 0 "
            f"to {num_of_kind - 1}"
        )
