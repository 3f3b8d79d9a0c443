"""The launcher ``ray``: gangs on a Ray cluster, and a script that makes the cluster.

    python -m harness.launch.ray [HOSTS]

prints the hosts of the cluster as JSON, and fails if they are fewer. With ``gang`` it
is the client of a gang, which it reads from its standard input, and ends when that is
closed. Both are processes of their own: Ray starts threads and changes the handling of
signals in every process that connects to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import itertools
import json
import math
import os
import random
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from harness.errors import LaunchError, causes
from harness.launch import gang as gang_lib
from harness.launch.gang import ClientEngine, Engine, Gang
from harness.launch.launchers import Job, Launcher, Nodes, RemoteLauncher
from harness.machine.gpus import CACHE_FOLDER, LARGEST_CACHE
from harness.options.kinds import duration
from harness.options.option import Option, Options
from harness.trial.process_tree import request_death_signal
from harness.trial.rank_file import one_line
from replicator.cluster.configuration import FIRST_PORT, LAST_PORT, join_address

_COMMAND = (sys.executable, "-m", "harness.launch.ray")
_END_BY_ITSELF_SEC = 10.0
"""Ray stops the members, gives their hosts back, and disconnects."""
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
    node_id: str  # Ray's.
    address: str
    num_cores: int  # CPUs that Ray may give away there.
    num_gpus: int  # GPUs that it may give away.


def read_hosts() -> tuple[RayHost, ...]:
    try:
        done = subprocess.run(
            _COMMAND, capture_output=True, text=True, timeout=_TIMEOUT_SEC, check=False
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"--launcher ray: no response from the Ray cluster at {_named()} within"
            f" {_TIMEOUT_SEC:g} s; {_HOW}"
        ) from None
    line = (done.stdout.splitlines() or [""])[-1]
    answer: dict[str, Any] = json.loads(line) if line.startswith("{") else {}
    if "hosts" not in answer:
        last = (done.stderr.splitlines() or ["no message"])[-1]
        raise LaunchError(answer.get("error") or f"--launcher ray: Ray failed: {last}")
    return tuple(RayHost(**host) for host in answer["hosts"])


def connect() -> Any:
    """Connects this process, and returns the module of Ray."""
    # Ray would tell its makers how often it is used.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if _has_token():
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
    numbers = signal.SIGINT, signal.SIGTERM
    handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        ray.init(
            address=os.environ.get(ADDRESS_VARIABLE, "auto"),
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (*(OSError, RuntimeError, ValueError), ray.exceptions.RayError) as error:
        # Ray raises that nothing responds, for the reason that it was not authorized.
        said = " ".join(f"{type(e).__name__} {e}" for e in causes(error)).lower()
        if any(word in said for word in _REFUSED):
            mode, has = os.environ.get(_MODE, ""), "it asks for a token, and"
            shown = "its token is another one than that of this process"
            if not _has_token():
                shown = f"{has} there is none here"
            elif mode != "token":
                shown = f"{has} {_MODE} is {mode!r} here"
            raise LaunchError(
                f"--launcher ray: not authorized by the Ray cluster at {_named()}:"
                f" {shown}; copy ~/.ray/auth_token of its first host here, or set"
                f" {_TOKEN} or {_TOKEN_PATH}, and export {_MODE}=token"
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


def _has_token() -> bool:
    path = os.environ.get(_TOKEN_PATH) or Path.home() / ".ray" / "auth_token"
    return bool(os.environ.get(_TOKEN)) or Path(path).is_file()


def hosts_of(nodes: Sequence[dict[str, Any]]) -> tuple[RayHost, ...]:
    hosts = [
        RayHost(
            node_id=str(node["NodeID"]),
            address=str(node["NodeManagerAddress"]),
            num_cores=int(node["Resources"].get("CPU", 0)),
            num_gpus=int(node["Resources"].get("GPU", 0)),
        )
        for node in nodes
        if node["Alive"]
    ]
    return tuple(sorted(hosts, key=lambda host: (host.address, host.node_id)))


def _named() -> str:
    return repr(os.environ.get(ADDRESS_VARIABLE, "auto"))


def print_hosts(num_expected: int) -> int:
    try:
        ray = connect()
        hosts = hosts_of(ray.nodes())
        ray.shutdown()
        answer: dict[str, Any] = {"hosts": [dataclasses.asdict(one) for one in hosts]}
        if len(hosts) < num_expected:
            addresses = ", ".join(host.address for host in hosts)
            said = (
                f"the Ray cluster at {_named()} has {len(hosts)} of {num_expected}"
                f" hosts ({addresses}); join the others with 'ray start"
                " --address=HOST:PORT'"
            )
            answer = {"error": said}
    except LaunchError as error:
        answer = {"error": str(error)}
    sys.stdout.write(f"{json.dumps(answer)}\n")
    return int("error" in answer)


_START_SEC = 60.0
_END_SEC = 5.0
_POLL_SEC = 0.1
_LOST = 1
"""Exit code of a gang of which Ray lost a host."""


class HostMembers:
    """The members of a gang on one host; lives in an actor of Ray."""

    # Ray sends it to the hosts by value, so it uses the standard library only. Members
    # end with the actor, and that with the program that made it, however either exits.

    def free_ports(self, count: int, low: int, high: int) -> list[int]:
        ports: list[int] = []
        with contextlib.ExitStack() as reserved:
            while len(ports) < count:
                with contextlib.suppress(OSError):
                    port = random.SystemRandom().randint(low, high)
                    reserved.enter_context(socket.create_server(("", port)))
                    ports.append(port)
        return ports

    def run(
        self,
        command: Sequence[str],
        variables: Sequence[Mapping[str, str]],
        folder: str,
    ) -> list[int]:
        """Returns the exit code of each member."""
        own = os.getpid()
        libc = ctypes.CDLL(None)

        def die_with_the_actor() -> None:
            libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
            if os.getppid() != own:
                os._exit(1)

        try:
            processes = [
                subprocess.Popen(
                    list(command),
                    env=dict(own_variables),
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                    preexec_fn=die_with_the_actor,  # noqa: PLW1509 - of libc only
                )
                for own_variables in variables
            ]
        except OSError as error:
            raise OSError(f"host {socket.gethostname()!r}: {error}") from None
        return [process.wait() for process in processes]


def run_gang() -> int:
    """Runs a gang to its end, or until the harness closes the standard input."""
    request_death_signal()
    fields = json.loads(sys.stdin.buffer.readline())
    gang = Gang(**{**fields, "trial_dir": Path(fields["trial_dir"])})
    try:
        with contextlib.ExitStack() as stack:
            ray = connect()
            stack.callback(ray.shutdown)
            return _run(ray, gang, stack)
    except LaunchError as error:
        sys.stderr.write(f"{error}\n")
        return gang_lib.REFUSED


def _run(ray: Any, gang: Gang, stack: contextlib.ExitStack) -> int:
    """Reserves whole hosts, starts the members and waits for them; gives all back."""
    from ray.util.placement_group import placement_group, remove_placement_group

    bundle = bundle_of(hosts_of(ray.nodes()), gang.num_hosts)
    group = placement_group(
        [bundle] * gang.num_hosts, strategy="STRICT_SPREAD", name=gang.trial_dir.name
    )
    stack.callback(remove_placement_group, group)
    try:
        while not group.wait(1):
            if _is_closed():
                return 0
        runs = _start_members(ray, gang, group, bundle, stack)
        codes = _wait(ray, runs)
    except ray.exceptions.RayTaskError as error:
        said = (
            f"Ray could not start the members: {error.cause}; install this package on"
            " every host in the same place, and choose a --runs-dir on a file system"
            " that all hosts share"
        )
    except ray.exceptions.RayError as error:
        first = one_line(str(error)) or type(error).__name__
        said = f"a host of the gang was lost: {first}"
        # A process that shows a token asks for one: hosts without are not reached, and
        # actors die as soon as they are made.
        is_dead = type(error).__name__ in ("RayActorError", "ActorDiedError")
        if is_dead and os.environ.get(_MODE) == "token":
            said += (
                f"; if the cluster was started without a token, set {_MODE}=disabled"
                f" here, or start its hosts with {_MODE}=token"
            )
    else:
        if codes is None:  # members end with their connection to the harness
            ray.wait(runs, num_returns=len(runs), timeout=_END_SEC)
        return next(filter(None, itertools.chain(*(codes or ()))), 0)
    sys.stderr.write(f"{said}\n")
    return _LOST


def _is_closed() -> bool:
    """Whether the harness has closed the standard input, or gone."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def _wait(ray: Any, tasks: Sequence[Any]) -> list[Any] | None:
    """Returns what tasks give; None where the input was closed before."""
    while not _is_closed():
        ended, others = ray.wait(tasks, num_returns=len(tasks), timeout=_POLL_SEC)
        # Those of a host that was lost are ready at once, and raise.
        results: list[Any] = ray.get(ended)
        if not others:
            return results
    return None


def _start_members(
    ray: Any,
    gang: Gang,
    group: Any,
    bundle: Mapping[str, int],
    stack: contextlib.ExitStack,
) -> list[Any]:
    """Returns a task for each host, which ends with its members."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    ray.cloudpickle.register_pickle_by_value(sys.modules[HostMembers.__module__])
    kind = ray.remote(HostMembers)
    bundles = ray.util.placement_group_table(group)["bundles_to_node_id"]
    nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    block, actors = gang.members_per_host, []
    for index in range(gang.num_hosts):
        place = PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=index
        )
        own = {"num_cpus": bundle["CPU"], "scheduling_strategy": place}
        actors.append(kind.options(max_restarts=0, **own).remote())
        stack.callback(ray.kill, actors[-1])
    # Not of those that outgoing connections get: one could take it before its server.
    asked = [a.free_ports.remote(block, FIRST_PORT, LAST_PORT) for a in actors]
    ports = ray.get(asked, timeout=_START_SEC)
    address = gang_lib.with_host(
        gang.variables[gang_lib.ADDRESS_VARIABLE], ray.util.get_node_ip_address()
    )
    addresses: dict[str, list[str]] = {}
    for position, (role, _) in enumerate(gang.members):
        host, slot = divmod(position, block)
        made = join_address(nodes[bundles[host]], ports[host][slot])
        addresses.setdefault(role, []).append(made)
    runs = []
    for host, actor in enumerate(actors):
        variables = [
            {
                **gang.variables,
                gang_lib.ADDRESS_VARIABLE: address,
                "RAY_NODE_ID": bundles[host],  # for whoever reads a log
                "TF_CONFIG": json.dumps(
                    {"cluster": addresses, "task": {"type": role, "index": index}}
                ),
            }
            for role, index in gang.members[host * block : (host + 1) * block]
        ]
        runs.append(actor.run.remote(gang.command, variables, str(gang.trial_dir)))
    return runs


def bundle_of(hosts: Sequence[RayHost], num_hosts: int) -> dict[str, int]:
    """What is reserved on each host of a gang: the whole of the smallest one."""
    largest_first = sorted(hosts, key=lambda host: (-host.num_cores, -host.num_gpus))
    chosen = largest_first[:num_hosts]
    if len(chosen) < num_hosts or min(host.num_cores for host in chosen) < 1:
        raise LaunchError(
            f"a gang on {num_hosts} hosts needs as many, but the Ray cluster has"
            f" {sum(host.num_cores > 0 for host in hosts)} with CPUs; add hosts with"
            " 'ray start --address=HOST:PORT', or plan fewer replicas"
        )
    bundle = {"CPU": min(host.num_cores for host in chosen)}
    num_gpus = min(host.num_gpus for host in chosen)
    return bundle | ({"GPU": num_gpus} if num_gpus else {})


class RayFileOptions(Options):
    nodes: Nodes = None
    time_limit: Annotated[
        float, Option(help="Time after which the job is ended.", kind=duration())
    ] = 24 * 3600.0


class Ray(RemoteLauncher):
    """The hosts of a Ray cluster, which are what they are: nothing is submitted."""

    name = "ray"
    summary = "the hosts of a Ray cluster"
    file_options = RayFileOptions

    def __init__(self, hosts: Sequence[RayHost] = ()) -> None:
        self.hosts = hosts
        self.num_hosts = len(hosts)

    def start(self, options: Options) -> Launcher:
        del options
        return Ray(read_hosts())

    def render(self, job: Job, options: RayFileOptions) -> dict[str, str]:
        import jinja2

        nodes = options.nodes or job.workers
        workers_per_node = job.workers_per_node(nodes)
        templates = jinja2.Environment(
            loader=jinja2.FileSystemLoader(Path(__file__).parent),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,  # noqa: S701 - no HTML; the filters below quote
        )
        templates.filters["word"] = lambda value: shlex.quote(str(value))
        templates.filters["words"] = shlex.join
        text = templates.get_template("ray.sh.j2").render(
            job=job,
            nodes=nodes,
            port=6379,
            gpus=job.gpus_per_worker * workers_per_node,
            cuda_folder=CACHE_FOLDER,
            cuda_size=LARGEST_CACHE,
            cores=(job.cores_per_worker or 0) * workers_per_node,
            timeout_sec=math.ceil(options.time_limit),
        )
        return {f"{job.name}.ray.sh": text}

    def engine(self, gang: Gang) -> Engine:
        return ClientEngine(
            (*_COMMAND, "gang"),
            trial_dir=gang.trial_dir,
            variables=gang.variables,
            log="ray.log",
            hint="run the harness with a Python that exists",
            end_by_itself_sec=_END_BY_ITSELF_SEC,
            message=json.dumps(dataclasses.asdict(gang), default=str) + "\n",
        )


LAUNCHER = Ray()


if __name__ == "__main__":
    (word,) = sys.argv[1:] or ("0",)
    sys.exit(run_gang() if word == "gang" else print_hosts(int(word)))
