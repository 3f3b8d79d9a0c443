"""The Ray cluster that a sweep uses: which hosts it has, as far as a gang needs them.

    python -m harness.launch.ray.cluster [HOSTS]

prints them as JSON, and fails if they are fewer. It is a process of its own: Ray starts
threads and changes the handling of signals in every process that connects to it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import LaunchError, causes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ADDRESS_VARIABLE = "RAY_ADDRESS"
_MODE = "RAY_AUTH_MODE"
_TOKEN, _TOKEN_PATH = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
_REFUSED = ("authenticationerror", "invalidauthtoken", "token authentication is enab")
NAMESPACE = "replicator-harness"
_TIMEOUT_SEC = 60.0
_HOW = (
    "start one with 'ray start --head' and 'ray start --address=HOST:PORT' on the other"
    f" hosts, and set {ADDRESS_VARIABLE} to its address"
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RayHost:
    """One host of the cluster."""

    node_id: str  # Ray's id of it.
    address: str  # Its address.
    num_cores: int  # CPUs that Ray may give away there.
    num_gpus: int  # GPUs that it may give away.


def read_hosts() -> tuple[RayHost, ...]:
    """Returns the hosts of the cluster, without a connection of this process."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "harness.launch.ray.cluster"],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SEC,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"--launcher ray: no response from the Ray cluster at {_named()} within"
            f" {_TIMEOUT_SEC:g} s; {_HOW}"
        ) from None
    lines = done.stdout.splitlines()
    answer: dict[str, Any] = {}
    if lines and lines[-1].startswith("{"):
        answer = json.loads(lines[-1])
    if "hosts" not in answer:
        last = (done.stderr.splitlines() or ["no message"])[-1]
        raise LaunchError(answer.get("error") or f"--launcher ray: Ray failed: {last}")
    return tuple(RayHost(**host) for host in answer["hosts"])


def connect() -> Any:
    """Connects this process, and returns the module of Ray."""
    # Ray would tell its makers how often it is used.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if has_token(os.environ):
        # Since Ray 2.60 a head node that finds a token asks for it; but whoever joins
        # it at an address shows none unless told to.
        os.environ.setdefault(_MODE, "token")
    try:
        import ray
    except ImportError as error:
        raise LaunchError(
            f"--launcher ray: Ray cannot be imported ({error}); install it on every"
            " host: pip install 'replicator-harness[distributed]'"
        ) from error
    handlers = {
        number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        ray.init(
            address=os.environ.get(ADDRESS_VARIABLE, "auto"),
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (
        ConnectionError,
        RuntimeError,
        ValueError,
        ray.exceptions.RayError,
    ) as error:
        if is_refusal(error):
            raise LaunchError(
                f"--launcher ray: not authorized by the Ray cluster at {_named()}:"
                f" {_own_token(os.environ)}; copy ~/.ray/auth_token of its first host"
                f" here, or set {_TOKEN} or {_TOKEN_PATH}, and export {_MODE}=token"
            ) from error
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise LaunchError(
            f"--launcher ray: cannot connect to a Ray cluster at {_named()}: {why};"
            f" {_HOW}"
        ) from error
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return ray


def has_token(environ: Mapping[str, str]) -> bool:
    """Whether Ray would find a token for its clusters."""
    if environ.get(_TOKEN):
        return True
    path = environ.get(_TOKEN_PATH)
    return (Path(path) if path else Path.home() / ".ray" / "auth_token").is_file()


def is_refusal(error: BaseException) -> bool:
    """Whether a cluster, or Ray itself, wants another token than there is.

    Ray raises that nothing responds, for the reason that it was not authorized.
    """
    text = " ".join(f"{type(of).__name__} {of}" for of in causes(error)).lower()
    return any(word in text for word in _REFUSED)


def hint(error: BaseException, environ: Mapping[str, str]) -> str:
    """Says what else it can be where actors die as soon as they are made.

    A process that shows a token asks for one, and hosts without do not reach it.
    """
    is_dead = type(error).__name__ in ("RayActorError", "ActorDiedError")
    if not is_dead or environ.get(_MODE) != "token":
        return ""
    return (
        f"; if the cluster was started without a token, set {_MODE}=disabled here, or"
        f" start its hosts with {_MODE}=token"
    )


def _own_token(environ: Mapping[str, str]) -> str:
    """Says what this process has shown."""
    if not has_token(environ):
        return "it asks for a token, and there is none here"
    mode = environ.get(_MODE, "")
    if mode != "token":
        return f"it asks for a token, and {_MODE} is {mode!r} here"
    return "its token is another one than that of this process"


def hosts_of(nodes: Sequence[dict[str, Any]]) -> tuple[RayHost, ...]:
    """Returns the living hosts of ``ray.nodes()``, in the order of their addresses."""
    found = [
        RayHost(
            node_id=str(node["NodeID"]),
            address=str(node["NodeManagerAddress"]),
            num_cores=int(node["Resources"].get("CPU", 0)),
            num_gpus=int(node["Resources"].get("GPU", 0)),
        )
        for node in nodes
        if node["Alive"]
    ]
    return tuple(sorted(found, key=lambda host: (host.address, host.node_id)))


def _named() -> str:
    return repr(os.environ.get(ADDRESS_VARIABLE, "auto"))


def check_number(hosts: Sequence[RayHost], num_expected: int) -> None:
    """Checks that all hosts have joined."""
    if len(hosts) < num_expected:
        addresses = ", ".join(host.address for host in hosts)
        raise LaunchError(
            f"the Ray cluster at {_named()} has {len(hosts)} of {num_expected} hosts"
            f" ({addresses}); join the others with 'ray start --address=HOST:PORT'"
        )


def main(argv: Sequence[str]) -> int:
    """Prints hosts, or the error."""
    try:
        ray = connect()
        hosts = hosts_of(ray.nodes())
        ray.shutdown()
        if argv:
            check_number(hosts, int(argv[0]))
        answer: dict[str, Any] = {"hosts": [dataclasses.asdict(one) for one in hosts]}
    except LaunchError as error:
        answer = {"error": str(error)}
    sys.stdout.write(f"{json.dumps(answer)}\n")
    return int("error" in answer)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
