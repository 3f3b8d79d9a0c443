"""Cluster environments: who is in the job, and which of its processes this one is.

``_FAMILIES`` lists the ways to learn it. Free of TensorFlow, so that launchers can use
it.
"""

from __future__ import annotations

import collections
import dataclasses
import fnmatch
import itertools
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

from replicator.cluster.configuration import (
    FIRST_PORT,
    KINDS,
    LAST_PORT,
    MAX_PORT,
    ClusterConfig,
    Ranks,
)
from replicator.errors import ClusterConfigError

Addresses = Mapping[str, tuple[str, ...]]
Member = tuple[str, int]  # Kind and index of a process.


MAX_TASKS = 65_536
_MOST_DIGITS = 10
EXAMPLE = (
    '{"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}, '
    '"task": {"type": "worker", "index": 0}}'
)
# How many tasks of each kind, in the order of their ranks: ``worker:4,ps:1``.
ROLES = "REPLICATOR_ROLES"


@dataclasses.dataclass(kw_only=True, slots=True)
class ClusterEnvironment:
    """What a process can find out about its job before it talks to anybody."""

    own: Member  # This process.
    # ``name:port`` of every process, by kind; None where ranks agree on them.
    known: Addresses | None = None
    members: Sequence[Member] = ()  # Of those that agree, by rank.
    ranks: Ranks | None = None
    local_rank: int | None = None  # Among the workers of its host, where known.

    def config(self, *, i_trust_this_network: bool = False) -> ClusterConfig:
        """The cluster, with everything checked; the chief is the first worker."""
        addresses = self.known or {}
        if self.ranks is not None:
            # Not at the top: launchers of other families would wait for the import.
            from replicator.cluster import address_exchange

            by_rank = address_exchange.agree(
                self.ranks, is_trusted=i_trust_this_network
            )
            addresses = _by_kind(self.members, by_rank)
        kind, index = self.own
        return ClusterConfig(
            addresses=addresses,
            kind=kind,
            index=index,
            local_rank=self.local_rank,
            i_trust_this_network=i_trust_this_network,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Variables:
    """Variables of a process, and how it comes to have them."""

    environ: Mapping[str, str]
    how: str

    def text(self, name: str, default: str = "") -> str:
        text = self.environ.get(name) or default
        if not text:
            raise ClusterConfigError(
                f"{name} is not set, so this process does not know its cluster; "
                f"{self.how}"
            )
        return text

    def integer(self, name: str, least: int, most: int, default: str = "") -> int:
        text = self.text(name, default)
        is_integer = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
        if not is_integer or not least <= int(text) <= most:
            raise ClusterConfigError(
                f"{name}={text!r} is not an integer from {least} to {most}; {self.how}"
            )
        return int(text)


def members_of(environ: Mapping[str, str], num_tasks: int) -> list[Member]:
    text = environ.get(ROLES, "") or f"worker:{num_tasks}"
    members: list[Member] = []
    for part in text.split(","):
        kind, _, count = part.strip().partition(":")
        is_number = count.isascii() and count.isdigit() and len(count) <= _MOST_DIGITS
        if kind not in KINDS or not is_number or (kind, 0) in members:
            raise ClusterConfigError(
                f"{ROLES}={text!r} is not a list of counts by kind: {part!r} is"
                f" wrong; kinds are {', '.join(KINDS)}, each once; write for example"
                " 'worker:4,ps:1'"
            )
        members += ((kind, index) for index in range(int(count)))
    if len(members) != num_tasks:
        raise ClusterConfigError(
            f"{ROLES}={text!r} counts {len(members)} processes, but the job has"
            f" {num_tasks} tasks; start as many tasks as there are processes"
        )
    return members


def roles_text(members: Sequence[Member]) -> str:
    """The value of ``ROLES`` for processes in the order of their ranks."""
    counts = collections.Counter(kind for kind, _ in members)
    return ",".join(f"{kind}:{count}" for kind, count in counts.items())


def _by_kind(members: Sequence[Member], addresses: Iterable[str]) -> Addresses:
    by_kind: dict[str, list[str]] = {}
    for (kind, _), address in zip(members, addresses, strict=True):
        by_kind.setdefault(kind, []).append(address)
    return {kind: tuple(of_kind) for kind, of_kind in by_kind.items()}


# Environments that give all addresses: ``TF_CONFIG``, pods and Slurm.


def _read_tf_config(environ: Mapping[str, str]) -> ClusterEnvironment:
    """TensorFlow's convention: addresses by kind, kind and index, in JSON."""
    text = environ["TF_CONFIG"]
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise _malformed(f"is not JSON ({error}): {text!r}") from error
    if not isinstance(config, dict):
        raise _malformed(f"must be a JSON object, but is {text!r}")
    if "cluster" not in config and "sparseCluster" in config:
        raise ClusterConfigError(
            "TF_CONFIG has 'sparseCluster', but workers that update together need"
            " the addresses of all, which are in 'cluster'; write"
            " enableDynamicWorker: false in the TFJob, which then has that:"
            f" {text!r}"
        )
    for part in ("cluster", "task"):
        if not isinstance(config.get(part), dict) or not config[part]:
            raise _malformed(f"has no {part!r} object: {text!r}")
    own = config["task"]
    for key in ("type", "index"):
        if key not in own:
            raise ClusterConfigError(
                f"TF_CONFIG['task'] has no {key!r}: {own!r}; it says which process "
                "this one is, for example {'type': 'worker', 'index': 0}"
            )
    for kind, of_kind in config["cluster"].items():
        if not isinstance(of_kind, list) or not of_kind:
            raise ClusterConfigError(
                f"the cluster's {kind!r} must be a list of addresses, but is "
                f"{of_kind!r}; write for example ['10.0.0.1:2222', '10.0.0.2:2222']"
            )
    addresses = {kind: tuple(hosts) for kind, hosts in config["cluster"].items()}
    index = _as_index(own["index"])
    return ClusterEnvironment(known=addresses, own=(own["type"], index))


def _malformed(what: str) -> ClusterConfigError:
    return ClusterConfigError(f"TF_CONFIG {what}; write it like '{EXAMPLE}'")


def _as_index(index: Any) -> int:
    # Some launchers write "0".
    if isinstance(index, str) and index.isascii() and index.strip().isdigit():
        index = int(index)
    if type(index) is not int:
        raise ClusterConfigError(f"index {index!r} of this process is not an integer")
    return index


_HOW_POD = (
    "'python -m harness launch render --launcher jobset' writes a manifest that sets it"
)
_DNS_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"


def _read_pod(environ: Mapping[str, str]) -> ClusterEnvironment:
    """A pod of an Indexed Job of Kubernetes, which is one worker."""
    # Kubernetes sets its index and host name; the manifest has to set the number of
    # pods and the service that gives them names in DNS.
    given = _Variables(environ, _HOW_POD)
    num_workers = given.integer("REPLICATOR_NUM_WORKERS", 1, MAX_TASKS)
    own = given.integer("JOB_COMPLETION_INDEX", 0, num_workers - 1)
    port = given.integer("REPLICATOR_PORT", 1, MAX_PORT, default="2222")
    service = given.text("REPLICATOR_SERVICE")
    if not re.fullmatch(_DNS_NAME, service):
        raise ClusterConfigError(
            f"REPLICATOR_SERVICE={service!r} is not a name in DNS; it must be the "
            "name of the headless service, of lower-case letters, digits and '-'"
        )
    members = members_of(environ, num_workers)
    # With setHostnameAsFQDN the name has the domain behind it.
    name = given.text("HOSTNAME").partition(".")[0]
    pods, _, index = name.rpartition("-")
    if index != str(own) or not pods:
        raise ClusterConfigError(
            f"HOSTNAME={name!r} does not end in '-{own}', as that of a pod with"
            f" JOB_COMPLETION_INDEX={own} does; set neither of them, and use"
            " completionMode: Indexed"
        )
    names = (f"{pods}-{index}.{service}:{port}" for index in range(num_workers))
    return ClusterEnvironment(known=_by_kind(members, names), own=members[own])


_NODES = "SLURM_STEP_NODELIST"
_TASKS = "SLURM_STEP_TASKS_PER_NODE"
_RESERVED = "SLURM_STEP_RESV_PORTS"
_MOST_ID = 2**32  # ids of jobs in a federation have 32 bits
MAX_NODES = 100_000  # more are a mistake, and would fill the memory


def _read_step(environ: Mapping[str, str]) -> ClusterEnvironment:
    """A task of a step of Slurm, which ``srun`` has started."""
    given = _Variables(environ, "start this process with srun, which sets it")
    nodes = expand_nodes(given.text(_NODES))
    counts = expand_counts(given.text(_TASKS))
    if len(counts) != len(nodes):
        raise ClusterConfigError(
            f"{_TASKS}={environ[_TASKS]!r} counts the tasks of {len(counts)} nodes,"
            f" but {_NODES}={environ[_NODES]!r} has {len(nodes)}; start this"
            " process with srun, which sets both"
        )
    rank = given.integer("SLURM_PROCID", 0, _MOST_ID)
    # Index of the node, and number within the node, of each task by rank.
    places: list[tuple[int, int]] = []
    placed, block_size = [0] * len(counts), _block_size(environ)
    while len(places) < sum(counts):
        for node, count in enumerate(counts):
            end = count if block_size is None else min(count, placed[node] + block_size)
            places += ((node, local) for local in range(placed[node], end))
            placed[node] = end
    if rank >= len(places):
        raise ClusterConfigError(
            f"SLURM_PROCID={rank} is out of range: {_TASKS}="
            f"{environ[_TASKS]!r} makes {len(places)} tasks; start this"
            " process with srun, which sets both"
        )
    reported = environ.get("SLURM_NODEID"), environ.get("SLURM_LOCALID")
    node, local = places[rank]
    if None not in reported and reported != (str(node), str(local)):
        raise ClusterConfigError(
            f"SLURM_PROCID={environ['SLURM_PROCID']} is task {reported[1]} of node"
            f" {reported[0]}, not task {local} of node {node} as with consecutive"
            " ranks, so the nodes of the other tasks are unknown; use srun"
            " --distribution=block"
        )
    members = members_of(environ, len(places))
    ports = _ports(given, max(counts))
    addresses = (f"{nodes[node]}:{ports[local]}" for node, local in places)
    return ClusterEnvironment(known=_by_kind(members, addresses), own=members[rank])


def _block_size(environ: Mapping[str, str]) -> int | None:
    """Tasks that a node gets before the next one does; None for all of its own."""
    given = environ.get("SLURM_DISTRIBUTION", "").partition(":")[0].lower()
    kind, _, size = given.partition("=")
    if kind.startswith("plane"):
        size = environ.get("SLURM_DIST_PLANESIZE") or size
        return int(size) if size.isdigit() and int(size) else None
    return 1 if given == "cyclic" else None


def _ports(given: _Variables, num_ports: int) -> Sequence[int]:
    """Ports of the tasks of each node: reserved by Slurm, or derived from its ids."""
    if text := given.environ.get(_RESERVED):
        reserved = _expand_range(text, text.strip("[]"))
        if len(reserved) < num_ports:
            raise ClusterConfigError(
                f"{_RESERVED}={text!r} has {len(reserved)} ports, but a"
                f" node has {num_ports} tasks; reserve srun --resv-ports={num_ports}"
            )
        return [int(port) for port in reserved[:num_ports]]
    job_id = given.integer("SLURM_JOB_ID", 0, _MOST_ID)
    step_id = given.integer("SLURM_STEP_ID", 0, _MOST_ID)
    num_firsts = LAST_PORT - FIRST_PORT + 2 - num_ports
    if num_firsts < 1:
        raise ClusterConfigError(
            f"{num_ports} tasks on one node need as many ports, but only"
            f" {LAST_PORT - FIRST_PORT + 1} are used; start fewer tasks per node"
        )
    first = FIRST_PORT + (job_id * 97 + step_id) * num_ports % num_firsts
    return range(first, first + num_ports)


def expand_nodes(text: str) -> tuple[str, ...]:
    """The names in a list of nodes, such as ``n[0-1,5],gpu-[01-03]``."""
    names: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text):  # commas outside of brackets
        pieces = re.split(r"\[([^\[\]]*)\]", part)  # every second one is inside
        plain = pieces[::2]
        if not part or not all(re.fullmatch(r"[A-Za-z0-9_.-]*", p) for p in plain):
            raise _malformed_list(text, part)
        choices = [
            _expand_range(text, piece) if number % 2 else [piece]
            for number, piece in enumerate(pieces)
        ]
        for chosen in itertools.product(*choices):
            names.append("".join(chosen))
            if len(names) > MAX_NODES:
                raise _malformed_list(text, f"more than {MAX_NODES} nodes")
    return tuple(names)


def expand_counts(text: str) -> list[int]:
    """The counts in a list such as ``2(x2),1``: 2, 2 and 1."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?", part)
        repeats = int(match[2] or 1) if match else 0
        if match is None or not 0 < repeats <= MAX_NODES:
            raise ClusterConfigError(
                f"{text!r} is not a list of tasks per node: {part!r} is wrong; Slurm"
                " writes for example '2(x2),1'"
            )
        counts += [int(match[1])] * repeats
    return counts


def _expand_range(text: str, inside: str) -> list[str]:
    names: list[str] = []
    for part in inside.split(","):
        match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if not 0 <= int(last) - int(first) < MAX_NODES:
            raise _malformed_list(text, part)
        numbers = range(int(first), int(last) + 1)
        names += [f"{number:0{len(first)}d}" for number in numbers]
    return names


def _malformed_list(text: str, part: str) -> ClusterConfigError:
    return ClusterConfigError(
        f"{text[:200]!r} is not a list of Slurm: {part[:100]!r} is wrong; Slurm writes"
        " for example 'n[0-1,5],gpu-[01-03]'"
    )


# Environments that give ranks: the processes agree on their addresses through the one
# with rank 0, the chief (``address_exchange``). On one host, ``mpirun`` of OpenMPI says
# where it is.

HOST, PORT = "MASTER_ADDR", "MASTER_PORT"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Launcher:
    """What sets variables with the rank and the number of processes."""

    rank: str  # Names of the variables.
    size: str
    local_rank: str
    how: str  # How a process comes to have them.
    how_chief: str = ""  # How to tell it where rank 0 is.

    def __call__(self, environ: Mapping[str, str]) -> ClusterEnvironment:
        given = _Variables(environ, self.how)
        size = given.integer(self.size, 1, MAX_TASKS)
        rank = given.integer(self.rank, 0, size - 1)
        members = members_of(environ, size)
        local_rank = None
        if environ.get(self.local_rank):
            local_rank = given.integer(self.local_rank, 0, rank)
        by_default = {}
        job = environ.get("PMIX_NAMESPACE")
        is_one_host = environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == str(size)
        if self is _OPEN_MPI and job and is_one_host:
            port = FIRST_PORT + zlib.crc32(job.encode()) % (LAST_PORT - FIRST_PORT + 1)
            by_default = {HOST: "127.0.0.1", PORT: str(port)}
        by_hand = {name: environ[name] for name in (HOST, PORT) if environ.get(name)}
        chief = _Variables(
            by_default | by_hand,
            f"set {HOST} and {PORT} in every process: the host and a free port of rank "
            f"0{self.how_chief}",
        )
        ranks = Ranks(
            rank=rank,
            world_size=size,
            chief_host=chief.text(HOST),
            chief_port=chief.integer(PORT, 1, MAX_PORT),
        )
        return ClusterEnvironment(
            own=members[rank], members=members, ranks=ranks, local_rank=local_rank
        )


# The variables that PyTorch made common, set by hand or by a launcher.
_PLAIN = _Launcher(
    rank="RANK",
    size="WORLD_SIZE",
    local_rank="LOCAL_RANK",
    how="set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in every process",
)
_OPEN_MPI = _Launcher(
    rank="OMPI_COMM_WORLD_RANK",
    size="OMPI_COMM_WORLD_SIZE",
    local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
    how="mpirun of OpenMPI sets it: do not change it",
    how_chief=", as by mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500",
)
# ``mpiexec`` of MPICH or Intel MPI (PMI).
_HYDRA = _Launcher(
    rank="PMI_RANK",
    size="PMI_SIZE",
    local_rank="MPI_LOCALRANKID",
    how="mpiexec of MPICH sets it: do not change it",
    how_chief=", as by mpiexec -genv MASTER_ADDR HOST -genv MASTER_PORT 29500",
)
# The variables that describe a job if they are all set, and who reads them. What a user
# sets comes before what a scheduler sets for every process. mpirun inside an allocation
# comes before the scheduler, whose variables then describe its helpers.
_FAMILIES: dict[tuple[str, ...], Callable[[Mapping[str, str]], ClusterEnvironment]] = {
    ("TF_CONFIG",): _read_tf_config,
    (_PLAIN.rank, _PLAIN.size): _PLAIN,
    (_OPEN_MPI.rank, _OPEN_MPI.size): _OPEN_MPI,
    (_HYDRA.rank, _HYDRA.size, _HYDRA.local_rank): _HYDRA,
    (_NODES, "SLURM_PROCID"): _read_step,
    ("JOB_COMPLETION_INDEX",): _read_pod,
}
# What else describes a job; programs that start others look at many of Slurm's, and
# programs of MPI at PMIx'.
_ALSO_DESCRIBING = (
    *("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", HOST, PORT, "PMIX_RANK", "SLURM_*"),
    *("REPLICATOR_NUM_WORKERS", "REPLICATOR_SERVICE", "REPLICATOR_PORT"),
)


def detect(environ: Mapping[str, str] | None = None) -> ClusterEnvironment:
    """Finds the environment that describes this process's job.

    Args:
      environ: Environment variables; by default those of this process.

    Raises:
      ClusterConfigError: There is none, or it is malformed.
    """
    variables = os.environ if environ is None else environ
    for needed, read in _FAMILIES.items():
        if all(map(variables.get, needed)):
            return read(variables)
    raise ClusterConfigError(
        "TF_CONFIG is not set, and no launcher has numbered this process, so it does "
        f"not know its cluster; set it in every process, for example "
        f"TF_CONFIG='{EXAMPLE}', or RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or"
        " start them as docs/clusters.md says"
    )


def forget(environ: MutableMapping[str, str]) -> None:
    """Removes what describes a job, so that a process of it is a program of its own."""
    patterns = [*_ALSO_DESCRIBING, *itertools.chain(*_FAMILIES)]
    for name in list(environ):
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            del environ[name]


def config_of(cluster: ClusterConfig | None) -> ClusterConfig:
    """Returns a given cluster, or the one that this process's environment describes."""
    return detect().config() if cluster is None else cluster
