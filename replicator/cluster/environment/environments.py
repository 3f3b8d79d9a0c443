"""What a process can find out about its job, and how its variables are read."""

from __future__ import annotations

import abc
import importlib
import itertools
import os
import re
import zlib
from typing import TYPE_CHECKING, Any, ClassVar

from replicator.cluster.configuration import KINDS, MAX_PORT, ClusterConfig
from replicator.errors import ClusterConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, MutableMapping, Sequence

    from replicator.cluster.environment.address_exchange import Ranks


# Below the range from which kernels take ports for outgoing connections.
FIRST_PORT, LAST_PORT = 20000, 31999
_MOST_DIGITS = 10
EXAMPLE = (
    '{"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}, '
    '"task": {"type": "worker", "index": 0}}'
)
ROLES = "REPLICATOR_ROLES"
"""How many tasks of each kind, in the order of their ranks: ``worker:4,ps:1``."""
# Modules and classes in the order in which they are tried: what a user sets comes
# before what a scheduler sets for every process. mpirun inside of an allocation comes
# before the scheduler, whose variables then describe the helpers of mpirun.
_ENVIRONMENTS = (
    ("addressed", "TfConfigEnvironment"),
    ("environments", "PlainRankEnvironment"),
    ("environments", "OpenMpiEnvironment"),
    ("environments", "HydraEnvironment"),
    ("environments", "SlurmEnvironment"),
    ("addressed", "KubernetesEnvironment"),
)


class ClusterEnvironment(abc.ABC):
    """What a process can find out about its job before it talks to anybody."""

    local_rank: int | None = None
    """Its index among the workers of its host, where that is known."""

    @abc.abstractmethod
    def addresses(self) -> dict[str, tuple[str, ...]]:
        """``name:port`` of every process, by kind; the chief is the first worker."""

    @abc.abstractmethod
    def own(self) -> tuple[str, int]:
        """Kind and index of this process."""

    def config(self, *, i_trust_this_network: bool = False) -> ClusterConfig:
        """The cluster, with everything checked."""
        addresses = self._addresses(is_trusted=i_trust_this_network)
        kind, index = self.own()
        return ClusterConfig(
            addresses=addresses,
            kind=kind,
            index=index,
            local_rank=self.local_rank,
            i_trust_this_network=i_trust_this_network,
        )

    def _addresses(self, *, is_trusted: bool) -> dict[str, tuple[str, ...]]:
        del is_trusted  # it matters where processes connect to find them out
        return self.addresses()


class DetectedEnvironment(ClusterEnvironment):
    """An environment that the variables of a process describe by themselves."""

    @abc.abstractmethod
    def __init__(self, environ: Mapping[str, str]) -> None:
        """Reads the variables."""

    @classmethod
    @abc.abstractmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        """Whether environment variables describe a job in this way."""

    @classmethod
    @abc.abstractmethod
    def variables(cls, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Names of those variables; without them, a process is in no job."""


def as_tuples(addresses: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Checks that every kind has a list of addresses."""
    for kind, of_kind in addresses.items():
        if not isinstance(of_kind, (list, tuple)) or not of_kind:
            raise ClusterConfigError(
                f"the cluster's {kind!r} must be a list of addresses, but is "
                f"{of_kind!r}; write for example ['10.0.0.1:2222', '10.0.0.2:2222']"
            )
    return {kind: tuple(of_kind) for kind, of_kind in addresses.items()}


def as_index(index: Any) -> int:
    """Returns an index that a launcher may have written as text."""
    if isinstance(index, bool) or not isinstance(index, (int, str)):
        raise ClusterConfigError(f"index {index!r} of this process is not an integer")
    try:
        return int(index)  # some launchers write "0"
    except ValueError:
        raise ClusterConfigError(
            f"index {index!r} of this process is not an integer"
        ) from None


def read_text(environ: Mapping[str, str], name: str, *, how: str) -> str:
    text = environ.get(name, "")
    if not text:
        raise ClusterConfigError(
            f"{name} is not set, so this process does not know its cluster; {how}"
        )
    return text


def read_integer(
    environ: Mapping[str, str],
    name: str,
    *,
    least: int,
    most: int,
    how: str,
    default: int | None = None,
) -> int:
    if default is not None and not environ.get(name):
        return default
    text = read_text(environ, name, how=how)
    is_integer = text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS
    if not is_integer or not least <= int(text) <= most:
        raise ClusterConfigError(
            f"{name}={text!r} is not an integer from {least} to {most}; {how}"
        )
    return int(text)


def members_of(
    environ: Mapping[str, str], num_tasks: int
) -> tuple[tuple[str, int], ...]:
    text = environ.get(ROLES, "") or f"worker:{num_tasks}"
    found: list[tuple[str, int]] = []
    for part in text.split(","):
        kind, _, count = part.strip().partition(":")
        is_number = count.isascii() and count.isdigit()
        if kind not in KINDS or not is_number or kind in {k for k, _ in found}:
            raise ClusterConfigError(
                f"{ROLES}={text!r} is not a list of counts by kind: {part!r} is"
                f" wrong; kinds are {', '.join(KINDS)}, each once; write for example"
                " 'worker:4,ps:1'"
            )
        found += [(kind, index) for index in range(int(count))]
    if len(found) != num_tasks:
        raise ClusterConfigError(
            f"{ROLES}={text!r} counts {len(found)} processes, but the job has"
            f" {num_tasks} tasks; start as many tasks as there are processes"
        )
    return tuple(found)


def roles_text(members: Sequence[tuple[str, int]]) -> str:
    """Returns the value of ``ROLES`` for processes in the order of their ranks."""
    kinds = [kind for kind, _ in members]
    return ",".join(f"{kind}:{kinds.count(kind)}" for kind in dict.fromkeys(kinds))


def by_kind(
    kinds: Sequence[str], addresses: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Returns addresses by kind, from both by rank."""
    of_ranks = list(zip(kinds, addresses, strict=True))
    return {
        kind: tuple(address for own, address in of_ranks if own == kind)
        for kind in dict.fromkeys(kinds)
    }


def _environments() -> Iterator[type[DetectedEnvironment]]:
    """Yields the classes; none is imported after the one that is present."""
    for module, name in _ENVIRONMENTS:
        yield getattr(importlib.import_module(f"{__package__}.{module}"), name)


def detect(environ: Mapping[str, str] | None = None) -> ClusterEnvironment:
    """Finds the environment that describes this process's job.

    Args:
      environ: Environment variables; by default those of this process.

    Raises:
      ClusterConfigError: There is none, or it is malformed.
    """
    variables = os.environ if environ is None else environ
    for kind in _environments():
        if kind.is_present(variables):
            return kind(variables)
    raise ClusterConfigError(
        "TF_CONFIG is not set, and no launcher has numbered this process, so it does "
        f"not know its cluster; set it in every process, for example "
        f"TF_CONFIG='{EXAMPLE}', or RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or"
        " start them as docs/clusters.md says"
    )


def forget(environ: MutableMapping[str, str]) -> None:
    """Removes what describes a job, so that a process of it is a program of its own."""
    for kind in _environments():
        for name in kind.variables(environ):
            del environ[name]


def config_of(cluster: ClusterConfig | None) -> ClusterConfig:
    """Returns a given cluster, or the one that this process's environment describes."""
    return detect().config() if cluster is None else cluster


# The processes agree on their addresses through the one with rank 0, the chief, at
# ``MASTER_ADDR:MASTER_PORT`` (``replicator.cluster.environment.address_exchange``). For
# processes of one host, ``mpirun`` of OpenMPI says enough without them.

HOST = "MASTER_ADDR"
PORT = "MASTER_PORT"
MAX_WORLD_SIZE = 65_536
_PMIX_RANK = "PMIX_RANK"  # says to programs of MPI that they are in a job


class RankEnvironment(DetectedEnvironment):
    """Variables with the rank and the number of processes; subclasses name them."""

    RANK: ClassVar[str]
    WORLD_SIZE: ClassVar[str]
    LOCAL_RANK: ClassVar[str]
    HOW: ClassVar[str]
    HOW_CHIEF: ClassVar[str] = ""

    def __init__(self, environ: Mapping[str, str]) -> None:
        how = self.HOW
        size = read_integer(
            environ, self.WORLD_SIZE, least=1, most=MAX_WORLD_SIZE, how=how
        )
        rank = read_integer(environ, self.RANK, least=0, most=size - 1, how=how)
        self._members = members_of(environ, size)
        if environ.get(self.LOCAL_RANK):
            self.local_rank = read_integer(
                environ, self.LOCAL_RANK, least=0, most=rank, how=how
            )
        environ = {**self.default_chief(environ, size), **_without_empty(environ)}
        how = f"set {HOST} and {PORT} in every process: the host and a free port of"
        # Not at the top: of the other environments, launchers wait for the import.
        from replicator.cluster.environment.address_exchange import Ranks

        self.ranks: Ranks = Ranks(
            rank=rank,
            world_size=size,
            chief_host=read_text(environ, HOST, how=f"{how} rank 0{self.HOW_CHIEF}"),
            chief_port=read_integer(
                environ,
                PORT,
                least=1,
                most=MAX_PORT,
                how=f"{how} rank 0{self.HOW_CHIEF}",
            ),
        )

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        return bool(environ.get(cls.RANK)) and bool(environ.get(cls.WORLD_SIZE))

    @classmethod
    def default_chief(cls, environ: Mapping[str, str], size: int) -> dict[str, str]:
        """``MASTER_ADDR`` and ``MASTER_PORT`` where the launcher implies them."""
        del environ, size
        return {}

    @classmethod
    def variables(cls, environ: Mapping[str, str]) -> tuple[str, ...]:
        names = (cls.RANK, cls.WORLD_SIZE, cls.LOCAL_RANK, HOST, PORT, _PMIX_RANK)
        return tuple(name for name in names if name in environ)

    def addresses(self) -> dict[str, tuple[str, ...]]:
        return self._addresses(is_trusted=False)

    def own(self) -> tuple[str, int]:
        return self._members[self.ranks.rank]

    def _addresses(self, *, is_trusted: bool) -> dict[str, tuple[str, ...]]:
        from replicator.cluster.environment import address_exchange

        by_rank = address_exchange.agree(self.ranks, is_trusted=is_trusted)
        return by_kind([kind for kind, _ in self._members], by_rank)


class PlainRankEnvironment(RankEnvironment):
    """The variables that PyTorch made common, set by hand or by a launcher."""

    RANK = "RANK"
    WORLD_SIZE = "WORLD_SIZE"
    LOCAL_RANK = "LOCAL_RANK"
    HOW = "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in every process"


class OpenMpiEnvironment(RankEnvironment):
    """A process that ``mpirun`` of OpenMPI started."""

    RANK = "OMPI_COMM_WORLD_RANK"
    WORLD_SIZE = "OMPI_COMM_WORLD_SIZE"
    LOCAL_RANK = "OMPI_COMM_WORLD_LOCAL_RANK"
    HOW = "mpirun of OpenMPI sets it: do not change it"
    HOW_CHIEF = ", as by mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500"

    @classmethod
    def default_chief(cls, environ: Mapping[str, str], size: int) -> dict[str, str]:
        """This host where all processes are on it; the port follows from the job."""
        job = environ.get("PMIX_NAMESPACE")
        if not job or environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") != str(size):
            return {}
        port = FIRST_PORT + zlib.crc32(job.encode()) % (LAST_PORT - FIRST_PORT + 1)
        return {HOST: "127.0.0.1", PORT: str(port)}


class HydraEnvironment(RankEnvironment):
    """A process that ``mpiexec`` of MPICH or Intel MPI started (PMI)."""

    RANK = "PMI_RANK"
    WORLD_SIZE = "PMI_SIZE"
    LOCAL_RANK = "MPI_LOCALRANKID"
    HOW = "mpiexec of MPICH sets it: do not change it"
    HOW_CHIEF = ", as by mpiexec -genv MASTER_ADDR HOST -genv MASTER_PORT 29500"

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        return super().is_present(environ) and bool(environ.get(cls.LOCAL_RANK))


def _without_empty(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if value}


_NODES = "SLURM_STEP_NODELIST"
_TASKS = "SLURM_STEP_TASKS_PER_NODE"
_RESERVED = "SLURM_STEP_RESV_PORTS"
_HOW = "start this process with srun, which sets it"
_MOST = 2**32  # ids of jobs in a federation have 32 bits
MAX_NODES = 100_000
"""More are a mistake, and would fill the memory before anybody noticed."""
_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")
_NUMBER = re.compile(r"[0-9]{1,18}")
_PART = re.compile(r"\[([^\[\]]*)\]")
_PLAIN = re.compile(r"[A-Za-z0-9_.-]*")


class SlurmEnvironment(DetectedEnvironment):
    """A step of Slurm; each task is one process, with or without GPUs.

    A process that ``srun`` did not start, such as a batch script, is in a job but not
    in a step, and is not described.

    Ports are those that Slurm reserved for the step (``srun --resv-ports``), otherwise
    they are derived from the ids of job and step, the same in all tasks; that one is
    free is checked when the cluster is joined.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._nodes = expand_nodes(read_text(environ, _NODES, how=_HOW))
        counts = expand_counts(read_text(environ, _TASKS, how=_HOW))
        if len(counts) != len(self._nodes):
            raise ClusterConfigError(
                f"{_TASKS}={environ[_TASKS]!r} counts the tasks of {len(counts)} nodes,"
                f" but {_NODES}={environ[_NODES]!r} has {len(self._nodes)}; start this"
                " process with srun, which sets both"
            )
        self._rank = _number(environ, "SLURM_PROCID")
        self._places = places_of_tasks(counts, _block_size(environ))
        if not 0 <= self._rank < len(self._places):
            raise ClusterConfigError(
                f"SLURM_PROCID={self._rank} is out of range: {_TASKS}="
                f"{environ[_TASKS]!r} makes {len(self._places)} tasks; start this"
                " process with srun, which sets both"
            )
        _check_own_place(environ, self._places[self._rank])
        self._members = members_of(environ, len(self._places))
        self._ports = _ports(environ, max(counts))

    @classmethod
    def is_present(cls, environ: Mapping[str, str]) -> bool:
        return bool(environ.get(_NODES)) and bool(environ.get("SLURM_PROCID"))

    @classmethod
    def variables(cls, environ: Mapping[str, str]) -> tuple[str, ...]:
        """All of Slurm's: programs that start others look at many of them."""
        return tuple(name for name in environ if name.startswith("SLURM_"))

    def addresses(self) -> dict[str, tuple[str, ...]]:
        """Node name of each task, and a port for each task of a node."""
        by_rank = tuple(
            f"{self._nodes[node]}:{self._ports[local]}" for node, local in self._places
        )
        return by_kind([kind for kind, _ in self._members], by_rank)

    def own(self) -> tuple[str, int]:
        return self._members[self._rank]


def places_of_tasks(
    counts: Sequence[int], block_size: int | None = None
) -> tuple[tuple[int, int], ...]:
    """Returns index of the node, and number within the node, of each task by rank."""
    given = [0] * len(counts)
    places: list[tuple[int, int]] = []
    while len(places) < sum(counts):
        for node, count in enumerate(counts):
            end = count if block_size is None else min(count, given[node] + block_size)
            places += [(node, local) for local in range(given[node], end)]
            given[node] = end
    return tuple(places)


def derived_ports(job_id: int, step_id: int, num_ports: int) -> tuple[int, ...]:
    """Returns ports: the same in all tasks of a step, rarely those of other steps."""
    span = LAST_PORT - FIRST_PORT + 1 - num_ports
    if span < 0:
        raise ClusterConfigError(
            f"{num_ports} tasks on one node need as many ports, but only"
            f" {LAST_PORT - FIRST_PORT + 1} are used; start fewer tasks per node"
        )
    first = FIRST_PORT + (job_id * 97 + step_id) * num_ports % (span + 1)
    return tuple(range(first, first + num_ports))


def _ports(environ: Mapping[str, str], num_ports: int) -> tuple[int, ...]:
    if environ.get(_RESERVED):
        reserved = expand_ports(environ[_RESERVED])
        if len(reserved) < num_ports:
            raise ClusterConfigError(
                f"{_RESERVED}={environ[_RESERVED]!r} has {len(reserved)} ports, but a"
                f" node has {num_ports} tasks; reserve srun --resv-ports={num_ports}"
            )
        return reserved[:num_ports]
    job_id = _number(environ, "SLURM_JOB_ID")
    return derived_ports(job_id, _number(environ, "SLURM_STEP_ID"), num_ports)


def _block_size(environ: Mapping[str, str]) -> int | None:
    distribution = environ.get("SLURM_DISTRIBUTION", "").partition(":")[0].lower()
    if distribution == "cyclic":
        return 1
    if distribution.startswith("plane"):
        size = environ.get("SLURM_DIST_PLANESIZE") or distribution.partition("=")[2]
        return int(size) if size.isdigit() and int(size) else None
    return None


def _check_own_place(environ: Mapping[str, str], place: tuple[int, int]) -> None:
    reported = (environ.get("SLURM_NODEID"), environ.get("SLURM_LOCALID"))
    expected = tuple(map(str, place))
    if None not in reported and reported != expected:
        raise ClusterConfigError(
            f"SLURM_PROCID={environ['SLURM_PROCID']} is task {reported[1]} of node"
            f" {reported[0]}, not task {expected[1]} of node {expected[0]} as with"
            " consecutive ranks, so the nodes of the other tasks are unknown; use srun"
            " --distribution=block"
        )


def _number(environ: Mapping[str, str], name: str) -> int:
    return read_integer(environ, name, least=0, most=_MOST, how=_HOW)


def expand_nodes(text: str) -> tuple[str, ...]:
    """Returns the names in a list of nodes, such as ``n[0-1,5],gpu-[01-03]``."""
    names: list[str] = []
    for part in _split(text):
        pieces = _PART.split(part)
        plain, inside = pieces[::2], pieces[1::2]
        if not part or not all(map(_PLAIN.fullmatch, plain)):
            raise _malformed_nodes(text, part)
        choices = [_expand_range(text, piece) for piece in inside]
        for chosen in itertools.product(*choices):
            pairs = itertools.zip_longest(plain, chosen, fillvalue="")
            names.append("".join(itertools.chain.from_iterable(pairs)))
            if len(names) > MAX_NODES:
                raise _malformed_nodes(text, f"more than {MAX_NODES} nodes")
    return tuple(names)


def expand_counts(text: str) -> tuple[int, ...]:
    """Returns the counts in a list such as ``2(x2),1``: 2, 2 and 1."""
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        repeats = int(match[2] or 1) if match else 0
        if match is None or not 0 < repeats <= MAX_NODES:
            raise ClusterConfigError(
                f"{text!r} is not a list of tasks per node: {part!r} is wrong; Slurm"
                " writes for example '2(x2),1'"
            )
        counts += [int(match[1])] * repeats
    return tuple(counts)


def expand_ports(text: str) -> tuple[int, ...]:
    """Returns the ports in a list such as ``12000-12001,12004``."""
    return tuple(int(number) for number in _expand_range(text, text.strip("[]")))


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for character in text:
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _expand_range(text: str, inside: str) -> list[str]:
    found: list[str] = []
    for part in inside.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        is_valid = _NUMBER.fullmatch(first) and _NUMBER.fullmatch(last)
        if not is_valid or not 0 <= int(last) - int(first) < MAX_NODES:
            raise _malformed_nodes(text, part)
        width = len(first)
        found += [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]
    return found


def _malformed_nodes(text: str, part: str) -> ClusterConfigError:
    return ClusterConfigError(
        f"{text[:200]!r} is not a list of Slurm: {part[:100]!r} is wrong; Slurm writes"
        " for example 'n[0-1,5],gpu-[01-03]'"
    )
